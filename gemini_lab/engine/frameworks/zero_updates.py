"""The powers of its betas that DeepSpeed's Adam for CPUs keeps in its library, out of sight.

It multiplies them up step by step, but computes them anew after a gap in the steps or a change of
the betas. With beta2 = 0.999 the two differ in the last bit in five steps of six, and with them the
weights. So whoever begins at a later step must go through the earlier ones, on a tensor of one
element (`IncrementStep` in DeepSpeed's cpu_adam.h).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from types import SimpleNamespace
from typing import Any, Final, Protocol

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.runtime.base_optimizer import ZeROOptimizer

from gemini_lab.engine.contract import StateView


def narrowed(gradient: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor | None:
    """Return a flat gradient in a narrower type; `None` where `widened` would give other bits."""
    if gradient.dtype == dtype:
        return gradient
    narrow = (gradient / scale).to(dtype)
    again = widened(narrow, gradient.dtype, scale)
    return narrow if torch.equal(again.view(torch.int32), gradient.view(torch.int32)) else None


def widened(narrow: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """Return what the optimizer gets of a flat gradient that was reduced in a narrower type."""
    return narrow if narrow.dtype == dtype else narrow.to(dtype).mul_(scale)


class ScaleWatch:
    """By what a ZeRO optimizer multiplies gradients before its updates.

    DeepSpeed's own function is asked what it makes of a one, where it does that to the gradients.
    One that cannot be asked so gives no number: nothing is narrowed then, versions go in full.
    """

    def __init__(self, zero: ZeROOptimizer) -> None:
        self.scale = 1.0  # of the gradients that were unscaled last
        self._zero = zero
        self._inner = zero.unscale_and_clip_grads
        zero.unscale_and_clip_grads = self._unscale

    def _unscale(self, gradients: list[torch.Tensor] | int, total_norm: torch.Tensor) -> None:
        try:
            self.scale = self._of_one(gradients, total_norm)
        except (AttributeError, TypeError):  # another version of DeepSpeed's
            self.scale = nan
        self._inner(gradients, total_norm)

    def _of_one(self, gradients: list[torch.Tensor] | int, total_norm: torch.Tensor) -> float:
        zero, one = self._zero, torch.ones(1)
        stand_in = SimpleNamespace(
            loss_scale=zero.loss_scale, clip_grad=zero.clip_grad, device=one.device
        )
        if not isinstance(gradients, list):  # stage 3 says which sub-group
            stand_in.fp32_partitioned_groups_flat = {gradients: SimpleNamespace(grad=one)}
        type(zero).unscale_and_clip_grads(
            stand_in, [one] if isinstance(gradients, list) else gradients, total_norm
        )
        return float(one)


# A float has 24 bits of mantissa; the others are to be on the safe side.
_LOST_BITS: Final = 30
"""A power below 2 to the minus this is lost where it is taken from a float of 1."""
Update = Callable[[int, StateView], object]
"""Has the library take a step of this number with a group's options."""


class SteppedTensors(Protocol):
    """Tensors that an optimizer's library steps: see `zero.Partitions`."""

    base: torch.optim.Optimizer

    def masters(self) -> Sequence[torch.Tensor]: ...

    def group_of(self, partition: int) -> StateView: ...


@dataclass
class OptimizerGroups:
    """An optimizer that steps weights themselves: the first of each group stands for it."""

    base: torch.optim.Optimizer

    def masters(self) -> Sequence[torch.Tensor]:
        return [group["params"][0] for group in self.base.param_groups]

    def group_of(self, partition: int) -> StateView:
        return self.base.param_groups[partition]


class BetaPowers:
    """Return the steps that the library went through; none for other optimizers.

    Every start begins with a gap, so that what it went through is known from there.
    """

    def __init__(self, partitions: SteppedTensors) -> None:
        self._partitions = partitions
        self._update = _update_of(partitions)
        self._betas = self._all_betas()
        self._since = self._steps() + 1  # the first step since the last gap
        self._leave_a_gap()

    def capture(self) -> int:
        """Return the first of the steps that were taken without a gap; called after each update."""
        betas = self._all_betas()
        if betas != self._betas:
            self._betas, self._since = betas, self._steps() + 1
        return self._since

    def restore(self, since: int) -> None:
        """Go through the steps again; groups and counts of steps were put back before."""
        self._betas, self._since = self._all_betas(), since
        self._leave_a_gap()
        if self._update is not None:
            for step in _steps_that_count(since, self._steps(), self._betas):
                for group in self._groups():
                    self._update(step, group)

    def _leave_a_gap(self) -> None:
        """Recompute the powers at the next step, because its betas differ from these."""
        if self._update is not None:
            for group in self._groups():
                # Any betas that differ from the group's do; between it and 1 they are always valid.
                halfway = tuple((1 + beta) / 2 for beta in group["betas"])
                self._update(1, {**group, "betas": halfway})

    def _groups(self) -> Iterator[StateView]:
        return map(self._partitions.group_of, range(len(self._partitions.masters())))

    def _all_betas(self) -> list[tuple[float, float]]:
        return [] if self._update is None else [tuple(group["betas"]) for group in self._groups()]

    def _steps(self) -> int:
        """Return steps that the optimizer counts; it leaves out those that overflow."""
        states: Mapping[torch.Tensor, StateView] = self._partitions.base.state
        return max(
            (int(states.get(one, {}).get("step", 0)) for one in self._partitions.masters()),
            default=0,
        )


def _steps_that_count(since: int, last: int, betas: list[tuple[float, float]]) -> Iterator[int]:
    """From `since` on, until the powers are too small to count; and the last one."""
    largest = max((beta for pair in betas for beta in pair), default=0.0)
    counts = math.ceil(-_LOST_BITS / math.log2(largest)) if 0 < largest < 1 else 1
    yield from range(since, min(last, counts) + 1)
    if since <= last and counts < last:
        yield last


def _update_of(partitions: SteppedTensors) -> Update | None:
    """Return the library's update; None for an optimizer without such a library."""
    base: Any = partitions.base
    if isinstance(base, DeepSpeedCPUAdam):
        return partial(_cpu_adam, base)
    on_cpu = all(one.device.type == "cpu" for one in partitions.masters())
    return partial(_fused_adam, base) if isinstance(base, FusedAdam) and on_cpu else None


def _cpu_adam(base: DeepSpeedCPUAdam, step: int, group: StateView) -> None:
    base.ds_opt_adam.adam_update(
        base.opt_id,
        step,
        group["lr"],
        *group["betas"],
        group["eps"],
        group["weight_decay"],
        group["bias_correction"],
        *torch.zeros(4, 1).unbind(),
    )


def _fused_adam(base: FusedAdam, step: int, group: StateView) -> None:
    base.multi_tensor_adam(
        1,
        # FusedAdam's kernel takes a buffer for overflows, which only the optimizer has.
        base._dummy_overflow_buf,  # noqa: SLF001
        [[one] for one in torch.zeros(4, 1).unbind()],
        group["lr"],
        *group["betas"],
        group["eps"],
        step,
        base.adam_w_mode,
        int(group["bias_correction"]),
        group["weight_decay"],
    )
