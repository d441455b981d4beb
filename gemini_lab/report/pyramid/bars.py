"""The rows behind the traffic timeline: they grow, forget their oldest, and travel in columns."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt


class Kind(IntEnum):
    """What a bar shows; the numbers are those in js/kinds.js."""

    ITERATION = 0  # one optimizer step of a rank; number: iteration, part: microseconds waited
    COLLECTIVE = 1  # a training collective; number: iteration
    WAIT = 2  # the step waited for a version to be whole; number: iteration
    TRANSFER = 3  # checkpoint chunks for a peer; number: version, part: idle span, -1 without
    VERSION = 4  # a version of which the log tells no transfers; number: version
    EXPOSED = 5  # the part of a transfer or version that training had to share its time with
    COMPLETE = 6  # a version is whole at a rank; number: version
    RESTORE = 7  # a shard on its way to a node that lost it; number: version


LAYER: Final = (0, 1, 2, 3, 3, 4, -1, 5)
"""Which of the `LAYERS` each kind covers; a version being whole is a moment and covers nothing."""
LAYERS: Final = 6

COLUMNS: Final = {
    "start_s": "d",
    "size_bytes": "d",
    "duration_s": "f",
    "new_s": "f",
    "number": "i",
    "part": "i",
    "rank": "i",
    "peer": "i",
    "lane": "H",
    "name": "H",
    "kind": "B",
}
"""Name and type of each column, widest first, so that in a packed block every column is aligned.

`new_s` is how long, up to its end, a bar covers what no earlier one of its rank and layer did.
"""

ROW: Final = np.dtype([(name, f"<{code}") for name, code in COLUMNS.items()])
ROW_BYTES: Final = ROW.itemsize
BATCH: Final = 1 << 16
"""Rows that are settled at once."""

Rows = npt.NDArray[np.void]
"""Bars as an array of `ROW`."""

_PACK: Final = struct.Struct("<" + "".join(COLUMNS.values())).pack


@dataclass(frozen=True, slots=True)
class Bar:
    """One row, as far as it is asked for beyond drawing."""

    number: int
    start_s: float
    duration_s: float
    size_bytes: int

    @property
    def interval(self) -> tuple[float, float]:
        """From when to when."""
        return self.start_s, self.start_s + self.duration_s


class Bars:
    """Up to `limit` bars; when it is full, the oldest quarter goes.

    Rows are numbered from the first one ever added, so a reader's place stays right when rows go.

    Args:
        limit: How many are kept here.
        settle: Given every `BATCH` rows once, in order, and none goes before; a `limit` below two
            batches makes no sense then.

    Attributes:
        first: Number of the oldest row that is kept.
        end: Number that the next row gets.
        settled: Number of the first row that was not given to `settle`.
        gone_s: When the last of those that went was over; -inf before any went.
    """

    def __init__(
        self, limit: int = 1_000_000, settle: Callable[[Rows], None] | None = None
    ) -> None:
        self.limit = limit
        self.first = 0
        self.end = 0
        self.settled = 0
        self.gone_s = -inf
        self._settle = settle
        self._rows = bytearray()
        self._reached: dict[tuple[int, int, int], float] = {}
        self._due: float = 0  # before row number so much there is nothing to settle or forget

    def __len__(self) -> int:
        """Rows that are kept."""
        return self.end - self.first

    def add(
        self,
        kind: Kind,
        start_s: float,
        end_s: float,
        *,
        lane: int,
        size_bytes: float = 0.0,
        number: int = -1,
        part: int = -1,
        rank: int = -1,
        peer: int = -1,
        name: int = 0,
    ) -> None:
        """Add one bar; constant time on average.

        Raises:
            OverflowError: A value does not fit its column; then nothing was added.
        """
        place = lane, rank, LAYER[kind]
        reached_s = self._reached.get(place, -inf)
        from_s = max(start_s, reached_s)
        new_s = end_s - from_s if end_s > from_s else 0.0
        duration_s = end_s - start_s if end_s > start_s else 0.0
        try:
            self._rows += _PACK(
                *(start_s, size_bytes, duration_s, new_s),
                *(number, part, rank, peer, lane, name, kind),
            )
        except (struct.error, OverflowError) as error:
            raise OverflowError(f"a bar does not fit its columns: {error}") from error
        if end_s > reached_s:
            self._reached[place] = end_s
        self.end += 1
        if self.end >= self._due:
            self._make_room()

    def _make_room(self) -> None:
        """Settle and forget what is due, and note when to look again."""
        if self._settle is not None and self.end - self.settled >= BATCH:
            self._settle(self.between(self.settled, self.end))
            self.settled = self.end
        if len(self) > self.limit:
            self._forget(self.limit // 4)
        settling = inf if self._settle is None else self.settled + BATCH
        self._due = min(settling, self.first + self.limit + 1)

    def between(self, first: int, end: int) -> Rows:
        """A copy of the rows from number `first` to before `end`, as far as they are kept."""
        begin, stop = (ROW_BYTES * (max(at, self.first) - self.first) for at in (first, end))
        return np.frombuffer(bytes(self._rows[begin:stop]), ROW)

    def column(self, name: str) -> npt.NDArray[np.generic]:
        """One column of the rows that are kept."""
        return self.between(self.first, self.end)[name]

    def rows(self, kind: Kind, *, rank: int) -> Iterator[Bar]:
        """The rows of one kind and rank that are kept, in order."""
        rows = self.between(self.first, self.end)
        rows = rows[(rows["kind"] == kind) & (rows["rank"] == rank)]
        names = ("number", "start_s", "duration_s", "size_bytes")
        for number, start_s, duration_s, size in zip(
            *(rows[n].tolist() for n in names), strict=True
        ):
            yield Bar(number, start_s, duration_s, int(size))

    def packed(self, first: int, end: int) -> bytes:
        """The rows from number `first` to before `end`: column after column, little-endian."""
        return in_columns(self.between(first, end))

    def _forget(self, count: int) -> None:
        going = self.between(self.first, self.first + count)
        self.gone_s = max(self.gone_s, float((going["start_s"] + going["duration_s"]).max()))
        del self._rows[: ROW_BYTES * count]
        self.first += count


def in_columns(rows: Rows) -> bytes:
    """Rows as they travel: column after column, little-endian."""
    return b"".join(rows[name].tobytes() for name in COLUMNS)
