"""Weights beside the engine's: those that change are named, those that stand still are not."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torchmetrics import MeanMetric

from gemini_lab.engine.state.user_state import keepsakes
from gemini_lab.engine.unsaved_state import Bystanders


def trained():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return SimpleNamespace(
        module=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1), model=model
    )


def update(engine):
    engine.module(torch.ones(3, 6)).sum().backward()
    engine.optimizer.step()


def averaged(engine):
    ema = AveragedModel(engine.module)
    return ema, lambda: ema.update_parameters(engine.module)


def averaged_by_hand(engine):
    ema = copy.deepcopy(engine.module).requires_grad_(False)

    def average():
        for mean, weight in zip(ema.parameters(), engine.module.parameters(), strict=True):
            mean.data.mul_(0.9).add_(weight.data, alpha=0.1)

    return ema, average


def teacher(engine):
    """Inside of the model, as where a student learns from an average of itself."""
    engine.module.add_module("teacher", nn.Sequential(nn.Identity()))
    slow = engine.module[0].weight
    engine.module.teacher.weight = nn.Parameter(slow.detach().clone(), requires_grad=False)
    return engine.module.teacher, lambda: engine.module.teacher.weight.data.lerp_(slow, 0.1)


def critic(_engine):
    other = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)

    def step():
        other(torch.ones(2, 6)).sum().backward()
        optimizer.step()

    return other, step


def forgotten_optimizer(_engine):
    """Its model is handed over, and it is not."""
    other = nn.Linear(6, 2)
    optimizer = torch.optim.Adam(other.parameters())

    def step():
        other(torch.ones(2, 6)).sum().backward()
        optimizer.step()

    return (other, optimizer), step


def metric(_engine):
    it = MeanMetric()
    return it, lambda: it.update(torch.ones(2))


@pytest.mark.parametrize("kind", [forgotten_optimizer, metric])
def test_an_optimizer_or_a_metric_that_is_not_handed_over_is_named(kind):
    engine = trained()
    thing, step = kind(engine)
    model, last = thing if isinstance(thing, tuple) else (None, thing)
    seen = Bystanders([engine.module, last, engine.optimizer], engine, [model])
    update(engine)
    assert seen.changed() == []
    step()
    (name,) = seen.changed()
    assert name in {"the state of another Adam", "what a MeanMetric has added up"}
    kept = Bystanders([engine.module, last, engine.optimizer], engine, [model, last])
    step()
    assert kept.changed() == []


def made(*things):
    """What the registry of made objects would list of them."""
    modules = [one for one in things if isinstance(one, nn.Module)]
    return [part for one in modules for part in one.modules()]


def unkept_buffer(engine):
    """Part of the model, as a memory of what it has seen, and in no version."""
    engine.module[0].register_buffer("memory", torch.zeros(6), persistent=False)
    return engine.module[0], lambda: engine.module[0].memory.add_(1.0)


def attribute(engine):
    engine.module[0].hidden = torch.zeros(2, 6)
    return engine.module[0], lambda: engine.module[0].hidden.add_(1.0)


OF_THE_MODEL = {
    "unkept_buffer": (unkept_buffer, "the model's buffers 'memory', which persistent=True keeps"),
    "attribute": (attribute, "its attributes 'hidden', which register_buffer keeps"),
}
KINDS = {
    "averaged": (averaged, "AveragedModel"),
    "averaged_by_hand": (averaged_by_hand, "Sequential"),
    "critic": (critic, "Linear"),
    "teacher": (teacher, "frozen weights of the model"),
}


@pytest.mark.parametrize("kind", [*KINDS, *OF_THE_MODEL])
def test_weights_that_change_beside_the_engines_are_named_once(kind):
    make, name = {**KINDS, **OF_THE_MODEL}[kind]
    engine = trained()
    thing, step = make(engine)
    seen = Bystanders(made(engine.module, thing), engine)
    update(engine)
    assert seen.changed() == []  # the engine's own do not count
    step()
    assert seen.changed() == [name]
    step()
    assert seen.changed() == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_handed_over_is_not_named(kind):
    engine = trained()
    thing, step = KINDS[kind][0](engine)
    keepsakes({"it": thing})
    seen = Bystanders(made(engine.module, thing), engine, [thing])
    update(engine)
    step()
    assert seen.changed() == []


def test_what_an_object_with_a_state_has_in_its_attributes_is_handed_over_with_it():
    """Its `state_dict` may give copies."""
    engine = trained()
    ema, step = averaged_by_hand(engine)

    class Average:
        def __init__(self):
            self.model = ema

        def state_dict(self):
            return copy.deepcopy(ema.state_dict())

    seen = Bystanders(made(engine.module, ema), engine, [Average()])
    update(engine)
    step()
    assert seen.changed() == []


def test_what_hangs_on_a_thing_that_is_handed_over_is_not_asked_for_its_state():
    """Such as TorchTitan's optimizers: without any state they make it by a step."""

    class Stepping(torch.optim.AdamW):
        def state_dict(self):
            update(engine)
            return super().state_dict()

    class Counts:
        def __init__(self, optimizer):
            self.trainer = SimpleNamespace(optimizer=optimizer)
            self.optimizer = optimizer

        def state_dict(self):
            return {"step": 3}

    engine = trained()
    before = engine.module[0].weight.clone()
    counts = Counts(Stepping(engine.module.parameters()))
    assert Bystanders([engine.module], engine, [counts]).changed() == []
    assert torch.equal(engine.module[0].weight, before)


def test_what_a_model_keeps_anyway_or_makes_anew_is_not_named():
    """Another name of a weight; a tensor that each forward pass makes."""
    engine = trained()
    engine.module[0].also = engine.module[0].weight.data
    engine.module[0].newest = torch.zeros(3)
    seen = Bystanders(made(engine.module), engine)
    update(engine)
    engine.module[0].newest = torch.ones(3)
    assert seen.changed() == []


def test_what_is_gone_is_forgotten():
    engine = trained()
    ema, step = averaged(engine)
    seen = Bystanders(made(engine.module, ema), engine)
    update(engine)
    step()
    del ema, step
    assert seen.changed() == []


def test_parts_that_a_model_is_given_while_it_trains_are_named():
    """They have no weights of their own, which would be refused."""
    engine = trained()
    watched = Bystanders([], engine)
    update(engine)
    assert watched.changed() == []
    engine.module[1] = nn.Sequential(engine.module[1], nn.Dropout(0.1))
    assert watched.changed() == ["the model's parts, which are made before `protect`"]


class Counting(nn.Linear):
    """A part of the script's own that counts its passes, and has numbers that stand still."""

    def __init__(self):
        super().__init__(6, 6)
        self.passes, self.factor, self.seen, self.names = 0, 0.5, [0.0] * 999, set()

    def forward(self, batch):
        self.passes += 1
        self.seen.append(0.5)
        self.names.add(self.passes)
        return super().forward(batch) * self.factor / self.passes


def test_what_is_too_much_or_too_odd_to_come_back_in_the_models_attributes_is_named():
    engine = trained()
    engine.module.insert(0, Counting())
    seen = Bystanders(made(engine.module), engine)
    assert seen.changed() == []
    update(engine)
    (names,) = seen.changed()
    assert names.startswith("'names' of a Counting, which comes back if it has no more than 1,000")
    update(engine)  # a thousand numbers and one
    (history,) = seen.changed()
    assert history.startswith("'seen' of a Counting")
    update(engine)
    assert seen.changed() == []


class Averages:
    """Averages of a library, in an object that is no module, made at the first step."""

    def __init__(self):
        self.of, self.rate = {}, 0.5


def test_tensors_in_a_plain_object_of_the_models_are_named():
    engine = trained()
    engine.module.allocator = Averages()
    seen = Bystanders(made(engine.module), engine)
    engine.module.allocator.rate = 0.25
    assert seen.changed() == []
    engine.module.allocator.of["weight"] = torch.ones(3)
    assert seen.changed() == ["tensors of 'allocator' of a Sequential"]


def test_an_object_to_which_no_weak_reference_can_be_made_is_passed_over():
    class Shape(tuple):  # noqa: SLOT001 - as scripts have it
        """A tuple of a script's own, which can have attributes."""

    engine = trained()
    engine.module.shape = Shape((2, 3))
    engine.module.shape.names = ["rows", "columns"]
    assert Bystanders(made(engine.module), engine).changed() == []


def test_a_hidden_state_that_comes_back_is_not_named():
    engine = trained()
    engine.module.insert(0, Counting())
    engine.module[0].hidden, engine.module[0].each = torch.zeros(3), [torch.zeros(3)]
    seen = Bystanders(made(engine.module), engine)
    engine.module[0].hidden = torch.ones(3)
    engine.module[0].each[0].add_(1)
    assert seen.changed() == []


def test_a_long_history_of_an_optimizer_is_named():
    class Clipping(torch.optim.SGD):
        def __init__(self, weights):
            super().__init__(weights, lr=0.1)
            self.norms, self.few = [0.0] * 1000, []

        def step(self, closure=None):
            self.norms.append(1.0)
            self.few.append(1.0)
            super().step(closure)

    engine = trained()
    engine.optimizer = Clipping(engine.module.parameters())
    seen = Bystanders(made(engine.module), engine)
    update(engine)
    (name,) = seen.changed()
    assert name.startswith("'norms' of a Clipping")


class Balanced(nn.Module):
    """A loss without weights that divides its terms by running means."""

    def __init__(self):
        super().__init__()
        self.mean, self.limit = 1.0, 3.0

    def forward(self, loss):
        self.mean = 0.9 * self.mean + 0.1 * float(loss)
        return loss / self.mean


def test_values_of_another_module_that_change_are_named_unless_it_is_handed_over():
    engine, loss = trained(), Balanced()
    seen = Bystanders(made(engine.module, loss), engine)
    handed = Bystanders(made(engine.module, loss), engine, [loss])
    assert seen.changed() == []
    loss(torch.ones(()) * 3)
    assert seen.changed() == ["values in attributes of a Balanced"]
    assert handed.changed() == []
