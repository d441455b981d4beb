"""The levels of detail of a timeline: bars go in once, in batches, and any window comes out.

The bars lie in blocks, in the order in which they came. Beside them lie *cells* in levels, each
with bins four times as long as the level before. When enough cells wait at a level, they become a
block, and coarser cells go to the next level. So the answer for a level is in its blocks and in
what still waits there or below: a window costs what it shows, however long the run is.

A cell holds what *changes* in its bin, not how long the bin was covered: how many bars began less
how many ended, and for how long that counts up to the bin's end. So a bar is two cells at most,
however long it is, and the cover of a bin is the sum of all changes before it plus its own. All of
it is linear: cells of two sets of bars can be added, in any order.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gemini_lab.report.bars import LAYER, LAYERS, ROW, Rows, from_columns, in_columns
from gemini_lab.report.blocks import FileBlocks

FINER: Final = 4
"""Bins of one level in one of the next."""
BRIEFEST_S: Final = 1e-6
"""A bar without a length covers so much."""
LAYER_BITS: Final = 3
LINE_BITS: Final = 16 + LAYER_BITS
"""Of a cell's key: its lane and layer, below its bin."""
CELL: Final = np.dtype([("key", "<i8"), ("open", "<i4"), ("covered_s", "<f8")])

Cells = npt.NDArray[np.void]
"""An array of `CELL`, each key once where it says so."""
Seconds = npt.NDArray[np.float64]
Lines = npt.NDArray[np.int64]


def width_s(level: int) -> float:
    """Return how long a bin of a level is."""
    return float(FINER) ** level


def line_of(lane: int, layer: int) -> int:
    """Return a lane's layer as one number."""
    return lane << LAYER_BITS | layer


def bins(cells: Cells) -> npt.NDArray[np.int64]:
    """Return the bin of each cell."""
    return np.asarray(cells["key"] >> LINE_BITS)


def lines(cells: Cells) -> Lines:
    """Return lane and layer of each cell, as in `line_of`."""
    return np.asarray(cells["key"] & ((1 << LINE_BITS) - 1))


def cells_of(rows: Rows, *, level: int, origin_s: float) -> Cells:
    """Return the cells of bars at a level; bins count from `origin_s`."""
    layers = np.array(LAYER, np.int64)[rows["kind"]]
    is_moment = rows["duration_s"] == 0
    rows, layers, is_moment = (
        one[(layers >= 0) & ((rows["new_s"] > 0) | is_moment)] for one in (rows, layers, is_moment)
    )
    end_s = rows["start_s"] - origin_s + rows["duration_s"]
    start_s = end_s - rows["new_s"]
    end_s = np.where(is_moment, start_s + BRIEFEST_S, end_s)
    line = rows["lane"].astype(np.int64) << LAYER_BITS | layers
    edges_s, sign = np.concatenate([start_s, end_s]), np.repeat([1, -1], len(rows))
    width = width_s(level)
    place = np.floor(edges_s / width).astype(np.int64)
    cells = np.empty(len(edges_s), CELL)
    cells["key"] = place << LINE_BITS | np.tile(line, 2)
    cells["open"] = sign
    cells["covered_s"] = sign * ((place + 1) * width - edges_s)
    return summed(cells)


def summed(cells: Cells) -> Cells:
    """Return the same with each key once, in order."""
    if not len(cells):
        return cells
    cells = cells[np.argsort(cells["key"], kind="stable")]
    starts = np.flatnonzero(np.diff(cells["key"], prepend=cells["key"][0] - 1))
    result = np.empty(len(starts), CELL)
    result["key"] = cells["key"][starts]
    for name in ("open", "covered_s"):
        result[name] = np.add.reduceat(cells[name], starts)
    return result


def coarser(cells: Cells, *, level: int) -> Cells:
    """Return cells of a level as those of the next one."""
    place = bins(cells)
    parent = place // FINER
    result = cells.copy()
    result["key"] = parent << LINE_BITS | lines(cells)
    later = (FINER - 1 - (place - parent * FINER)) * width_s(level)
    result["covered_s"] += cells["open"] * later
    return summed(result)


def opened(cells: Cells, *, most: int) -> npt.NDArray[np.float64]:
    """Return how many bars more began than ended, for each of `most` lines."""
    weights = cells["open"].astype(np.float64)
    return np.bincount(lines(cells), weights=weights, minlength=most).astype(np.float64)


def coverage(
    cells: Cells,  # all that changes in these bins
    # How many bars of each row were under way when the first bin began, shape `(rows,)`.
    before: Seconds,
    *,
    level: int,  # of the cells
    first: int,  # the first bin
    count: int,  # how many bins
    row_of: Lines,  # the row of each line, at its number
    rows: int,  # how many rows
) -> Seconds:
    """Return how long each of some bins was covered.

    Returns:
        Seconds, shape `(rows, count)`; more than a bin's width where several bars lie.
    """
    place = row_of[lines(cells)] * count + bins(cells) - first
    size = rows * count
    change = np.bincount(place, weights=cells["open"], minlength=size).reshape(rows, count)
    own_s = np.bincount(place, weights=cells["covered_s"], minlength=size).reshape(rows, count)
    earlier = np.cumsum(change, axis=1) - change + before[:, None]
    return np.asarray(np.maximum(earlier * width_s(level) + own_s, 0.0))


FULL: Final = 1 << 16
"""Cells that make a block."""
FINE: Final = 64
"""Bars of the first batch in a bin of the finest level, about: with fewer, the bars themselves are
looked at."""
NO_CELLS: Final[Cells] = np.empty(0, CELL)
NO_ROWS: Final[Rows] = np.empty(0, ROW)
FURTHEST: Final = 1 << 40
"""No bin is so far from the first."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """The bounds of a block, known without reading it."""

    number: int  # among all blocks
    low: float  # the first moment of bars, or bin of cells
    high: float  # the last one
    first: int  # the number of the first bar; 0 for cells
    count: int  # of bars or cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """How long bars covered the bins of a window."""

    from_s: float  # when the first bin begins, on the log's clock
    width_s: float  # how long a bin is
    seconds: Seconds  # shape `(rows, LAYERS, bins)`

    @property
    def to_s(self) -> float:
        return self.from_s + self.width_s * int(self.seconds.shape[2])


class Pyramid:
    """Bars in levels of detail.

    Memory: what waits, at most some blocks a level, and 40 bytes a block.

    Where there is no room on disk any more, bars that come are kept as cells alone, in memory, and
    more and more coarsely, so that these never become many: the run is still there to be seen.
    """

    def __init__(self, blocks: FileBlocks, *, full: int = FULL) -> None:
        self._full = full
        self.end = 0  # how many bars there are
        self.changes = 0  # counts what was added
        self.trouble = ""  # why bars are not kept any more; empty while they are
        self._missing: tuple[float, float] | None = None  # from when to when bars are cells alone
        self._blocks = blocks
        self._origin_s = 0.0
        self._base: int | None = None  # the finest level
        self._bars: list[StoredBlock] = []
        self._levels: dict[int, list[StoredBlock]] = {}
        self._waiting: dict[int, list[Cells]] = {}
        # What waits at a level and below, since the last change.
        self._heaped: dict[int, Cells] = {}

    # -- what comes ----------------------------------------------------------------------------

    def append(self, rows: Rows) -> None:
        if not len(rows):
            return
        stop_s = rows["start_s"] + rows["duration_s"]
        low_s, high_s = float(rows["start_s"].min()), float(stop_s.max())
        if self._base is None:
            self._origin_s = low_s
            span_s = max(high_s - low_s, 1e-3)
            self._base = math.ceil(math.log(span_s * FINE / len(rows), FINER))
        self._keep(rows, low_s, high_s)
        self.end += len(rows)
        self.changes += 1
        self._heaped.clear()
        self._push(self._base, cells_of(rows, level=self._base, origin_s=self._origin_s))

    def _keep(self, rows: Rows, low_s: float, high_s: float) -> None:
        if not self.trouble:
            try:
                number = self._blocks.put(in_columns(rows))
            except OSError as error:
                self.trouble = error.strerror or str(error)
            else:
                self._bars.append(StoredBlock(number, low_s, high_s, self.end, len(rows)))
                return
        earliest_s, latest_s = self._missing or (low_s, high_s)
        self._missing = min(low_s, earliest_s), max(high_s, latest_s)

    def _push(self, level: int, cells: Cells) -> None:
        waiting = self._waiting.setdefault(level, [])
        waiting.append(cells)
        if sum(map(len, waiting)) < self._full:
            return
        if self.trouble:
            self._coarsen(summed(np.concatenate(waiting)))
            return
        cells = summed(np.concatenate(waiting))
        place = bins(cells)
        if len(cells) < self._full // 2 or place[-1] - place[0] < FINER:
            self._waiting[level] = [cells]  # what lies in one place gets no fewer further up
            return
        try:
            number = self._blocks.put(cells.tobytes())
        except OSError as error:
            self.trouble = error.strerror or str(error)
            self._waiting[level] = [cells]
            return
        self._waiting[level] = []
        block = StoredBlock(number, int(place[0]), int(place[-1]), 0, len(cells))
        self._levels.setdefault(level, []).append(block)
        self._push(level + 1, coarser(cells, level=level))

    def _coarsen(self, cells: Cells) -> None:
        """Drop the finest levels until few cells wait at the finest that is left."""
        assert self._base is not None
        while len(cells) > self._full // 2 and np.ptp(bins(cells)) >= FINER:
            cells = coarser(cells, level=self._base)
            self._waiting.pop(self._base, None)  # it is among the cells
            self._levels.pop(self._base, None)
            self._base += 1
            cells = summed(np.concatenate([cells, *self._waiting.get(self._base, [])]))
        self._waiting[self._base] = [cells]

    # -- what is asked -------------------------------------------------------------------------

    def count(self, from_s: float, to_s: float) -> int:
        """Return how many bars `rows` would look at; `sys.maxsize` if they are not all there."""
        if self._missing and from_s <= self._missing[1] and to_s >= self._missing[0]:
            return sys.maxsize
        return sum(block.count for block in _meeting(self._bars, from_s, to_s))

    def rows(
        self, from_s: float, to_s: float, *, fresh: Rows = NO_ROWS
    ) -> tuple[Rows, npt.NDArray[np.int64]]:
        """Return all bars that touch a window of time, and their numbers."""
        found, numbers = [NO_ROWS], [np.empty(0, np.int64)]
        stored = [
            (from_columns(self._blocks.get(block.number)), block.first)
            for block in _meeting(self._bars, from_s, to_s)
        ]
        for rows, first in (*stored, (fresh, self.end)):
            is_in = (rows["start_s"] <= to_s) & (rows["start_s"] + rows["duration_s"] >= from_s)
            found.append(rows[is_in])
            numbers.append(np.flatnonzero(is_in) + first)
        return np.concatenate(found), np.concatenate(numbers)

    def coverage(
        self,
        from_s: float,  # when the window begins, on the log's clock
        to_s: float,  # when it ends
        *,
        least_bins: int,  # how finely to look
        row_of: npt.NDArray[np.int64],  # the row of each lane, from 0 on
        fresh: Rows = NO_ROWS,  # bars that came after those that were added
    ) -> Covered:
        """Return how long bars covered the bins of a window.

        There are as many bins as is asked or up to four times that, and they reach over its ends;
        there are fewer where there was no room for the bars.
        """
        level = math.floor(math.log(max(to_s - from_s, 1e-9) / least_bins, FINER))
        width = width_s(level)
        if self._base is not None and self.count(from_s - width, to_s + width) == sys.maxsize:
            level = max(level, self._base)
            width = width_s(level)
        if self._base is None:
            self._origin_s = from_s
        first = math.floor((from_s - self._origin_s) / width)
        count = math.ceil((to_s - self._origin_s) / width) - first
        if self._base is None or level < self._base:
            rows, _ = self.rows(from_s - width, to_s + width, fresh=fresh)
            cells = cells_of(rows, level=level, origin_s=self._origin_s)
            begun = cells[bins(cells) < first]
        else:
            fresh_cells = cells_of(fresh, level=level, origin_s=self._origin_s)
            cells = np.concatenate([self._cells(level, first, first + count), fresh_cells])
            begun = fresh_cells[bins(fresh_cells) < first]
        layers = np.minimum(np.arange(1 << LAYER_BITS), LAYERS - 1)
        row_of_line = np.asarray((row_of[:, None] * LAYERS + layers).ravel())
        before = opened(begun, most=len(row_of_line))
        if self._base is not None and level >= self._base:
            before += self._before(level, first, most=len(row_of_line))
        rows_count = int(row_of.max(initial=0) + 1) * LAYERS
        by_row = np.bincount(row_of_line, weights=before, minlength=rows_count)
        seconds = coverage(
            cells[(bins(cells) >= first) & (bins(cells) < first + count)],
            np.asarray(by_row[:rows_count], np.float64),
            level=level,
            first=first,
            count=count,
            row_of=row_of_line,
            rows=rows_count,
        )
        return Covered(
            from_s=self._origin_s + first * width,
            width_s=width,
            seconds=seconds.reshape(-1, LAYERS, count),
        )

    def _cells(self, level: int, first: int, end: int) -> Cells:
        """Return all cells of a level in the bins from `first` to before `end`."""
        blocks = _meeting(self._levels.get(level, ()), first, end - 1)
        stored = [np.frombuffer(self._blocks.get(block.number), CELL) for block in blocks]
        found = [self._heap(level), *stored]
        parts = []
        for cells in found:
            low, high = np.searchsorted(cells["key"], [first << LINE_BITS, end << LINE_BITS])
            parts.append(cells[low:high])
        return np.concatenate(parts)

    def _heap(self, level: int) -> Cells:
        """Return the cells that wait at a level or below, as cells of that level."""
        assert self._base is not None
        if level not in self._heaped:
            below = (
                coarser(self._heap(level - 1), level=level - 1) if level > self._base else NO_CELLS
            )
            self._heaped[level] = summed(np.concatenate([below, *self._waiting.get(level, [])]))
        return self._heaped[level]

    def _before(self, level: int, first: int, *, most: int) -> npt.NDArray[np.float64]:
        """Return how many more bars of each line began than ended before a bin."""
        if level >= max(self._waiting):
            return opened(self._cells(level, -FURTHEST, first), most=most)
        parent = first // FINER
        beside = self._cells(level, parent * FINER, first)
        return self._before(level + 1, parent, most=most) + opened(beside, most=most)


def _meeting(
    blocks: list[StoredBlock] | tuple[()], low: float, high: float
) -> Iterator[StoredBlock]:
    return (block for block in blocks if block.low <= high and block.high >= low)
