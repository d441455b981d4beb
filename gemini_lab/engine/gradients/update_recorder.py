"""Keeps what peers need to make an optimizer's step again: its gradients, and a few numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from gemini_lab.engine.frameworks.blocks import WEIGHT, Run
from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.narrow_gradients import narrowed
from gemini_lab.engine.frameworks.optimizer_state import local_part
from gemini_lab.engine.gradients.updates import (
    LIBRARY_KINDS,
    Step,
    Update,
    modes_of,
    require_repeatable,
)
from gemini_lab.memory.room import Room
from gemini_lab.memory.slab_form import Bytes
from gemini_lab.shard.layout import DTYPE_BYTES, ShardLayout, lay_out
from gemini_lab.units import KIB

_UPDATE_BYTES: Final = 2 * KIB
"""Room for what is said of one update, its gradient not counted."""
_STEP_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A tensor of weights whose updates are recorded.

    Attributes:
        parameter: It, as the optimizer has it.
        tensors: Where it and what is kept for it lie in the shard's payload, by name.
        gradient: Where its gradient lies in the difference.
    """

    parameter: torch.Tensor
    tensors: Mapping[str, Run]
    gradient: Run


class UpdateRecorder:
    """Records one rank's steps, on the thread that makes them.

    A difference lies in its room as it travels: first the step, then gradients. It is that of the
    newest step, and stays true until the next one begins.

    Args:
        framework: Whose optimizer.
        layout: Of this rank's payload.
        small_bytes: How large the small state is about.
        chunk_bytes: Of the room.

    Attributes:
        room: What travels; its size stays the same.
        kind: The class of the optimizer.
        is_on: Whether steps are recorded.

    Raises:
        UnsupportedError: Nobody could make this optimizer's steps again; says what to do instead.
        CapacityError: Memory is short.
    """

    def __init__(
        self, framework: Framework, layout: ShardLayout, *, small_bytes: int, chunk_bytes: int
    ) -> None:
        optimizer = framework.optimizer
        require_repeatable(optimizer)
        self._framework, self._layout = framework, layout
        recorded = framework.updated_tensors(layout)
        step_bytes = 2 * small_bytes + _STEP_BYTES + _UPDATE_BYTES * len(recorded)
        dtype, self._scale = framework.watch_gradients() or (None, lambda: 1.0)
        self._all = _laid_out(recorded, step_bytes, dtype)
        self._by_id = {id(one.parameter): number for number, one in enumerate(self._all)}
        ends = [_end(one.gradient) for one in self._all]
        self.room = Room.create(max(ends, default=step_bytes), chunk_bytes=chunk_bytes)
        self._step_bytes = step_bytes
        self._updates: dict[int, Update] = {}
        self._of: int | None = None  # the version that the newest step began from
        self._is_whole = True
        self._threads = 1
        self._powers_since = 0
        self.kind = type(optimizer).__name__
        self.is_on = True
        optimizer.register_step_pre_hook(self._see)

    def take(self, version: int, small: bytes) -> Bytes | None:
        """What made `version` of the one before; `None` where not just one step did.

        Args:
            version: It.
            small: Its small state.
        """
        is_whole = self._is_whole and self._of == version - 1
        if not (self.is_on and is_whole and len(self._updates) == len(self._all)):
            return None
        optimizer = self._framework.optimizer
        encoded = Step(
            kind=self.kind,
            modes=modes_of(optimizer),
            threads=self._threads,
            updates=tuple(self._updates.values()),
            powers_since=self._powers_since,
            small=small,
            small_room_bytes=self._layout.small_capacity_bytes,
        ).encode()
        if len(encoded) > self._step_bytes:
            return None
        self.room.data[: len(encoded)] = memoryview(encoded)
        return self.room.data

    def close(self) -> None:
        """Record no more, and give the room back."""
        self.is_on = False
        self.room.close()

    def _see(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """A step begins."""
        if not self.is_on:
            return
        version = int(self._framework.engine.global_steps)
        if version != self._of:
            self._of, self._is_whole, self._updates = version, True, {}
            self._threads = torch.get_num_threads()
            if self.kind in LIBRARY_KINDS:
                self._powers_since = self._framework.powers_since()
        for group in optimizer.param_groups:
            options = _copied({key: value for key, value in group.items() if key != "params"})
            for parameter in group["params"]:
                if parameter.grad is not None and local_part(parameter).numel():
                    self._record(optimizer, parameter, options)

    def _record(
        self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor, options: Mapping[str, Any]
    ) -> None:
        number = self._by_id.get(id(parameter))
        if number is None or parameter.grad is None or number in self._updates:
            self._is_whole = False  # what is not in the payload, or a second step
            return
        one, gradient = self._all[number], local_part(parameter.grad)
        if str(gradient.dtype) != f"torch.{one.tensors[WEIGHT].dtype}":
            self._is_whole = False
            return
        scale = self._scale()
        sent = narrowed(gradient.reshape(-1), getattr(torch, one.gradient.dtype), scale)
        if sent is None:
            self._is_whole = False
            return
        state: Mapping[str, Any] = optimizer.state.get(parameter, {})
        one.gradient.of(self.room.data).copy_(sent)
        self._updates[number] = Update(
            tensors=one.tensors,
            present=tuple(name for name in one.tensors if name in state),
            gradient=one.gradient,
            scale=scale,
            scalars=_copied({k: v for k, v in state.items() if k not in one.tensors}),
            options=options,
        )


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as they are now: a step, or a schedule, writes to tensors among them."""
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in values.items()}


def _laid_out(
    recorded: Sequence[tuple[torch.Tensor, Mapping[str, Run]]],
    step_bytes: int,
    narrow: torch.dtype | None,
) -> list[Recorded]:
    """Room for the gradient of each, of the type of the weights or a narrower one."""
    weights = [tensors[WEIGHT] for _, tensors in recorded]
    own = None if narrow is None else str(narrow).removeprefix("torch.")
    forms = [("", own or weight.dtype, (weight.numel,)) for weight in weights]
    specs = lay_out(forms, start_bytes=step_bytes)
    return [
        Recorded(
            parameter=parameter,
            tensors=tensors,
            gradient=Run(offset_bytes=spec.offset_bytes, numel=weight.numel, dtype=spec.dtype),
        )
        for (parameter, tensors), weight, spec in zip(recorded, weights, specs, strict=True)
    ]


def _end(run: Run) -> int:
    return run.offset_bytes + run.numel * DTYPE_BYTES[run.dtype]
