"""What an optimizer has beside tensors goes back into the very things that a script may hold."""

import random
from collections import OrderedDict, deque

import numpy as np
import pytest
import torch

from gemini_lab.engine.frameworks.optimizer_state import (
    OptimizerState,
    group_options,
    own_values,
    put_group_options,
    put_own_values,
    refilled,
)
from gemini_lab.errors import ConfigError
from gemini_lab.shard.codec import decode, encode


def test_the_tensor_of_a_learning_rate_stays_the_one_that_the_script_changes():
    rate = torch.tensor(0.1)
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=rate)
    kept = encode(group_options(optimizer))
    rate.fill_(0.5)
    put_group_options(optimizer, decode(kept))
    assert rate == torch.tensor(0.1)
    rate.fill_(0.7)
    assert optimizer.param_groups[0]["lr"] == torch.tensor(0.7)


def test_a_number_is_replaced_and_so_is_a_tensor_of_another_form():
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=torch.tensor(0.1))
    (options,) = group_options(optimizer)
    put_group_options(optimizer, [{**options, "lr": torch.ones(1), "momentum": 0.5}])
    (group,) = optimizer.param_groups
    assert group["lr"].shape == (1,)
    assert group["momentum"] == 0.5


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ([], [1, 2]),
        ([1, [2], 3], [4, [5, 6]]),
        ({"a": [1]}, {"b": 2, "a": [1, 3]}),
        (OrderedDict(a=deque([1], 4)), OrderedDict(a=deque([2, 3], 4))),
    ],
)
def test_containers_are_refilled_and_so_are_those_inside(held, wanted):
    inside = [one for one in (held.values() if isinstance(held, dict) else held) if has_parts(one)]
    assert refilled(held, wanted, set()) is held
    assert encode(held) == encode(wanted)
    now = [*(held.values() if isinstance(held, dict) else held)]
    assert all(any(one is other for other in now) for one in inside)


def test_a_list_that_groups_share_at_first_may_have_come_apart():
    def make():
        weights = [{"params": [torch.zeros(2, requires_grad=True)]} for _ in range(4)]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        scales = [1.0]
        for group in optimizer.param_groups:
            group["scales"] = scales
        return optimizer, scales

    optimizer, _ = make()
    optimizer.param_groups[1]["scales"] = [2.0]
    kept = decode(encode(group_options(optimizer)))
    optimizer, scales = make()
    put_group_options(optimizer, kept)
    assert [group["scales"] for group in optimizer.param_groups] == [[1.0], [2.0], [1.0], [1.0]]
    assert optimizer.param_groups[3]["scales"] is scales


def has_parts(one):
    return isinstance(one, (list, dict, deque))


class Warm(torch.optim.SGD):
    """Somebody's own: it counts for all weights together, in containers of its own, too."""

    def __init__(self, weights):
        super().__init__(weights, lr=0.1)
        self.state["all"] = {"taken": 0, "mean": torch.zeros(3)}
        self.phase, self.counts, self.seen = "warm", {"steps": 0}, [0.5, (1, 2)]
        self.sums, self.ends = np.zeros(2), deque([1], maxlen=2)
        self.history = [0.0] * 2_000

    @torch.no_grad()
    def step(self):
        self.state["all"]["taken"] += 1
        self.state["all"]["mean"] += 1.0
        self.phase = "hot"
        self.counts["steps"] += 1
        self.seen.append(len(self.seen))
        self.sums += 1
        self.ends.append(2)
        super().step()


def warm():
    optimizer = Warm([torch.ones(2, requires_grad=True)])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    return optimizer, OptimizerState(optimizer)


def values_of(optimizer):
    common = {**optimizer.state["all"], "mean": optimizer.state["all"]["mean"].tolist()}
    own = (optimizer.phase, dict(optimizer.counts), [*optimizer.seen])
    return common, *own, optimizer.sums.tolist(), [*optimizer.ends]


def test_what_an_optimizer_counts_for_all_weights_and_in_containers_comes_back():
    optimizer, state = warm()
    list(state.forms())
    for _ in range(3):
        optimizer.step()
    kept, then = encode(state.capture([])), values_of(optimizer)
    optimizer.step()
    other, state = warm()
    state.restore(decode(kept))
    assert values_of(other) == then
    other.step()
    assert values_of(other) == values_of(optimizer)


def test_to_foresee_a_state_changes_nothing_that_an_optimizer_keeps_in_containers():
    optimizer, state = warm()
    before, seen = values_of(optimizer), optimizer.seen
    list(state.forms())
    assert values_of(optimizer) == before
    assert optimizer.seen is seen


def test_a_long_history_and_what_the_optimizer_goes_on_changing_are_not_kept():
    optimizer, _ = warm()
    kept = own_values(optimizer)
    optimizer.step()
    assert "history" not in kept
    assert kept["counts"] == {"steps": 0}


class Clip:
    """A helper of the script's own, with what it has seen."""

    def __init__(self):
        self.norms, self.limit = [], 1.0

    def note(self, norm):
        self.norms.append(norm)
        self.limit = sum(self.norms) / len(self.norms)


class Noisy(torch.optim.SGD):
    """Adds noise from generators of its own, and clips by a helper's history."""

    def __init__(self, weights):
        super().__init__(weights, lr=0.1)
        self.torchs, self.numpys = torch.Generator().manual_seed(1), np.random.default_rng(2)
        self.old, self.pythons = np.random.RandomState(3), random.Random(4)
        self.clip = Clip()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                self.clip.note(float(weight.sum()))
                noise = torch.randn(weight.shape, generator=self.torchs)
                noise *= self.numpys.normal() * self.old.normal() * self.pythons.random()
                weight.add_(noise * self.clip.limit)
        super().step(closure)


def noisy():
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = Noisy([weight])
    return optimizer, OptimizerState(optimizer), weight


def test_generators_and_helpers_in_an_optimizers_attributes_come_back():
    (optimizer, state, weight), (other, again, another) = noisy(), noisy()
    for _ in range(3):
        optimizer.step()
    again.restore(decode(encode(state.capture([]))))
    another.data.copy_(weight.data)
    for one in (optimizer, other):
        one.step()
    assert torch.equal(weight, another)
    assert optimizer.clip.norms == other.clip.norms


def test_to_foresee_a_state_draws_nothing_and_leaves_helpers_alone():
    (optimizer, state, weight), (plain, _, another) = noisy(), noisy()
    list(state.forms())
    for one in (optimizer, plain):
        one.step()
    assert torch.equal(weight, another)
    assert optimizer.clip.norms == plain.clip.norms == [2.0]


class Helper:
    """An object that an optimizer counts in."""

    def __init__(self):
        self.count = 3


def with_attribute(value):
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    optimizer.extra = value
    return optimizer


@pytest.mark.parametrize(
    "value",
    [
        *(Helper(), torch.Generator(), random.Random(1)),
        *(np.random.default_rng(1), np.random.RandomState(1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_what_a_start_has_not_made_yet_are_refused_by_name(value):
    """They would be lost, or their state would stand where the script expects the object."""
    with pytest.raises(ConfigError, match=r"'extra'.*this start has none"):
        put_own_values(with_attribute(None), own_values(with_attribute(value)))
