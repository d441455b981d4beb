"""The rows behind the traffic timeline: they grow, forget their oldest, and travel in columns."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt

from gemini_lab.log.events import Collectives
from gemini_lab.report.pyramid.calls import Calls, newly_covered, write
from gemini_lab.report.pyramid.rows import (
    LAYER,
    ROW,
    ROW_BYTES,
    Floats,
    Kind,
    Reached,
    Rows,
    in_columns,
    packed,
)

BATCH: Final = 1 << 16
"""Rows that are settled at once."""


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
        self._unwritten: list[Calls] = []
        self._reached: Reached = {}
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
        self._rows += packed(
            *(start_s, size_bytes, duration_s, new_s),
            *(number, part, rank, peer, lane, name, kind),
        )
        if end_s > reached_s:
            self._reached[place] = end_s
        self.end += 1
        if self.end >= self._due:
            self._make_room()

    def add_collectives(self, event: Collectives, *, lane: int, names: Sequence[int]) -> None:
        """Add a bar for each training collective of an iteration, as `add` would one by one.

        They are written when somebody asks for them, those of many iterations at once.

        Args:
            event: What its rank told.
            lane: Of all of them.
            names: The name of each of the event's kinds, as a number.

        Raises:
            OverflowError: A value does not fit its column; then nothing was added.
        """
        row = packed(0, 0, 0, 0, event.iteration, -1, event.rank, -1, lane, 0, Kind.COLLECTIVE)
        self._rows += row * len(event.order)
        self._unwritten.append(Calls(self.end, lane, names, event))
        self.end += len(event.order)
        if self.end >= self._due:
            self._make_room()

    def extend(self, rows: Rows, end_s: Floats) -> None:
        """Add bars, as `add` would one by one.

        Args:
            rows: All of each but its `new_s`, which is filled in.
            end_s: When each is over, to the bit.
        """
        self._write()
        rows["new_s"] = newly_covered(rows, end_s, self._reached)
        step = max(1, min(BATCH, self.limit // 4))  # in one step at most one quarter goes
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            self._rows += part.tobytes()
            self.end += len(part)
            if self.end >= self._due:
                self._make_room()

    def _make_room(self) -> None:
        """Settle and forget what is due, and note when to look again."""
        while self._settle is not None and self.end - self.settled >= BATCH:
            self._settle(self.between(self.settled, self.settled + BATCH))
            self.settled += BATCH
        while len(self) > self.limit:
            self._forget(self.limit // 4)
        settling = inf if self._settle is None else self.settled + BATCH
        self._due = min(settling, self.first + self.limit + 1)

    def between(self, first: int, end: int) -> Rows:
        """A copy of the rows from number `first` to before `end`, as far as they are kept."""
        self._write()
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

    def _write(self) -> None:
        """Write the rows that were added without what they say.

        Into a copy: whoever looks at this thread's frames, as a profiler does, holds what they
        name for a while, and rows of which somebody holds a view cannot grow.
        """
        if self._unwritten:
            first = self._unwritten[0].row
            begin = ROW_BYTES * (first - self.first)
            rows = np.frombuffer(self._rows[begin:], ROW)
            write(rows, self._unwritten, first=first, reached_s=self._reached)
            self._rows[begin:] = rows.tobytes()
            self._unwritten.clear()

    def _forget(self, count: int) -> None:
        going = self.between(self.first, self.first + count)
        self.gone_s = max(self.gone_s, float((going["start_s"] + going["duration_s"]).max()))
        del self._rows[: ROW_BYTES * count]
        self.first += count
