"""How long each lane was covered, in bins of time: sums that can be added, coarsened and drawn.

A cell does not hold how long its bin was covered but what *changes* there: how many bars began less
how many ended, and for how long that counts up to the bin's end. So a bar is two cells at most,
however long it is, and what covers a bin is the sum of all changes before it plus its own.

All of it is linear: cells of two sets of bars may be put together, and those of bars that came late
need no place in an order.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from gemini_lab.report.pyramid.rows import LAYER, Rows

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
    """How long a bin of a level is."""
    return float(FINER) ** level


def line_of(lane: int, layer: int) -> int:
    """A lane's layer as one number."""
    return lane << LAYER_BITS | layer


def bins(cells: Cells) -> npt.NDArray[np.int64]:
    """The bin of each cell."""
    return np.asarray(cells["key"] >> LINE_BITS)


def lines(cells: Cells) -> Lines:
    """Lane and layer of each cell, as in `line_of`."""
    return np.asarray(cells["key"] & ((1 << LINE_BITS) - 1))


def cells_of(rows: Rows, *, level: int, origin_s: float) -> Cells:
    """What bars change in the bins of a level; bins count from `origin_s`."""
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
    """The same with each key once, in order."""
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
    """Cells of a level as those of the next one."""
    place = bins(cells)
    parent = place // FINER
    result = cells.copy()
    result["key"] = parent << LINE_BITS | lines(cells)
    later = (FINER - 1 - (place - parent * FINER)) * width_s(level)
    result["covered_s"] += cells["open"] * later
    return summed(result)


def opened(cells: Cells, *, most: int) -> npt.NDArray[np.float64]:
    """How many bars more began than ended, for each of `most` lines."""
    weights = cells["open"].astype(np.float64)
    return np.bincount(lines(cells), weights=weights, minlength=most).astype(np.float64)


def coverage(
    cells: Cells,
    before: Seconds,
    *,
    level: int,
    first: int,
    count: int,
    row_of: Lines,
    rows: int,
) -> Seconds:
    """How long each of some bins was covered.

    Args:
        cells: All that changes in these bins.
        before: How many bars of each row were under way when the first bin began, shape `(rows,)`.
        level: Of the cells.
        first: The first bin.
        count: How many bins.
        row_of: The row of each line, at its number.
        rows: How many rows.

    Returns:
        Seconds, shape `(rows, count)`; more than a bin's width where several bars lie.
    """
    place = row_of[lines(cells)] * count + bins(cells) - first
    size = rows * count
    change = np.bincount(place, weights=cells["open"], minlength=size).reshape(rows, count)
    own_s = np.bincount(place, weights=cells["covered_s"], minlength=size).reshape(rows, count)
    earlier = np.cumsum(change, axis=1) - change + before[:, None]
    return np.asarray(np.maximum(earlier * width_s(level) + own_s, 0.0))
