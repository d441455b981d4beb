"""Values that scripts logged, iteration by iteration: the loss, and any other.

Of each iteration the mean over ranks is kept, and a digest of what every rank said, to the bit: so
two runs of a million iterations are compared without keeping all that a thousand ranks said.
"""

from array import array
from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from struct import pack
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.report.reducers import is_lost, whole

OPEN: Final = 64
"""Newest iterations to which ranks may still add."""
MOST_NAMES: Final = 16

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedValues:
    """The values logged under one name; columns of shape `(n,)`, in order of iterations."""

    numbers: npt.NDArray[np.int64]
    means: Floats  # over the ranks
    counts: npt.NDArray[np.int64]  # ranks that said something
    digests: npt.NDArray[np.uint64]  # Equal where every rank said the same, to the bit


class _Column:
    """One name's rows: the newest by rank, older ones summed up."""

    def __init__(self) -> None:
        self.open: dict[int, dict[int, tuple[int, bool, float]]] = {}  # by iteration and rank
        self._number, self._mean = array("q"), array("d")
        self._count, self._digest = array("q"), array("Q")

    def add(self, number: int, rank: int, told: tuple[int, bool, float]) -> bool:
        """Take in what a rank told of an iteration: epoch, whether again, and the value.

        It says whether it did not come too late.
        """
        row = self.open.get(number)
        if row is None:
            if self._number and number <= self._number[-1]:
                return False
            row = self.open[number] = {}
        before = row.get(rank)
        if before is None or before[1] or (told[0] >= before[0] and not told[1]):
            row[rank] = told
        if len(self.open) > OPEN:
            self._close(min(self.open))
        return True

    def lose(self, version: int, *, epoch: int) -> None:
        """Forget what epochs before `epoch` did beyond `version`."""
        for number in [number for number in self.open if number > version]:
            row = self.open[number]
            kept = {rank: told for rank, told in row.items() if told[0] >= epoch}
            if kept:
                self.open[number] = kept
            else:
                del self.open[number]
        self._cut(version)

    def take_back(self, rank: int, version: int) -> None:
        """Forget what a rank did beyond a version; of rows that are summed up, all ranks'."""
        for number in [number for number in self.open if number > version]:
            self.open[number].pop(rank, None)
            if not self.open[number]:
                del self.open[number]
        self._cut(version)

    def _cut(self, version: int) -> None:
        place = bisect_right(self._number, version)
        for column in (self._number, self._mean, self._count, self._digest):
            del column[place:]

    def _close(self, number: int) -> None:
        mean, count, digest = _summed(self.open.pop(number))
        self._number.append(number)
        self._mean.append(mean)
        self._count.append(count)
        self._digest.append(digest)

    def told(self, until: int) -> LoggedValues:
        newest = [number for number in sorted(self.open) if number <= until]
        sums = [_summed(self.open[number]) for number in newest]
        means, counts, digests = zip(*sums, strict=True) if sums else ((), (), ())
        return LoggedValues(
            numbers=np.append(np.array(self._number), np.array(newest, np.int64)),
            means=np.append(np.array(self._mean), np.array(means, np.float64)),
            counts=np.append(np.array(self._count), np.array(counts, np.int64)),
            digests=np.append(np.array(self._digest), np.array(digests, np.uint64)),
        )


def _summed(row: Mapping[int, tuple[int, bool, float]]) -> tuple[float, int, int]:
    told = sorted((rank, value) for rank, (_, _, value) in row.items())
    said = b"".join(pack("<qd", rank, value) for rank, value in told)
    try:
        mean = fsum(value for _, value in told) / len(told)
    except (OverflowError, ValueError):  # an infinite one among them, or both
        mean = sum(value for _, value in told) / len(told)
    return mean, len(told), xxhash.xxh3_64_intdigest(said)


class Logged:
    """Values that scripts logged in the iterations that count: neither lost nor overtaken.

    Memory: 32 bytes for each name and iteration, and `OPEN` iterations rank by rank.
    """

    def __init__(self) -> None:
        self.late = 0  # values that came too late to be counted
        # Values under names beyond the first `MOST_NAMES`, of which nothing is kept.
        self.left_out = 0
        self._columns: dict[str, _Column] = {}
        self._plans: list[tuple[int, int]] = []  # epoch and version, in order of epochs

    def take(self, entry: Entry) -> None:
        match entry.event:
            case events.RecoveryPlanned() as plan:
                epoch, version = whole(plan.epoch), whole(plan.version or 0)
                insort(self._plans, (epoch, version))
                for column in self._columns.values():
                    column.lose(version, epoch=epoch)
            case events.Rewound(rank=rank, version=version):
                for column in self._columns.values():
                    column.take_back(rank, whole(version))
            case events.Iteration(values=values) as done if values:
                if not is_lost(done.iteration, done.epoch, self._plans):
                    self._add(done)

    def _add(self, done: events.Iteration) -> None:
        for name in done.values:
            column, value = self._column(name), done.value(name)
            if column is None or value is None:
                continue
            told = done.epoch, done.restored, value
            if not column.add(whole(done.iteration), done.rank, told):
                self.late += 1

    def _column(self, name: str) -> _Column | None:
        column = self._columns.get(name)
        if column is None:
            if len(self._columns) >= MOST_NAMES:
                self.left_out += 1
                return None
            column = self._columns[name] = _Column()
        return column

    # -- answers ---------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._columns, key=lambda name: name != "loss"))

    def told(self, name: str, *, until: int) -> LoggedValues:
        """Return the values under a name, up to an iteration that every rank has ended."""
        return self._columns.get(name, _Column()).told(until)
