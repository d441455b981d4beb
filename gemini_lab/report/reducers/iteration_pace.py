"""How fast iterations are, with checkpoints on their way and without: columns that only grow."""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, VersionComplete
from gemini_lab.report.reducers import seconds, whole

WINDOW: Final = 8192
"""Newest iterations that events may still add to."""

Floats = npt.NDArray[np.float64]
Kind = Literal["with", "without", "first"]


class IterationPace:
    """Duration of each iteration: the slowest rank's, and whether a version was on its way.

    Iteration n computes while version n-1 is sent. An epoch's first iteration warms up and counts
    apart; iterations that are done again after a failure are rows of their own.

    Memory: 41 bytes an iteration, and 12 bytes for each rank's version.
    """

    def __init__(self) -> None:
        self.late = 0  # events that came too late to be counted
        self._whole_row, self._whole_s = array("i"), array("d")  # a moment, or without a row a time
        self._rows: OrderedDict[tuple[int, int], int] = OrderedDict()  # by epoch and number
        self._number, self._epoch = array("q"), array("q")
        self._ended_s, self._duration_s, self._waited_s = array("d"), array("d"), array("d")
        self._is_sent = array("b")
        self._first: dict[int, int] = {}  # first iteration of each epoch

    def take(self, entry: Entry) -> None:
        match entry.event:
            case Iteration(restored=False) as done:
                self._ended(entry.at_s, done)
            case VersionComplete() as version:
                self._sent(entry.at_s, version)

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

    def _sent(self, at_s: float, version: VersionComplete) -> None:
        """Note that a version is whole on a rank; it was sent during the next iteration."""
        epoch, number = whole(version.epoch), whole(version.version)
        duration_s = seconds(version.duration_s)
        if version.whole_s is None:  # said by an older version of this package, or simulated
            self._whole_row.append(-1)
            self._whole_s.append(duration_s)
        elif (made := self._row(epoch, number)) is not None:
            self._whole_row.append(made)
            self._whole_s.append(seconds(at_s) - duration_s + seconds(version.whole_s))
        row = self._row(epoch, number + 1)
        if row is not None:
            self._is_sent[row] = 1

    # -- answers; each costs time in proportion to the run's length ------------------------------

    def reached(self) -> Callable[[int, float], float | None]:
        """Return a function: when all ranks had last reached a version before a moment.

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
        """Return each iteration's begin, end and wait on its slowest rank; shape `(n,)`."""
        ended_s, durations_s = np.array(self._ended_s), np.array(self._duration_s)
        done = durations_s > 0
        ended_s, durations_s = ended_s[done], durations_s[done]
        return ended_s - durations_s, ended_s, np.array(self._waited_s)[done]

    def numbers(self) -> npt.NDArray[np.int64]:
        """Return the number of each iteration in `spans`, in the same order."""
        return np.array(self._number)[np.array(self._duration_s) > 0]

    def checkpoint_times_s(self) -> Floats:
        """Return how long each version took to be whole on a rank, once all had made it."""
        row, times_s = np.array(self._whole_row), np.array(self._whole_s)
        ended_s = np.array(self._ended_s)
        if not row.size or not ended_s.size:
            return times_s
        is_moment = row >= 0
        made_s = np.where(is_moment, ended_s[row], 0.0)
        times_s = np.where(is_moment, np.maximum(0.0, times_s - made_s), times_s)
        return times_s[~is_moment | (made_s > 0)]  # of version 0 nobody says when it was made

    def checkpoint_median_s(self) -> float | None:
        """Return the median of `checkpoint_times_s`, t_ckpt."""
        times_s = self.checkpoint_times_s()
        return float(np.median(times_s)) if times_s.size else None

    def interval_median_s(self) -> float | None:
        """Return 1/f, the median time from one version in memory to the next one's.

        That is counted from the end of one iteration to the end of the next, each on the rank that
        ended last: an iteration's slowest rank is another one each time, so that the slowest
        ranks' durations add up to more than passes.
        """
        kinds = self.kinds()
        durations_s = np.concatenate([durations_s for _, durations_s, _ in kinds.values()])
        if not durations_s.size:
            return None
        sent, unsent = kinds["with"][0].size, kinds["without"][0].size
        every = round((sent + unsent) / sent) if sent else 1
        between_s = self._between_ends()
        return float(np.median(between_s if between_s.size else durations_s)) * every

    def _between_ends(self) -> Floats:
        """Return the times between iterations' ends, each on its slowest rank."""
        number, epoch = np.array(self._number), np.array(self._epoch)
        ended_s = np.array(self._ended_s)
        order = np.lexsort((number, epoch))
        order = order[ended_s[order] > 0]
        follows = (np.diff(number[order]) == 1) & (np.diff(epoch[order]) == 0)
        between_s: Floats = np.diff(ended_s[order])[follows]
        return between_s

    def kinds(self) -> dict[Kind, tuple[npt.NDArray[np.int64], Floats, Floats]]:
        """Return numbers, durations and waits of iterations by kind, each of shape `(n,)`."""
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
