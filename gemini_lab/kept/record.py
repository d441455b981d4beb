"""Results of a set-up's collectives: recorded by every rank, and played to a rank that comes later.

Before its loop a script builds a model, and for that it talks to other ranks: DeepSpeed broadcasts
weights, the script counts its samples. A process that takes a lost rank's place does the same while
the others train. For each of its groups it gets the results that the group's other ranks got, call
by call, because these are the same on every rank of the group. Large results belong to the engine:
they are weights, which a version restores, and are left out. Any other large result, and any result
that differs between ranks, spoils the record, and no process can take this rank's place.
"""

import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import msgspec
import torch

from gemini_lab.errors import GeminiError
from gemini_lab.units import KIB, MIB, format_bytes

SMALL_BYTES: Final = 64 * KIB
"""The largest result that is recorded; a larger one has to be the engine's."""
ROOM_BYTES: Final = 16 * MIB
"""The most bytes that all recorded results have together."""
_SAME_EVERYWHERE: Final[Mapping[str, int | None]] = {
    "barrier": None,
    "broadcast": 0,
    "allreduce": 0,
    "allreduce_coalesced": 0,
    "allgather": 0,
    "allgather_coalesced": 0,
    "allgather_into_tensor_coalesced": 0,
    "_allgather_base": 0,
    "all_gather_single": 0,
    "all_gather_single_coalesced": 0,
}
"""Which argument has the results, by collective; only of those that give all ranks the same."""
_PARTS: Final = "scatter"
"""Gives each rank its part."""
_DISTRIBUTING: Final = frozenset({_PARTS, "broadcast"})
"""How DTensor distributes weights, which a version restores; its other calls are the script's."""
_PLUMBING: Final = (
    "torch",
    "gemini_lab",
    "deepspeed.comm",
    "deepspeed.utils",
    "contextlib",
    "typing_extensions",
)
_DEEPSPEED: Final = "deepspeed."
_DDP: Final = "torch.nn.parallel.distributed"
_DTENSOR: Final = "torch.distributed.tensor."


class RecordedCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One collective."""

    name: str  # torch's name of it
    sizes: list[int]  # bytes of each result
    # Their bytes; `None` if they are left out, or have not come yet.
    results: list[bytes] | None = None


class RecordError(GeminiError):
    """The error of a set-up whose collectives are not the recorded ones."""


class SetUpRecord:
    """The collectives of a set-up, in the order of each group."""

    def __init__(self) -> None:
        self.flaw = ""  # why no other process can be played this record; empty while one can
        self.is_closed = False  # whether the set-up is over
        self._entries: dict[str, list[RecordedCall]] = {}  # by group
        self._played: dict[str, int] = {}  # by group that others recorded: entries played
        self._is_late = False
        self._is_paused = False
        self._room_bytes = ROOM_BYTES

    # -- recording -------------------------------------------------------------------------------

    def spoil(self, why: str) -> None:
        """Note that no other process can be played this record."""
        if not self.is_closed:
            self.flaw = self.flaw or why

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Record nothing in the block: all ranks run it together, whenever one of them starts.

        The engine has been made by then, so any large result is the script's from then on.
        """
        self._is_paused = self._is_late = True
        try:
            yield
        finally:
            self._is_paused = False

    def close(self) -> None:
        """End the record at the end of the set-up.

        Raises:
            RecordError: A group made fewer collectives than on the ranks that recorded them.
        """
        for group, at in self._played.items():
            if at != (count := len(self._entries[group])):
                raise RecordError(
                    f"this rank's set-up made {at} collectives, that of the others {count}"
                )
        recorded = (self._entries[group] for group in self._entries.keys() - self._played.keys())
        if any(_is_small(one) and one.sizes and one.results is None for one in chain(*recorded)):
            self.spoil("it begins a collective before its loop that it ends there, or never")
        self.is_closed = True

    def abandon(self) -> None:
        """End the record of a script that trains before its loop."""
        if not self.is_closed:
            self.spoil("it trains before its loop")
            self.is_closed = True
            self._entries.clear()

    def next(self, group: str, name: str, args: Sequence[Any]) -> RecordedCall | None:
        """Record a collective that begins; `fill` takes its results."""
        if self.is_closed or self._is_paused or group in self._played:
            return None
        sizes = [one.nbytes for one in results_of(name, args)]
        entry = RecordedCall(name=name, sizes=sizes)
        self._entries.setdefault(group, []).append(entry)
        is_engines = _is_engines(name)
        if name not in _SAME_EVERYWHERE and not (name == _PARTS and is_engines):
            self.spoil(f"it calls {name} before its loop, whose result is not that of other ranks")
        elif not _is_small(entry) and (self._is_late or not is_engines):
            self.spoil(
                f"it exchanges {format_bytes(max(sizes))} by {name} before its loop, and only "
                f"{format_bytes(SMALL_BYTES)} are kept for a rank that starts later"
            )
        return entry

    def fill(self, entry: RecordedCall | None, results: Sequence[torch.Tensor]) -> None:
        """Record a collective's results; a second call is ignored."""
        if entry is None or entry.results is not None or not _is_small(entry):
            return
        if entry.name == _PARTS:
            entry.results = []
            return
        self._room_bytes -= sum(entry.sizes)
        if self._room_bytes < 0:
            self.spoil(f"it exchanges more than {format_bytes(ROOM_BYTES)} before its loop")
            return
        entry.results = [_bytes_of(one) for one in results]

    def encode(self, group: str) -> bytes:
        """Return a group's record for another process, whose `learn` takes it."""
        return msgspec.msgpack.encode(self._entries.get(group, []))

    # -- playing ---------------------------------------------------------------------------------

    def learn(self, group: str, data: bytes) -> None:
        """Play this record of a group from now on, and record nothing of the group."""
        self._entries[group] = msgspec.msgpack.decode(data, type=list[RecordedCall])
        self._played[group] = 0

    def play(self, group: str, name: str, args: Sequence[Any]) -> None:
        """Write the results of the group's next collective into its tensors.

        Raises:
            RecordError: The other ranks called another collective here.
        """
        at, entries = self._played[group], self._entries[group]
        entry = entries[at] if at < len(entries) else None
        self._played[group] = at + 1
        results = list(results_of(name, args))
        sizes = [one.nbytes for one in results]
        if entry is None or (entry.name, entry.sizes) != (name, sizes):
            was = "nothing more" if entry is None else f"{entry.name} of {entry.sizes} bytes"
            raise RecordError(
                f"collective {at + 1} of this rank's set-up is {name} of {sizes} bytes; that of "
                f"the others was {was}"
            )
        if name == _PARTS:
            for result in results:
                # If no version restores it, the first loss says so.
                result.detach().fill_(torch.nan if result.is_floating_point() else 0)
        for result, data in zip(results, entry.results or (), strict=False):
            if data:
                told = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                result.detach().copy_(told.view(result.dtype).view(result.shape))


def _is_small(entry: RecordedCall) -> bool:
    return max(entry.sizes, default=0) <= SMALL_BYTES


def results_of(name: str, args: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensors that a collective fills, from its arguments."""
    at = 0 if name == _PARTS else _SAME_EVERYWHERE.get(name)
    return [] if at is None or not args else list(_tensors(args[at]))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous()
    # Not by numpy: a tensor that it has seen cannot be resized any more.
    return ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.numel() else b""


def _is_engines(name: str) -> bool:
    """Return whether an engine makes the call of that name under way, and not the script."""
    frame = sys._getframe(1)  # noqa: SLF001 - documented
    while frame.f_back is not None:
        frame = frame.f_back
        module = str(frame.f_globals.get("__name__"))
        if module == _DDP or (module.startswith(_DTENSOR) and name in _DISTRIBUTING):
            return True
        if not module.startswith(_PLUMBING):
            return module.startswith(_DEEPSPEED)
    return False
