"""How fast iterations are, with checkpoints on their way and without: columns that only grow."""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, VersionComplete
from gemini_lab.report.reducers.checks import seconds, whole

WINDOW: Final = 8192
"""Newest iterations that events may still add to."""

Floats = npt.NDArray[np.float64]
Kind = Literal["with", "without", "first"]


class Pace:
    """Duration of each iteration: the slowest rank's, and whether a version was on its way.

    Iteration n computes while version n-1 is sent. An epoch's first iteration warms up and counts
    apart; iterations that are done again after a failure are rows of their own.

    Memory: 41 bytes an iteration, and 8 bytes for each rank's version.

    Attributes:
        checkpoint_s: How long each version took to be whole on each rank.
        late: Events that came too late to be counted.
    """

    def __init__(self) -> None:
        self.checkpoint_s = array("d")
        self.late = 0
        self._rows: OrderedDict[tuple[int, int], int] = OrderedDict()  # by epoch and number
        self._number, self._epoch = array("q"), array("q")
        self._ended_s, self._duration_s, self._waited_s = array("d"), array("d"), array("d")
        self._is_sent = array("b")
        self._first: dict[int, int] = {}  # first iteration of each epoch

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case Iteration(restored=False) as done:
                self._ended(entry.at_s, done)
            case VersionComplete() as version:
                self._sent(version)

    def _row(self, epoch: int, number: int) -> int | None:
        row = self._rows.get((epoch, number))
        if row is not None:
            return row
        if len(self._rows) == WINDOW:
            if (epoch, number) < next(iter(self._rows)):
                self.late += 1
                return None
            self._rows.popitem(last=False)
        row = self._rows[epoch, number] = len(self._number)
        self._number.append(number)
        self._epoch.append(epoch)
        for column in (self._ended_s, self._duration_s, self._waited_s):
            column.append(0.0)
        self._is_sent.append(0)
        return row

    def _ended(self, at_s: float, done: Iteration) -> None:
        duration_s, waited_s = seconds(done.duration_s), seconds(done.waited_s)
        epoch, number = whole(done.epoch), whole(done.iteration)
        row = self._row(epoch, number)
        if row is None:
            return
        self._ended_s[row] = max(self._ended_s[row], seconds(at_s))
        self._duration_s[row] = max(self._duration_s[row], duration_s)
        self._waited_s[row] = max(self._waited_s[row], waited_s)
        self._first[epoch] = min(number, self._first.get(epoch, number))

    def _sent(self, version: VersionComplete) -> None:
        """A version is whole on one rank; it was sent during the next iteration."""
        self.checkpoint_s.append(seconds(version.duration_s))
        row = self._row(whole(version.epoch), whole(version.version) + 1)
        if row is not None:
            self._is_sent[row] = 1

    # -- answers; each costs time in proportion to the run's length ------------------------------

    def reached(self) -> Callable[[int, float], float | None]:
        """A function of a version and a moment: when all ranks had last reached it before that.

        It costs a search in the iterations that there are now.
        """
        numbers, ended_s = np.array(self._number), np.array(self._ended_s)
        by_number = np.argsort(numbers, kind="stable")
        numbers, ended_s = numbers[by_number], ended_s[by_number]

        def when(version: int, until_s: float) -> float | None:
            first, end = np.searchsorted(numbers, [version, version + 1]).tolist()
            times_s = ended_s[first:end]
            times_s = times_s[(times_s > 0) & (times_s <= until_s)]
            return float(times_s.max()) if times_s.size else None

        return when

    def spans(self) -> tuple[Floats, Floats, Floats]:
        """When each iteration began and ended on the slowest rank, and its wait; shape `(n,)`."""
        ended_s, durations_s = np.array(self._ended_s), np.array(self._duration_s)
        done = durations_s > 0
        ended_s, durations_s = ended_s[done], durations_s[done]
        return ended_s - durations_s, ended_s, np.array(self._waited_s)[done]

    def numbers(self) -> npt.NDArray[np.int64]:
        """The number of each iteration that `spans` tells of, in the same order."""
        return np.array(self._number)[np.array(self._duration_s) > 0]

    def checkpoint_median_s(self) -> float | None:
        """t_ckpt: median time until a version was whole on a rank."""
        return float(np.median(self.checkpoint_s)) if self.checkpoint_s else None

    def interval_median_s(self) -> float | None:
        """1/f: median time from one version in memory to the next one's."""
        kinds = self.kinds()
        durations_s = np.concatenate([durations_s for _, durations_s, _ in kinds.values()])
        if not durations_s.size:
            return None
        sent, unsent = kinds["with"][0].size, kinds["without"][0].size
        every = round((sent + unsent) / sent) if sent else 1
        return float(np.median(durations_s)) * every

    def kinds(self) -> dict[Kind, tuple[npt.NDArray[np.int64], Floats, Floats]]:
        """Numbers, durations and waiting times of iterations by kind, all of shape `(n,)`."""
        number, epoch = np.array(self._number), np.array(self._epoch)
        durations_s, waited_s = np.array(self._duration_s), np.array(self._waited_s)
        done = durations_s > 0
        sent = np.array(self._is_sent) == 1
        epochs, which = np.unique(epoch, return_inverse=True)
        firsts = np.array([self._first.get(e, 0) for e in epochs.tolist()], dtype=np.int64)
        is_first = number == (firsts[which] if number.size else number)
        picks: dict[Kind, npt.NDArray[np.bool_]] = {
            "with": done & sent & ~is_first,
            "without": done & ~sent & ~is_first,
            "first": done & is_first,
        }
        return {k: (number[p], durations_s[p], waited_s[p]) for k, p in picks.items()}
