"""Weights that change without an update of what is protected are said, and nothing else is."""

import warnings

import pytest
import torch
from torch import nn

from gemini_lab.engine.frameworks.stepping import (
    COMPARED_EVERY,
    ENDS_AFTER,
    SAID_AFTER,
    UpdateWatch,
)
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.protection import protect
from gemini_lab.errors import UnsupportedError


class Training:
    """A model whose optimizer is watched."""

    def __init__(self, *, ends=True, optimizer=torch.optim.SGD):
        self.model = nn.Linear(3, 1)
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        engine = TorchEngine(self.model, self.optimizer)
        self.said = []
        self.watch = UpdateWatch(
            [self.optimizer],
            self.model.parameters(),
            lambda: engine.global_steps,
            emit=self.said.append,
            ends=ends,
        )
        engine.before_update, engine.after_update = self.watch.begin_update, self.watch.end_update

    def backward(self):
        self.model(torch.ones(2, 3)).square().mean().backward()

    def passes(self, count, each):
        for number in range(count):
            self.watch.reach_top()
            self.backward()
            each(number)
        self.watch.reach_top()


@pytest.fixture(autouse=True)
def _loud():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def training():
    made = Training()
    yield made
    made.watch.close()


def test_an_optimizer_that_is_made_anew_is_said_and_ends_a_loop_that_would_never_end(training):
    training.passes(2, lambda _: training.optimizer.step())
    other = torch.optim.Adam(training.model.parameters())
    training.passes(SAID_AFTER - 1, lambda _: other.step())
    assert not training.said
    with pytest.warns(UserWarning, match="another Adam and not by the SGD"):
        training.passes(1, lambda _: other.step())
    (event,) = training.said
    assert (event.version, event.by, event.optimizer) == (2, "another Adam", "SGD")
    with pytest.raises(UnsupportedError, match="the newest version is 2") as error:
        training.passes(1000, lambda _: other.step())
    assert f"{ENDS_AFTER} times in a row" in str(error.value)
    assert len(training.said) == 1


def by_hand(training):
    with torch.no_grad():
        for weight in training.model.parameters():
            weight.sub_(0.1 * weight.grad)


def test_weights_that_the_script_writes_itself_are_said(training):
    training.passes(SAID_AFTER, lambda _: by_hand(training))
    assert [one.by for one in training.said] == ["the script itself"]


def past_torch(training):
    """Write as a CUDA graph does: torch counts nothing of it."""
    for weight in training.model.parameters():
        weight.data.sub_(0.1 * weight.grad)


def test_writes_that_torch_does_not_count_are_found_by_a_comparison_and_end_the_loop(training):
    training.passes(5, lambda _: training.optimizer.step())
    with pytest.warns(UserWarning, match="CUDA graph made before"):
        training.passes(3 * COMPARED_EVERY, lambda _: past_torch(training))
    assert [one.version for one in training.said] == [5]
    with pytest.raises(UnsupportedError, match="the newest version is 5"):
        training.passes(1000, lambda _: past_torch(training))
    assert len(training.said) == 1


def test_weights_that_stay_as_they_are_through_many_passes_are_compared_without_a_word(training):
    with torch.no_grad():
        training.model.weight[0, 1] = torch.nan
    training.passes(20 * COMPARED_EVERY, lambda _: None)
    assert not training.said


def test_by_a_setting_it_is_only_said():
    training = Training(ends=False)
    training.passes(3 * ENDS_AFTER, lambda _: by_hand(training))
    assert len(training.said) == 1
    training.watch.close()


def test_gradients_are_accumulated_over_many_passes_without_a_word(training):
    training.passes(200, lambda number: training.optimizer.step() if number % 50 == 49 else None)
    assert not training.said


def test_a_scaler_may_leave_updates_out(training):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)

    def update(_):
        scaler.scale(training.model(torch.full((2, 3), 1e30)).square().mean()).backward()
        scaler.step(training.optimizer)
        scaler.update()

    training.passes(50, update)
    assert not training.said


def test_another_models_optimizer_may_make_any_number_of_updates_between(training):
    critic = nn.Linear(3, 1)
    of_critic = torch.optim.Adam(critic.parameters())

    def update(number):
        critic(torch.ones(2, 3)).sum().backward()
        of_critic.step()
        if number % 40 == 39:
            training.optimizer.step()

    training.passes(120, update)
    assert not training.said


def test_such_a_loop_ends_without_a_lab_as_well():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protected = protect(model=model, optimizer=optimizer)
    passes = []

    def train():
        trains = optimizer
        for step in protected.steps(10):
            if step == 5:
                trains = torch.optim.Adam(model.parameters())
            model(torch.ones(2, 3)).square().mean().backward()
            trains.step()
            passes.append(step)

    with pytest.raises(UnsupportedError, match="would never end"):
        train()
    assert len(passes) == 5 + ENDS_AFTER


def test_two_optimizers_may_train_the_same_weights_in_turn(training):
    second = torch.optim.Adam(training.model.parameters())
    training.passes(90, lambda n: (training.optimizer if n % 3 == 2 else second).step())
    assert not training.said


def test_an_optimizer_inside_of_the_protected_one_or_around_it_is_a_part_of_it():
    class Twice(torch.optim.SGD):
        def __init__(self, weights, lr):
            super().__init__(weights, lr=lr)
            self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=lr)

        def step(self, closure=None):
            self.inner.step()
            return super().step(closure)

    class Around(torch.optim.SGD):
        def step(self, closure=None):
            return training.optimizer.step(closure)

    training = Training(optimizer=Twice)
    around = Around(training.model.parameters(), lr=0.1)
    training.passes(2 * ENDS_AFTER, lambda _: training.optimizer.step())
    training.passes(2 * ENDS_AFTER, lambda _: around.step())
    training.watch.close()
    assert not training.said


def test_a_search_for_a_rate_before_training_is_no_fault(training):
    other = torch.optim.Adam(training.model.parameters())
    for _ in range(2 * ENDS_AFTER):
        training.backward()
        other.step()
    training.passes(2, lambda _: training.optimizer.step())
    assert not training.said
