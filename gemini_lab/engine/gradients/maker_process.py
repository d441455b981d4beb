"""A version maker: makes versions of another rank's shard, of the gradients that its owner sends.

Run as `python -m gemini_lab.engine.gradients.maker_process CHANNEL SLAB ROOM KIND` with descriptors
of the worker's socket, its slab and the room for differences, and the class of the optimizer. It
stands beside its worker, so that neither training's interpreter nor the agent's heartbeats wait for
it, and dies with it. It writes into the buffer of a version that is not whole, and nowhere else.
"""

import mmap
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import torch

from gemini_lab.engine.contract import StateView
from gemini_lab.engine.frameworks.payload_blocks import WEIGHT
from gemini_lab.engine.frameworks.zero_updates import widened
from gemini_lab.engine.gradients.update_recorder import (
    LIBRARY_KINDS,
    TORCH_KINDS,
    RecordedStep,
    Update,
)
from gemini_lab.engine.process_exit import die_with_parent
from gemini_lab.errors import MessageError
from gemini_lab.memory.slab_form import Bytes, chunk_digest, count_chunks
from gemini_lab.recovery.messages import MakerReady, MakeVersion, Message, Refused, VersionMade
from gemini_lab.wire.local import LocalChannel


class Repeater:
    """Makes the steps of one shard's optimizer again.

    A library's optimizer lives as long as this does, for it remembers the steps that it took.
    """

    def __init__(self) -> None:
        self._library: _Library | None = None

    def repeat(self, step: RecordedStep, payload: Bytes, difference: Bytes) -> None:
        """Turn the version before a step into the version after it."""
        # Sums are split by threads, so another number of them gives other last bits.
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

    def _optimizer(self, step: RecordedStep) -> torch.optim.Optimizer:
        """Return an optimizer of the step's kind, for the options and state of each update."""
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
    """Make one update, by the optimizer's own `step`."""
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

    def __init__(self, step: RecordedStep) -> None:
        from deepspeed.ops import adam  # noqa: PLC0415  (heavy, and only where it is used)

        made: Any = getattr(adam, step.kind)
        modes = dict(step.modes)
        if step.kind == "DeepSpeedCPUAdam":
            modes["adamw_mode"] = modes.pop("adam_w_mode")
        self.base: torch.optim.Optimizer = made([torch.zeros(1)], **modes)
        self._made_as = (step.kind, dict(step.modes))
        self._next: int | None = None

    def is_of(self, step: RecordedStep) -> bool:
        return self._made_as == (step.kind, dict(step.modes))

    def catch_up(self, step: RecordedStep) -> None:
        """Take the library through the steps before this one that it lacks."""
        from gemini_lab.engine.frameworks.zero_updates import BetaPowers  # noqa: PLC0415  (imports DeepSpeed)

        if _number(step) != self._next:
            stood = _StandIns(self.base, step.updates)
            BetaPowers(stood).restore(step.powers_since)
            self.base.state.clear()

    def note(self, step: RecordedStep) -> None:
        self._next = _number(step) + 1


class _StandIns:
    """Tensors of one element in the place of a step's: see `zero_updates.SteppedTensors`."""

    def __init__(self, base: torch.optim.Optimizer, updates: Sequence[Update]) -> None:
        self.base = base
        self._options = [update.options for update in updates]
        self._tensors = [torch.zeros(1) for _ in updates]
        base.state.clear()
        for tensor, update in zip(self._tensors, updates, strict=True):
            base.state[tensor] = {"step": update.scalars.get("step", 0)}

    def masters(self) -> Sequence[torch.Tensor]:
        return self._tensors

    def group_of(self, partition: int) -> StateView:
        return self._options[partition]


def _number(step: RecordedStep) -> int:
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


# xxhash releases the GIL; a few threads use up the bandwidth of the memory.
_SEALERS: Final = 4


def make_version(
    order: MakeVersion, memory: Bytes, difference: Bytes, repeater: Repeater
) -> VersionMade:
    """Make the version that the worker orders."""
    base = memory[order.base_bytes : order.base_bytes + order.payload_bytes]
    made = memory[order.into_bytes : order.into_bytes + order.payload_bytes]
    # The version before stays whole in its own buffer, until this one is verified.
    torch.from_numpy(made).copy_(torch.from_numpy(base))
    repeater.repeat(RecordedStep.decode(difference), made, difference)
    return VersionMade(digests=_digests(made, order.chunk_bytes))


def _digests(payload: Bytes, chunk_bytes: int) -> list[int]:
    starts = [n * chunk_bytes for n in range(count_chunks(payload.nbytes, chunk_bytes))]
    with ThreadPoolExecutor(_SEALERS) as sealers:
        chunks = (payload[start : start + chunk_bytes] for start in starts)
        return list(sealers.map(chunk_digest, chunks))


def _required(message: Message) -> MakeVersion:
    if not isinstance(message, MakeVersion):
        raise MessageError(f"no version maker does {type(message).__name__}")
    return message


def _mapped(fd: int) -> Bytes:
    return np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint8)


def main() -> None:
    """Make versions until the worker is gone."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle
    channel_fd, slab_fd, room_fd = (int(text) for text in sys.argv[1:4])
    channel = LocalChannel.adopt(channel_fd)
    memory, difference = _mapped(slab_fd), _mapped(room_fd)
    rehearse(sys.argv[4])
    repeater = Repeater()
    channel.send(MakerReady())
    while (heard := channel.receive()) is not None:
        try:
            channel.send(make_version(_required(heard[0]), memory, difference, repeater))
        except Exception as error:  # noqa: BLE001 - the process's edge: told, then it goes on
            channel.send(Refused.of(error))


if __name__ == "__main__":
    main()
