"""Makes an optimizer's steps again, one after another, on the payload of a shard; see `updates`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gemini_lab.engine.frameworks.blocks import WEIGHT
from gemini_lab.engine.frameworks.zero_updates import widened
from gemini_lab.engine.gradients.update_recorder import LIBRARY_KINDS, TORCH_KINDS, Step, Update
from gemini_lab.memory.slab_form import Bytes


class Repeater:
    """Makes the steps of one shard's optimizer again.

    A library's optimizer lives as long as this does, for it remembers the steps that it took.
    """

    def __init__(self) -> None:
        self._library: _Library | None = None

    def repeat(self, step: Step, payload: Bytes, difference: Bytes) -> None:
        """Turn the version before a step into the version after it.

        Args:
            step: What was done.
            payload: The version before; it becomes the one after.
            difference: Has the gradients.
        """
        if torch.get_num_threads() != step.threads:
            torch.set_num_threads(step.threads)
        optimizer = self._optimizer(step)
        for update in step.updates:
            _apply(optimizer, update, payload, difference)
        if self._library is not None:
            self._library.note(step)
        small = np.frombuffer(step.small, np.uint8)
        payload[: len(small)] = small
        payload[len(small) : step.small_room_bytes] = 0

    def _optimizer(self, step: Step) -> torch.optim.Optimizer:
        """One of the step's kind, in whose place the options and state of each update are put."""
        if step.kind not in LIBRARY_KINDS:
            made: Any = TORCH_KINDS[step.kind]
            optimizer: torch.optim.Optimizer = made([torch.zeros(1)])
            return optimizer
        if self._library is None or not self._library.is_of(step):
            self._library = _Library(step)
        self._library.catch_up(step)
        return self._library.base


def _apply(
    optimizer: torch.optim.Optimizer, update: Update, payload: Bytes, difference: Bytes
) -> None:
    """One update, by the optimizer's own `step`."""
    tensors = {name: run.of(payload) for name, run in update.tensors.items()}
    weight = tensors.pop(WEIGHT).requires_grad_()
    weight.grad = widened(update.gradient.of(difference), weight.dtype, update.scale)
    there = {name: tensors[name] for name in update.present if name != WEIGHT}
    optimizer.param_groups = [{**update.options, "params": [weight]}]
    optimizer.state.clear()
    if there or update.scalars:
        optimizer.state[weight] = {**update.scalars, **there}
    optimizer.step()
    for name, kept in tensors.items():
        made = optimizer.state[weight].get(name)
        if made is not None and made is not kept:  # its first step made it
            kept.copy_(made)
    optimizer.state.clear()


class _Library:
    """An optimizer of DeepSpeed's whose library has gone through the steps that the owner's has."""

    def __init__(self, step: Step) -> None:
        from deepspeed.ops import adam  # noqa: PLC0415  (heavy, and only where it is used)

        made: Any = getattr(adam, step.kind)
        modes = dict(step.modes)
        if step.kind == "DeepSpeedCPUAdam":
            modes["adamw_mode"] = modes.pop("adam_w_mode")
        self.base: torch.optim.Optimizer = made([torch.zeros(1)], **modes)
        self._made_as = (step.kind, dict(step.modes))
        self._next: int | None = None

    def is_of(self, step: Step) -> bool:
        """Whether it makes such steps."""
        return self._made_as == (step.kind, dict(step.modes))

    def catch_up(self, step: Step) -> None:
        """Take the library through the steps before this one that it lacks."""
        from gemini_lab.engine.frameworks.zero_updates import BetaPowers  # noqa: PLC0415  (imports DeepSpeed)

        if _number(step) != self._next:
            stood = _StandIns(self.base, step.updates)
            BetaPowers(stood).restore(step.powers_since)
            self.base.state.clear()

    def note(self, step: Step) -> None:
        """A step was made."""
        self._next = _number(step) + 1


class _StandIns:
    """Tensors of one element in the place of a step's: see `beta_powers.Stepped`."""

    def __init__(self, base: torch.optim.Optimizer, updates: Sequence[Update]) -> None:
        self.base = base
        self._options = [update.options for update in updates]
        self._tensors = [torch.zeros(1) for _ in updates]
        base.state.clear()
        for tensor, update in zip(self._tensors, updates, strict=True):
            base.state[tensor] = {"step": update.scalars.get("step", 0)}

    def masters(self) -> Sequence[torch.Tensor]:
        """One for each update."""
        return self._tensors

    def group_of(self, partition: int) -> Mapping[str, Any]:
        """Its options."""
        return self._options[partition]


def _number(step: Step) -> int:
    """Which step of the optimizer's it is, by its own count."""
    return 1 + max(int(update.scalars.get("step", 0)) for update in step.updates)


def rehearse(kind: str) -> None:
    """Import, and go through once, what a step of such an optimizer needs: seconds, at first."""
    weight = torch.zeros(1)
    weight.grad = torch.zeros(1)
    if kind in LIBRARY_KINDS:
        from deepspeed.ops import adam  # noqa: PLC0415  (heavy, and only where it is used)

        made: Any = getattr(adam, kind)
    else:
        made = TORCH_KINDS[kind]
    made([weight]).step()
