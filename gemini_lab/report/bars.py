"""One row of the traffic timeline: what a bar is made of, and how rows travel."""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt

from gemini_lab.log.events import Collectives


class Kind(IntEnum):
    """The meaning of a bar; the numbers are those in js/kinds.js."""

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
LAYER_OF: Final = np.array(LAYER, np.int64)
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
Rows = npt.NDArray[np.void]
"""Bars as an array of `ROW`."""
Floats = npt.NDArray[np.float64]
Reached = dict[tuple[int, int, int], float]
"""Up to when the bars of a lane, rank and layer have covered it."""

_PACK: Final = struct.Struct("<" + "".join(COLUMNS.values())).pack


def packed(*values: float) -> bytes:
    """Return a row of these values, in the order of `COLUMNS`.

    Raises:
        OverflowError: One does not fit its column.
    """
    try:
        return _PACK(*values)
    except (struct.error, OverflowError) as error:
        raise OverflowError(f"a bar does not fit its columns: {error}") from error


def in_columns(rows: Rows) -> bytes:
    """Return rows as they travel, and are kept: column after column, little-endian."""
    return b"".join(rows[name].tobytes() for name in COLUMNS)


def from_columns(data: bytes) -> Rows:
    """Return the rows that `in_columns` made these bytes of."""
    rows, at = np.empty(len(data) // ROW_BYTES, ROW), 0
    for name, code in COLUMNS.items():
        rows[name] = np.frombuffer(data, f"<{code}", len(rows), at)
        at += rows[name].itemsize * len(rows)
    return rows


Ints = npt.NDArray[np.int64]


def running(group: Ints, value: Floats) -> Floats:
    """Return the largest value so far in each row's group; groups are in order. Shape as given."""
    order = np.argsort(value, kind="stable")
    place = np.empty(len(value), np.int64)
    place[order] = np.arange(len(value))  # to compare places, and not sums that would be rounded
    largest = np.maximum.accumulate(group * len(value) + place) - group * len(value)
    return np.asarray(value[order[largest]])


@dataclass(frozen=True, slots=True)
class Calls:
    """The collectives of an iteration, whose rows are there but do not say yet what each was."""

    row: int  # number of the first one's
    lane: int  # of all of them
    names: Sequence[int]  # the name of each of the event's kinds, as a number
    event: Collectives


def write(rows: Rows, calls: Sequence[Calls], *, first: int, reached_s: Reached) -> None:
    """Write what each collective was into its row."""
    events = [one.event for one in calls]
    counts = np.array([len(event.order) for event in events])
    of = np.repeat(np.arange(len(calls)), counts)  # the call's event
    before = np.cumsum(counts) - counts  # calls of earlier events
    start_us = _since_began(_joined((e.gaps_us for e in events), len(of)), before, of)
    end_us = start_us + np.maximum(_joined((e.durations_us for e in events), len(of)), 0)
    began_s = np.array([event.began_s for event in events])[of]
    start_s, end_s = began_s + start_us / 1e6, began_s + end_us / 1e6
    kinds = [kind for event in events for kind in event.kinds]
    kinds_before = np.cumsum([0, *(len(event.kinds) for event in events)])[of]
    kind = _joined((e.order for e in events), len(of)) + kinds_before
    place = np.arange(len(of)) + (np.array([one.row for one in calls]) - first - before)[of]
    rows["start_s"][place] = start_s
    rows["duration_s"][place] = end_s - start_s
    rows["new_s"][place] = newly_covered(rows[place], end_s, reached_s)
    rows["size_bytes"][place] = np.array([float(size) for _, size in kinds])[kind]
    rows["name"][place] = np.array([name for one in calls for name in one.names])[kind]


def _joined(columns: Iterable[Iterable[int]], count: int) -> Ints:
    return np.fromiter(chain.from_iterable(columns), np.int64, count)


def _since_began(gaps_us: Ints, before: Ints, of: Ints) -> Ints:
    start_us = np.cumsum(gaps_us)
    return np.asarray(start_us - np.append(0, start_us)[before][of])


def newly_covered(rows: Rows, end_s: Floats, reached_s: Reached) -> Floats:
    """Return how long each bar covers what no earlier one of its lane, rank and layer did.

    Args:
        rows: In the order in which they were told.
        end_s: When each is over; shape as `rows`.
        reached_s: Up to when each lane, rank and layer is covered; it is brought up to date.
    """
    layer = LAYER_OF[rows["kind"]]
    place = (rows["lane"].astype(np.int64) << 32 | rows["rank"].astype(np.uint32)) << 3 | layer + 1
    places, of = np.unique(place, return_inverse=True)
    order = np.argsort(of, kind="stable")
    of, until_s = of[order], running(of[order], end_s[order])
    keys = [(each >> 35, _signed(each >> 3), (each & 7) - 1) for each in places.tolist()]
    reached = np.array([reached_s.get(key, -inf) for key in keys])
    before_s = np.append(-inf, until_s)[:-1]
    before_s = np.where(np.diff(of, prepend=-1) > 0, -inf, before_s)
    before_s = np.maximum(before_s, reached[of])
    new_s = np.empty(len(rows))
    new_s[order] = np.maximum(end_s[order] - np.maximum(rows["start_s"][order], before_s), 0.0)
    last_s = np.maximum(until_s[np.flatnonzero(np.diff(of, append=len(places)))], reached)
    reached_s.update(zip(keys, last_s.tolist(), strict=True))
    return new_s


def _signed(rank: int) -> int:
    return (rank & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)


BATCH: Final = 1 << 16
"""Rows that are settled at once."""


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """One row, as far as it is asked for beyond drawing."""

    number: int
    start_s: float
    duration_s: float
    size_bytes: int

    @property
    def interval(self) -> tuple[float, float]:
        return self.start_s, self.start_s + self.duration_s


class Bars:
    """Up to `limit` bars; when it is full, the oldest quarter goes.

    Rows are numbered from the first one ever added, so a reader's place stays right when rows go.

    Args:
        settle: Given every `BATCH` rows once, in order, and none goes before; a `limit` below two
            batches makes no sense then.
    """

    def __init__(
        self, limit: int = 1_000_000, settle: Callable[[Rows], None] | None = None
    ) -> None:
        self.limit = limit
        self.first = 0  # number of the oldest row that is kept
        self.end = 0  # number that the next row gets
        self.settled = 0  # number of the first row that was not given to `settle`
        self.gone_s = -inf  # when the last of those that went was over; -inf before any went
        self._settle = settle
        self._rows = bytearray()
        self._unwritten: list[Calls] = []
        self._reached: Reached = {}
        self._due: float = 0  # before row number so much there is nothing to settle or forget

    def __len__(self) -> int:
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

        Raises:
            OverflowError: A value does not fit its column; then nothing was added.
        """
        row = packed(0, 0, 0, 0, event.iteration, -1, event.rank, -1, lane, 0, Kind.COLLECTIVE)
        self._rows += row * len(event.order)
        self._unwritten.append(Calls(self.end, lane, names, event))
        self.end += len(event.order)
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
        """Return a copy of the rows from `first` to before `end`, as far as they are kept."""
        self._write()
        begin, stop = (ROW_BYTES * (max(at, self.first) - self.first) for at in (first, end))
        return np.frombuffer(bytes(self._rows[begin:stop]), ROW)

    def column(self, name: str) -> npt.NDArray[np.generic]:
        return self.between(self.first, self.end)[name]

    def rows(self, kind: Kind, *, rank: int) -> Iterator[TimelineBar]:
        rows = self.between(self.first, self.end)
        rows = rows[(rows["kind"] == kind) & (rows["rank"] == rank)]
        names = ("number", "start_s", "duration_s", "size_bytes")
        for number, start_s, duration_s, size in zip(
            *(rows[n].tolist() for n in names), strict=True
        ):
            yield TimelineBar(number, start_s, duration_s, int(size))

    def packed(self, first: int, end: int) -> bytes:
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
