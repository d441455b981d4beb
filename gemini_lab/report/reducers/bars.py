"""The typed columns behind the traffic timeline: they grow, forget their oldest, and travel."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final


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


COLUMNS: Final = {
    "start_s": "d",
    "size_bytes": "d",
    "duration_s": "f",
    "number": "i",
    "part": "i",
    "rank": "i",
    "peer": "i",
    "lane": "H",
    "name": "H",
    "kind": "B",
}
"""Name and type of each column, widest first, so that in a packed block every column is aligned."""

ROW_BYTES: Final = sum(array(code).itemsize for code in COLUMNS.values())


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
    """Up to `limit` bars in columns; when it is full, the oldest quarter goes.

    Rows are numbered from the first one ever added, so a reader's place stays right when rows go.

    Attributes:
        first: Number of the oldest row that is kept.
        end: Number that the next row gets.
    """

    def __init__(self, limit: int = 1_000_000) -> None:
        self.limit = limit
        self.first = 0
        self.end = 0
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in COLUMNS.items()}
        self._appends = [column.append for column in self._columns.values()]

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
        row = (
            start_s,
            size_bytes,
            max(0.0, end_s - start_s),
            number,
            part,
            rank,
            peer,
            lane,
            name,
            kind,
        )
        try:
            for append, value in zip(self._appends, row, strict=True):
                append(value)
        except (OverflowError, TypeError):
            for column in self._columns.values():
                del column[len(self) :]
            raise
        self.end += 1
        if len(self) > self.limit:
            self._forget(self.limit // 4)

    def column(self, name: str) -> "array[Any]":
        """A copy of one column of the rows that are kept."""
        return self._columns[name][:]

    def rows(self, kind: Kind, *, rank: int) -> Iterator[Bar]:
        """The rows of one kind and rank that are kept, in order."""
        names = ("kind", "rank", "number", "start_s", "duration_s", "size_bytes")
        for row in zip(*(self._columns[name] for name in names), strict=True):
            if row[0] == kind and row[1] == rank:
                yield Bar(row[2], row[3], row[4], int(row[5]))

    def packed(self, first: int, end: int) -> bytes:
        """The rows from number `first` to before `end`: column after column, little-endian."""
        rows = slice(first - self.first, end - self.first)
        return b"".join(column[rows].tobytes() for column in self._columns.values())

    def _forget(self, count: int) -> None:
        for column in self._columns.values():
            del column[:count]
        self.first += count
