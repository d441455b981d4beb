"""A set-up's results from other ranks: kept by all, replayed to a rank that comes later.

Before its loop a script builds a model, and for that talks to other ranks: DeepSpeed sends weights
round, the script counts its samples. A process that takes a lost rank's place does the same when
the others have long begun to train. It gets the results that they got, call by call, where these
are the same on every rank. What is large belongs to the engine (weights, which are loaded from a
version anyway) and is left out; whatever else is large, or is not the same everywhere, spoils the
record, and no process takes a rank's place.
"""

import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import torch

from gemini_lab.errors import GeminiError
from gemini_lab.units import KIB, MIB, format_bytes

SMALL_BYTES: Final = 64 * KIB
"""Of one result: what is larger has to be the engine's."""
ROOM_BYTES: Final = 16 * MIB
"""Of all results."""
_SAME_EVERYWHERE: Final[Mapping[str, int]] = {
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
"""By collective: which of its arguments has the results."""
_PLUMBING: Final = (
    "torch",
    "gemini_lab",
    "deepspeed.comm",
    "deepspeed.utils",
    "contextlib",
    "typing_extensions",
)
_ENGINE: Final = "deepspeed."
_DDP: Final = "torch.nn.parallel.distributed"


class Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One collective.

    Attributes:
        name: torch's name of it.
        sizes: Bytes of each result.
        results: Their bytes; `None` for what is left out, or has not come yet.
    """

    name: str
    sizes: list[int]
    results: list[bytes] | None = None


class RecordError(GeminiError):
    """A set-up asks for something else than the one that the record is of."""


class SetUpRecord:
    """The collectives of a set-up, in order.

    Args:
        entries: Of another process; they are played. Without them, what happens is recorded.

    Attributes:
        flaw: Why nobody can be played this record; empty while somebody can.
    """

    def __init__(self, entries: Sequence[Entry] | None = None) -> None:
        self.flaw = ""
        self._entries = list(entries or ())
        self._is_played = entries is not None
        self._at = 0
        self._is_closed = False
        self._is_late = False
        self._pauses = 0
        self._room_bytes = ROOM_BYTES

    # -- recording -------------------------------------------------------------------------------

    def spoil(self, why: str) -> None:
        """Nobody can be played this."""
        if not self._is_closed:
            self.flaw = self.flaw or why

    def engine_is_made(self) -> None:
        """From here on nothing that is large is the engine's set-up."""
        self._is_late = True

    def pause(self) -> None:
        """Pause the record: all ranks do the following together whenever one of them starts."""
        self._pauses += 1

    def resume(self) -> None:
        """The end of that."""
        self._pauses -= 1

    def close(self) -> None:
        """The set-up is over."""
        if self._is_played and self._at != len(self._entries):
            raise RecordError(
                f"this rank's set-up made {self._at} collectives, that of the others "
                f"{len(self._entries)}"
            )
        if not self._is_played and any(e.sizes and e.results is None for e in self._small()):
            self.spoil("it begins a collective before its loop that it ends there, or never")
        self._is_closed = True

    def abandon(self) -> None:
        """Nobody will be played this."""
        if not self._is_closed:
            self.spoil("it trains before its loop")
            self._is_closed = True
            self._entries.clear()

    def _small(self) -> Iterator[Entry]:
        return (entry for entry in self._entries if max(entry.sizes, default=0) <= SMALL_BYTES)

    def next(self, name: str, args: Sequence[Any]) -> Entry | None:
        """Note a collective that begins; `fill` takes its results."""
        if self._is_closed or self._pauses or self._is_played:
            return None
        sizes = [one.nbytes for one in results_of(name, args)]
        entry = Entry(name=name, sizes=sizes)
        self._entries.append(entry)
        if name != "barrier" and name not in _SAME_EVERYWHERE:
            self.spoil(f"it calls {name} before its loop, whose result is not that of other ranks")
        elif max(sizes, default=0) > SMALL_BYTES and (self._is_late or not _is_engines()):
            self.spoil(
                f"it exchanges {format_bytes(max(sizes))} by {name} before its loop, and only "
                f"{format_bytes(SMALL_BYTES)} are kept for a rank that starts later"
            )
        return entry

    def fill(self, entry: Entry | None, results: Sequence[torch.Tensor]) -> None:
        """A collective's results are there; where that is told again, the first time counts."""
        if entry is None or entry.results is not None or max(entry.sizes, default=0) > SMALL_BYTES:
            return
        self._room_bytes -= sum(entry.sizes)
        if self._room_bytes < 0:
            self.spoil(f"it exchanges more than {format_bytes(ROOM_BYTES)} before its loop")
            return
        entry.results = [_bytes_of(one) for one in results]

    def encode(self) -> bytes:
        """For another process; `decode` reads it."""
        return msgspec.msgpack.encode(self._entries)

    @classmethod
    def decode(cls, data: bytes) -> "SetUpRecord":
        """A record to be played."""
        return cls(msgspec.msgpack.decode(data, type=list[Entry]))

    # -- playing ---------------------------------------------------------------------------------

    def play(self, name: str, args: Sequence[Any]) -> None:
        """Put the next collective's results in place.

        Raises:
            RecordError: Another one is asked for.
        """
        entry = self._entries[self._at] if self._at < len(self._entries) else None
        self._at += 1
        results = list(results_of(name, args))
        sizes = [one.nbytes for one in results]
        if entry is None or (entry.name, entry.sizes) != (name, sizes):
            was = "nothing more" if entry is None else f"{entry.name} of {entry.sizes} bytes"
            raise RecordError(
                f"collective {self._at} of this rank's set-up is {name} of {sizes} bytes; that of "
                f"the others was {was}"
            )
        for result, data in zip(results, entry.results or (), strict=False):
            if data:
                told = torch.frombuffer(bytearray(data), dtype=torch.uint8)
                result.detach().copy_(told.view(result.dtype).view(result.shape))


def results_of(name: str, args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors that a collective fills, of its arguments."""
    if name not in _SAME_EVERYWHERE or not args:
        return []
    return list(_tensors(args[_SAME_EVERYWHERE[name]]))


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


def _is_engines() -> bool:
    """Whether an engine asks for what is called now, and not the script."""
    frame = sys._getframe(1)  # noqa: SLF001 - documented
    while frame.f_back is not None:
        frame = frame.f_back
        module = str(frame.f_globals.get("__name__"))
        if module == _DDP:
            return True
        if not module.startswith(_PLUMBING):
            return module.startswith(_ENGINE)
    return False
