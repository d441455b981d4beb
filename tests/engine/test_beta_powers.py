"""DeepSpeed's Adam for CPUs goes on with the powers that it would have had."""

import numpy as np
import pytest
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam

from gemini_lab.engine.frameworks.zero_updates import BetaPowers


class Library:
    """What `IncrementStep` in cpu_adam.h does, in floats."""

    def __init__(self):
        self.betas, self.powers, self.step = (0.9, 0.999), [np.float32(1)] * 2, 0
        self.used = []

    def adam_update(self, _handle, step, _rate, *rest):
        betas = rest[:2]
        if betas == self.betas and step == self.step + 1:
            self.powers = [
                np.float32(p * np.float32(b)) for p, b in zip(self.powers, betas, strict=True)
            ]
        elif betas != self.betas or step != self.step:
            self.powers = [np.float32(np.float64(np.float32(b)) ** step) for b in betas]
        self.betas, self.step = betas, step
        self.used.append(tuple(map(float, self.powers)))

    def destroy_adam(self, _handle):
        pass


class Adam(DeepSpeedCPUAdam):
    """Without a compiler."""

    def __init__(self, weights):
        options = {
            "lr": 0.1,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 0.0,
            "amsgrad": False,
        }
        torch.optim.Optimizer.__init__(self, weights, options | {"bias_correction": True})
        self.opt_id, self.ds_opt_adam, self.fp32_optimizer_states = 0, Library(), True


class Parts:
    """As a ZeRO optimizer with two partitions."""

    def __init__(self):
        self.weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        self.base = Adam([{"params": [weight]} for weight in self.weights])
        self.powers = BetaPowers(self)
        self.powers.capture()

    def masters(self):
        return self.weights

    def group_of(self, partition):
        return self.base.param_groups[partition]

    def take_steps(self, numbers, betas=lambda _: (0.9, 0.999)):
        """The powers that each of them used, and what a version of the last one has."""
        library, captured = self.base.ds_opt_adam, None
        library.used.clear()
        for number in numbers:
            for weight in self.weights:
                weight.grad = torch.ones(3)
            self.base.step()
            for group in self.base.param_groups:
                group["betas"] = betas(number + 1)
            captured = self.powers.capture()
        return list(library.used), captured

    def put(self, steps, since, betas=(0.9, 0.999)):
        for weight in self.weights:
            self.base.state[weight] = {"step": steps} | {
                name: torch.zeros(3) for name in ("exp_avg", "exp_avg_sq")
            }
        for group in self.base.param_groups:
            group["betas"] = betas
        self.powers.restore(since)


@pytest.mark.parametrize("last", [1, 2, 24, 300])
def test_the_steps_after_a_recovery_use_the_powers_of_a_run_that_went_on(last):
    whole, restored = Parts(), Parts()
    _, since = whole.take_steps(range(1, last + 1))
    restored.put(last, since)
    following = range(last + 1, last + 40)
    assert restored.take_steps(following) == whole.take_steps(following)


def test_without_going_through_the_earlier_steps_they_would_differ():
    whole, fresh = Parts(), Parts()
    whole.take_steps(range(1, 25))
    fresh.put(24, since=25)
    following = range(25, 60)
    assert fresh.take_steps(following)[0] != whole.take_steps(following)[0]


def test_betas_that_change_on_the_way_begin_anew_there():
    def cycled(step):
        return (0.9, 0.999) if step < 11 else (0.85, 0.999)

    whole, restored = Parts(), Parts()
    _, since = whole.take_steps(range(1, 25), cycled)
    assert since == 11
    restored.put(24, since, betas=cycled(25))
    following = range(25, 60)
    assert restored.take_steps(following, cycled) == whole.take_steps(following, cycled)


def test_long_runs_skip_the_steps_whose_powers_count_no_more():
    restored = Parts()
    restored.put(10_000_000, since=1)
    library = restored.base.ds_opt_adam
    assert library.step == 10_000_000
    assert len(library.used) < 2 * 25_000
    assert max(library.powers) < 2**-30
