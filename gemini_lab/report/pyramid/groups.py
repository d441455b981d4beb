"""Columns whose rows belong to groups: what came before a row in its group, and what lies there.

A group is a number, such as a rank or a lane. All is done for all rows at once, so that a thousand
groups cost what one does.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_BITS: Final = 32


def running(group: Ints, value: Floats) -> Floats:
    """The largest value so far in each row's group; groups are in order. Shape as given."""
    order = np.argsort(value, kind="stable")
    place = np.empty(len(value), np.int64)
    place[order] = np.arange(len(value))  # to compare places, and not sums that would be rounded
    largest = np.maximum.accumulate(group * len(value) + place) - group * len(value)
    return np.asarray(value[order[largest]])


def keys(group: Ints, line: Ints) -> Ints:
    """Group and line as one number; lines are from -1 on."""
    return np.asarray(group << _BITS | line + 1)


def last_before(group: Ints, line: Ints, asked_group: Ints, asked_line: Ints) -> Ints:
    """The row of a group that comes last before each asked line; -1 where none does."""
    order = np.lexsort((line, group))
    key = keys(group[order], line[order])
    place = np.searchsorted(key, keys(asked_group, asked_line)) - 1
    there = is_in(key, place, asked_group)
    found = np.full(len(place), -1)
    found[there] = order[place[there]]
    return found


def last_of(group: Ints) -> tuple[list[int], Ints]:
    """The groups that there are, and the last row of each."""
    groups, place = np.unique(group[::-1], return_index=True)
    return groups.tolist(), np.asarray(len(group) - 1 - place)


def is_in(key: Ints, place: Ints, group: Ints) -> npt.NDArray[np.bool_]:
    """Whether there is a key at each place, and of that group."""
    inside = (place >= 0) & (place < len(key))
    found = np.zeros(len(place), np.bool_)
    found[inside] = key[place[inside]] >> _BITS == group[inside]
    return found


def spread(count: Ints) -> tuple[Ints, Ints]:
    """For rows that stand for so many parts: the row of each part, and which part it is."""
    row = np.repeat(np.arange(len(count)), count)
    before = np.cumsum(count) - count
    return row, np.arange(len(row)) - before[row]


def places(
    group: Ints, value: Floats, asked_group: Ints, asked: Floats, *, after: bool = False
) -> Ints:
    """Before which row each asked value comes, where rows are in order of group and value.

    Args:
        group: Of the rows.
        value: Of the rows.
        asked_group: Where to look.
        asked: What to look for.
        after: Whether it comes after rows that have that very value.
    """
    count = len(group)
    tie = np.repeat([0, 1] if after else [1, 0], [count, len(asked)])
    order = np.lexsort((tie, np.append(value, asked), np.append(group, asked_group)))
    is_row = order < count
    found = np.empty(len(asked), np.int64)
    found[order[~is_row] - count] = np.cumsum(is_row)[~is_row]
    return found
