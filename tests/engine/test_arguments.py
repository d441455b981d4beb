"""What is no engine, or no state, is refused in sentences; what stands around an engine is seen."""

import pytest
import torch
from deepspeed.runtime.dataloader import RepeatingLoader
from deepspeed.runtime.engine import DeepSpeedEngine
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, SequentialLR
from torch.utils.data import DataLoader

import gemini_lab
from gemini_lab.engine.discovery import begin_repeating, gather
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.errors import ConfigError


def bare_engine():
    """An engine that was never initialised: enough to be told from other things."""
    return object.__new__(DeepSpeedEngine)


class Wrapper:
    """As Accelerate wraps an engine."""

    def __init__(self):
        self.engine = bare_engine()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: (bare_engine(), None, None, None), "give the engine alone"),
        (Wrapper, r"a Wrapper around a DeepSpeedEngine; give its `\.engine`"),
        (lambda: "engine", "was given a str; give what deepspeed.initialize returns first"),
        (lambda: nn.Linear(1, 1), r"a model alone \(Linear\).*protect\(model=model, optimizer="),
    ],
    ids=["tuple", "wrapper", "word", "model"],
)
def test_what_is_nearly_an_engine_is_refused_with_the_way_to_it(make, words):
    with pytest.raises(ConfigError, match=words):
        gemini_lab.protect(make())


@pytest.mark.parametrize("settings", [5, [1], "ds_config.json"])
def test_settings_are_a_dict(settings):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ConfigError, match=r"settings= is an? \w+; give a dict such as \{"):
        gemini_lab.protect(model=model, optimizer=optimizer, settings=settings)


class Engine:
    """An engine, as far as is looked at around it."""

    training_dataloader = None
    lr_scheduler = None

    def __init__(self):
        self.module = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=1.0)


@pytest.fixture
def remarks():
    return []


def gathered(engine, remarks, *around, **handed):
    handed = {"data": None, "client_state": None, "also": None, **handed}
    return gather(engine, remark=remarks.append, made=lambda: [*around], **handed)


def test_the_only_loader_is_taken_along(remarks):
    loader = DataLoader([1, 2])
    script = gathered(Engine(), remarks, loader)
    assert [one.loader for one in script.watches] == [loader]
    assert remarks == []


def repeating(remarks, position=None):
    """A loader of DeepSpeed's that was read before, and what follows its position."""
    engine, loader = Engine(), RepeatingLoader(DataLoader([*range(6)], batch_size=2))
    next(loader)
    engine.training_dataloader = loader
    script = gathered(engine, remarks)
    if position is not None:
        script.put_data(position, seeds=[])
    begin_repeating(engine, None)
    return script, loader


def test_a_loader_that_repeats_begins_an_epoch_at_protect_and_comes_back_where_it_was(remarks):
    script, loader = repeating(remarks)
    assert [next(loader).tolist() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [0, 1]]
    _, again = repeating(remarks, script.positions())
    assert [next(again).tolist() for _ in range(3)] == [[2, 3], [4, 5], [0, 1]]
    assert remarks == []


def test_of_several_loaders_none_is_taken_and_that_is_said(remarks):
    loaders = [DataLoader([1]), DataLoader([2])]
    assert gathered(Engine(), remarks, *loaders).watches == []
    assert "2 DataLoaders are there and none is kept" in remarks[0]
    remarks.clear()
    assert len(gathered(Engine(), remarks, *loaders, data=loaders[0]).watches) == 1
    assert gathered(Engine(), remarks, *loaders, data=()).watches == []
    assert remarks == []


def test_the_schedule_that_steps_all_others_is_taken_along(remarks):
    engine = Engine()
    parts = [ConstantLR(engine.optimizer), ExponentialLR(engine.optimizer, 0.5)]
    whole = SequentialLR(engine.optimizer, parts, milestones=[2])
    elsewhere = ExponentialLR(torch.optim.SGD(engine.module.parameters(), lr=1.0), 0.5)
    around = (*parts, whole, elsewhere)
    script = gathered(engine, remarks, *around)
    assert [*script.keepsakes] == ["the optimizer's SequentialLR"]
    assert remarks == []
    script = gathered(engine, remarks, *around, also={"mine": whole, "other": elsewhere})
    assert [*script.keepsakes] == ["mine", "other"]


def test_several_schedules_have_to_be_named(remarks):
    engine = Engine()
    both = [ConstantLR(engine.optimizer), ExponentialLR(engine.optimizer, 0.5)]
    assert gathered(engine, remarks, *both).keepsakes == {}
    assert "(ConstantLR, ExponentialLR) and are not kept" in remarks[0]
    remarks.clear()
    gathered(engine, remarks, *both, also=dict(zip("ab", both, strict=True)))
    assert remarks == []


def test_the_schedule_of_an_optimizer_in_also_is_taken_along(remarks):
    """As of a critic's: who names the optimizer may think that its schedule is found, too."""
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    both = [ConstantLR(other), ExponentialLR(other, 0.5)]
    script = gathered(Engine(), remarks, both[0], also={"critic": other})
    assert [*script.keepsakes] == ["critic", "critic's ConstantLR"]
    assert remarks == []
    gathered(Engine(), remarks, *both, also={"critic": other})
    assert "2 schedules of 'critic' in `also` are there" in remarks[0]


def test_the_only_scaler_is_taken_along(remarks):
    model = nn.Linear(1, 1)
    engine = TorchEngine(model, torch.optim.SGD(model.parameters(), lr=1.0))
    scalers = [GradScaler("cpu"), GradScaler("cpu")]
    unused = GradScaler("cpu", enabled=False)
    script = gathered(engine, remarks, scalers[0], unused)
    assert [*script.keepsakes] == ["the GradScaler"]
    assert [*gathered(engine, remarks, scalers[0], also={"mine": scalers[0]}).keepsakes] == ["mine"]
    assert remarks == []
    gathered(engine, remarks, *scalers)
    assert "2 GradScalers are there and are not kept" in remarks[0]


def test_another_engine_that_trains_and_workers_that_stay_are_said(remarks):
    other = bare_engine()
    nn.Module.__init__(other)
    other.optimizer, other.module = "some", nn.Linear(1, 1)
    loader = DataLoader([1], num_workers=1, persistent_workers=True)
    gathered(Engine(), remarks, other, data=loader)
    assert "another DeepSpeed engine trains here (Linear)" in remarks[0]
    assert "persistent_workers" in remarks[1]
