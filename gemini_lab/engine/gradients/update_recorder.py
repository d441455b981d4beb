"""Keeps what peers need to make an optimizer's step again: its gradients, and a few numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self

import torch

from gemini_lab.engine.contract import StateDict, StateView
from gemini_lab.engine.frameworks.framework import Framework
from gemini_lab.engine.frameworks.optimizer_state import local_part
from gemini_lab.engine.frameworks.payload_blocks import WEIGHT, FlatRun
from gemini_lab.engine.frameworks.stepping import uncompiled
from gemini_lab.engine.frameworks.zero_updates import narrowed
from gemini_lab.errors import UnsupportedError
from gemini_lab.memory.room import Room
from gemini_lab.memory.slab_form import Bytes
from gemini_lab.shard.codec import decode_framed, encode_framed
from gemini_lab.shard.layout import DTYPE_BYTES, ShardLayout, lay_out
from gemini_lab.units import KIB

TORCH_KINDS: Final[Mapping[str, type[torch.optim.Optimizer]]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
}
LIBRARY_KINDS: Final = ("DeepSpeedCPUAdam", "FusedAdam")
"""DeepSpeed's, whose library for CPUs remembers the steps that it went through."""
_MODES: Final = ("adam_w_mode", "fp32_optimizer_states")
"""What such an optimizer is made with, by the names that it keeps it under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One step of one tensor of weights, without the gradient's own elements."""

    # The optimizer's large tensors by its names for them, the weights among them.
    tensors: Mapping[str, FlatRun]
    # Which of them there were before the step: an optimizer makes its own in its first.
    present: tuple[str, ...]
    gradient: FlatRun  # as the optimizer got it, or in the narrower type in which it was reduced
    scalars: StateView  # what it kept beside them before the step, such as the count of steps
    options: StateView  # of its parameter group, in this step
    scale: float = 1.0  # by what the optimizer got a narrower one multiplied


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One step of an optimizer, as plain data."""

    kind: str
    modes: StateView  # what it was made with, where that is not an option
    threads: int  # how many compute it
    updates: Sequence[Update]  # in the order in which they were made
    powers_since: int  # of a library's: the first step of those taken without a gap before this one
    small: bytes  # the small state of the version that it led to
    small_room_bytes: int  # room for that in the shard's payload, which begins with it

    def encode(self) -> bytes:
        """Return the step as bytes, which tell their own length."""
        return encode_framed(asdict(self))

    @classmethod
    def decode(cls, data: Bytes) -> Self:
        """Decode what `encode` gave, from the start of `data`.

        Raises:
            IntegrityError: It cannot be read.
        """
        values = decode_framed(data.data)
        return cls(**values | {"updates": [_update(one) for one in values["updates"]]})


def _update(values: StateView) -> Update:
    tensors = {name: FlatRun(**run) for name, run in values["tensors"].items()}
    return Update(**{**values, "tensors": tensors, "gradient": FlatRun(**values["gradient"])})


def modes_of(optimizer: torch.optim.Optimizer) -> StateDict:
    """Return the optimizer's arguments that are no options of its groups."""
    return {name: getattr(optimizer, name) for name in _MODES if hasattr(optimizer, name)}


def require_repeatable(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer whose steps no other machine repeats to the bit."""
    kind = type(optimizer)
    is_torch = TORCH_KINDS.get(kind.__name__) is kind
    is_library = kind.__name__ in LIBRARY_KINDS and kind.__module__.startswith("deepspeed.")
    if not (is_torch or is_library):
        raise UnsupportedError(
            f'"replicate": "gradients" has peers make the steps of {kind.__module__}.'
            f"{kind.__qualname__} again, and only torch's own {', '.join(TORCH_KINDS)} and "
            f"DeepSpeed's {' and '.join(LIBRARY_KINDS)} are known to come out the same; use one of "
            'these, or leave it out: "replicate": "copies" is for any optimizer'
        )
    on = {weight.device.type for group in optimizer.param_groups for weight in group["params"]}
    if on - {"cpu"}:
        raise UnsupportedError(
            f'"replicate": "gradients" has CPUs make an optimizer\'s steps again, and this one '
            f"computes on {', '.join(sorted(on))}, whose last bits are others; leave it out: "
            '"replicate": "copies" is for any device'
        )


_UPDATE_BYTES: Final = 2 * KIB
"""Room for what is said of one update, its gradient not counted."""
_STEP_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A tensor of weights whose updates are recorded."""

    parameter: torch.Tensor
    # Where it and what is kept for it lie in the shard's payload, by name.
    tensors: Mapping[str, FlatRun]
    gradient: FlatRun  # where its gradient lies in the difference


class UpdateRecorder:
    """Records one rank's steps, on the thread that makes them.

    A difference lies in its room as it travels: first the step, then gradients. It is that of the
    newest step, and stays true until the next one begins.

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
        optimizer.register_step_pre_hook(uncompiled(self._see))

    def take(self, version: int, small: bytes) -> Bytes | None:
        """Return the step that made `version`; `None` if not exactly one did."""
        is_whole = self._is_whole and self._of == version - 1
        if not (self.is_on and is_whole and len(self._updates) == len(self._all)):
            return None
        optimizer = self._framework.optimizer
        encoded = RecordedStep(
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
        self.is_on = False
        self.room.close()

    def _see(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
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
        self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor, options: StateView
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
        state: StateView = optimizer.state.get(parameter, {})
        # Now: what follows may change the gradient in place, or clear it.
        one.gradient.of(self.room.data).copy_(sent)
        self._updates[number] = Update(
            tensors=one.tensors,
            present=tuple(name for name in one.tensors if name in state),
            gradient=one.gradient,
            scale=scale,
            scalars=_copied({k: v for k, v in state.items() if k not in one.tensors}),
            options=options,
        )


def _copied(values: StateView) -> StateDict:
    """Return the values as they are now: a step, or a schedule, writes to tensors among them."""
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in values.items()}


def _laid_out(
    recorded: Sequence[tuple[torch.Tensor, Mapping[str, FlatRun]]],
    step_bytes: int,
    narrow: torch.dtype | None,
) -> list[Recorded]:
    weights = [tensors[WEIGHT] for _, tensors in recorded]
    own = None if narrow is None else str(narrow).removeprefix("torch.")
    forms = [("", own or weight.dtype, (weight.numel,)) for weight in weights]
    specs = lay_out(forms, start_bytes=step_bytes)
    return [
        Recorded(
            parameter=parameter,
            tensors=tensors,
            gradient=FlatRun(offset_bytes=spec.offset_bytes, numel=weight.numel, dtype=spec.dtype),
        )
        for (parameter, tensors), weight, spec in zip(recorded, weights, specs, strict=True)
    ]


def _end(run: FlatRun) -> int:
    return run.offset_bytes + run.numel * DTYPE_BYTES[run.dtype]
