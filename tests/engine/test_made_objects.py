"""What a script makes is noted for as long as it is alive, and is as it was otherwise."""

import copy
import gc
import inspect
import weakref

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from torchmetrics import MeanMetric

from gemini_lab.engine.made_objects import follow_constructors, made_objects

follow_constructors()


def schedule(make):
    """By its maker, of an optimizer."""
    return lambda: make(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0))


class Later(DataLoader):
    """Defined after constructors were followed, and calls none of its base."""

    def __init__(self):
        self.dataset = [1]


class Compared(type):
    """Classes that are compared with others, and have no hash."""

    __hash__ = None

    def __eq__(cls, other):
        return other is cls


class Unhashed(nn.Module, metaclass=Compared):
    """Whose objects have none either."""

    __hash__ = None

    def __eq__(self, other):
        return other is self


def prepared():
    data_loader = pytest.importorskip("accelerate.data_loader")
    nn.Identity()  # anything that is made after the import
    return data_loader.DataLoaderShard([1, 2])


MAKERS = {
    "module": lambda: nn.Linear(1, 1),
    "copied module": lambda: copy.deepcopy(nn.Linear(1, 1)),
    "metric": MeanMetric,
    "module without a hash": Unhashed,
    "compiled module": lambda: torch.compile(nn.Linear(1, 1)),
    "optimizer": lambda: torch.optim.AdamW(nn.Linear(1, 1).parameters()),
    "copied optimizer": lambda: copy.deepcopy(torch.optim.SGD(nn.Linear(1, 1).parameters())),
    "schedule": schedule(lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5)),
    "plateau": schedule(lr_scheduler.ReduceLROnPlateau),
    "chained": schedule(lambda one: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(one)])),
    "scaler": lambda: GradScaler("cpu"),
    "loader": lambda: DataLoader([1]),
    "stateful loader": lambda: StatefulDataLoader([1]),
    "loader that calls no base": Later,
    "loader of accelerate": prepared,
    "iterator": lambda: iter(DataLoader([1])),
    "stateful iterator": lambda: iter(StatefulDataLoader([1])),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_each_kind_is_noted_and_not_kept_alive(kind):
    thing = MAKERS[kind]()
    assert any(one is thing for one in made_objects())
    held = weakref.ref(thing)
    del thing
    gc.collect()
    assert held() is None


def test_they_are_told_in_the_order_in_which_they_were_made():
    made = [nn.Linear(1, 1), DataLoader([1]), nn.Identity()]
    told = [one for one in made_objects() if any(one is other for other in made)]
    assert [*map(id, told)] == [*map(id, made)]


def test_signatures_are_as_they_were():
    """Scripts ask for them, as nanoGPT asks whether an optimizer has a fused form."""
    assert "fused" in inspect.signature(torch.optim.AdamW).parameters
    assert "batch_size" in inspect.signature(DataLoader).parameters
    assert "num_workers" in inspect.signature(StatefulDataLoader).parameters
    assert "base_lr" in inspect.signature(lr_scheduler.CyclicLR).parameters


class Criterion(nn.Module):
    """Makes a module in each pass, as many models of transformers do."""

    def forward(self, rows):
        return nn.MSELoss()(rows, torch.zeros_like(rows))


def test_a_model_that_makes_modules_compiles_as_a_whole():
    compiled = torch.compile(Criterion(), fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)) == 1.0


def test_what_could_not_be_made_is_no_schedule():
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    with pytest.raises(TypeError) as kept:
        lr_scheduler.LambdaLR(optimizer)
    assert not any(
        isinstance(one, lr_scheduler.LambdaLR) and one.optimizer is optimizer
        for one in made_objects()
    )
    assert kept.traceback
