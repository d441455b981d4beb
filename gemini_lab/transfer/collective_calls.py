"""Training's collectives as a hook sees them: a call's times, and a handle that tells its end."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from gemini_lab.profiler.observe import IterationRecord
from gemini_lab.profiler.profile import CollectiveRecord
from gemini_lab.transfer.group import TransferHandle
from gemini_lab.transfer.link import sleep_until


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: which arguments of the method say its size and its group."""

    sized: str  # name of the parameter whose tensors are counted; empty for none
    position: int = 0  # its position
    group: int = 2  # the position of the parameter `group`
    per_rank: bool = False  # whether that tensor is one rank's part of the whole

    def group_of(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> dist.ProcessGroup | None:
        found: Any = kwargs.get("group", args[self.group] if len(args) > self.group else None)
        group: dist.ProcessGroup | None = found
        return group

    def size_bytes(self, args: Sequence[object], kwargs: Mapping[str, object]) -> int:
        """Return bytes of the full tensor: of the gathered, the reduced, the broadcast one."""
        if not self.sized:
            return 0
        value = kwargs.get(self.sized, args[self.position] if len(args) > self.position else None)
        ranks = dist.get_world_size(self.group_of(args, kwargs)) if self.per_rank else 1
        return _bytes_of(value) * ranks


OPERATIONS: Final[dict[str, Operation]] = {
    "all_reduce": Operation("tensor"),
    "inference_all_reduce": Operation("tensor"),
    "all_reduce_coalesced": Operation("tensors"),
    "reduce": Operation("tensor", group=3),
    "reduce_scatter": Operation("input_list", 1, group=3),
    "reduce_scatter_tensor": Operation("input_tensor", 1, group=3),
    "broadcast": Operation("tensor"),
    "all_gather": Operation("tensor_list"),
    "all_gather_into_tensor": Operation("output_tensor"),
    "all_gather_base": Operation("output_tensor"),
    "all_gather_coalesced": Operation("output_tensors"),
    "all_to_all_single": Operation("input", 1, group=4),
    "all_to_all": Operation("input_tensor_list", 1),
    "gather": Operation("tensor", group=3, per_rank=True),
    "scatter": Operation("tensor", group=3, per_rank=True),
    "send": Operation("tensor"),
    "recv": Operation("tensor"),
    "isend": Operation("tensor"),
    "irecv": Operation("tensor"),
    "batch_isend_irecv": Operation("p2p_op_list", group=1),
    "barrier": Operation("", group=0),
}
"""The methods of DeepSpeed's comm object that move tensors. Objects that are gathered or broadcast
in pickled form, outside the iteration, are not counted."""


def _bytes_of(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, (list, tuple)):
        return sum(_bytes_of(one) for one in value)
    return _bytes_of(value.tensor) if hasattr(value, "tensor") else 0


Stamp = Any
"""A mark of a moment, that only its clock can read: a number, or a CUDA event."""


class Clock(Protocol):
    """Gives stamps, whatever they are, and says later how far they are apart."""

    def stamp(self) -> Stamp: ...

    def between_s(self, start: Stamp, end: Stamp) -> float: ...


class WallClock:
    """Stamps of a CPU backend, by the thread that gets there."""

    def stamp(self) -> float:
        return time.monotonic()

    def between_s(self, start: float, end: float) -> float:
        return end - start


class DeviceClock:
    """Stamps of a CUDA backend: events on the current stream, read when the iteration is over."""

    def stamp(self) -> Stamp:
        """Return an event, recorded on the current stream."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between_s(self, start: Stamp, end: Stamp) -> float:
        """Return the seconds between two events; wait until the device reaches the second."""
        # `elapsed_time` raises while the device has not reached the event.
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000.0


@dataclass(slots=True)
class CollectiveCall:
    """One collective under way or ended; stamps are the clock's, and none without recording."""

    name: str
    size_bytes: int
    start: Stamp
    iteration: int
    end: Stamp | None = None


class FollowedWork:
    """A handle whose `wait` also waits for the emulated link, and tells the hook."""

    def __init__(self, work: dist.Work, release_s: float, done: Callable[[], None]) -> None:
        self._work = work
        self._release_s = release_s
        self._done = done

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As the backend's handle, then until the link has carried the bytes."""
        result = self._work.wait(*args, **kwargs)
        sleep_until(self._release_s)
        self._done()
        return result

    def is_completed(self) -> bool:
        return bool(self._work.is_completed()) and time.monotonic() >= self._release_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def handle_of(result: object) -> TransferHandle | None:
    """Return the handle in what a collective returned, or `None`."""
    last = result[-1] if isinstance(result, list) and result else result
    return last if hasattr(last, "wait") else None


def iteration_record(
    clock: Clock, *, start: Stamp, update: Stamp | None, end: Stamp, calls: Sequence[CollectiveCall]
) -> IterationRecord:
    """Return an iteration of these calls."""
    since = clock.between_s
    length_s = since(start, end)
    collectives = tuple(
        CollectiveRecord(
            name=call.name,
            size_bytes=call.size_bytes,
            start_s=since(start, call.start),
            end_s=length_s if call.end is None else since(start, call.end),
        )
        for call in calls
    )
    update_s = length_s if update is None else since(start, update)
    return IterationRecord(collectives=collectives, iteration_s=length_s, update_s=update_s)
