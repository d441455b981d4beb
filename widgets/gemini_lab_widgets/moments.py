"""A run as it was at any moment of it: its log, reduced up to there.

The reducer is deterministic, so a run at a moment is what the log comes to up to that moment. Now
and then on the way a copy of the reducer is kept, so that going to a moment costs the entries since
the copy before it, and not those since the start.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gemini_lab.log.follow import LogFeed
from gemini_lab.report.reducer import FOR_DASHBOARD, RunReducer

AT_A_MOMENT: Final = replace(FOR_DASHBOARD, bars=0)
"""The timeline itself is not replayed: it shows all moments, and where this one is."""
STEP: Final = 500
"""Entries that are read at once; a copy is kept after some of these steps."""
MOST_COPIES: Final = 32
"""With more, every second one goes and they are made half as often."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """What was read of a log up to some place, ready to go on from there."""

    run: RunReducer
    feed: LogFeed

    @property
    def newest_s(self) -> float:
        """Up to when it knows the run."""
        return float("-inf") if self.run.newest_s is None else self.run.newest_s

    def again(self) -> "_Copy":
        return _Copy(*deepcopy((self.run, self.feed)))


class Moments:
    """The moments of one run, for all visitors.

    Args:
        log: The run's.
        name: What to call it.

    Attributes:
        copies: Kept so far, the first of them of nothing.
    """

    def __init__(self, log: Path, *, name: str = "") -> None:
        self._ahead = _Copy(RunReducer(name=name, keep=AT_A_MOMENT), LogFeed(log))
        self._every, self._steps = 1, 0
        self.copies = [self._ahead.again()]

    def reach(self, at_s: float, *, steps: int = 20) -> bool:
        """Read towards a moment of the log's clock, some steps at most; whether it was reached.

        A log that has not come to that moment yet counts as reached where it ends.
        """
        for _ in range(steps):
            if self._ahead.newest_s > at_s:
                return True
            entries = self._ahead.feed.poll(limit=STEP)
            if not entries:
                return True
            self._ahead.run.extend(entries)
            self._keep()
        return False

    def _keep(self) -> None:
        self._steps += 1
        if self._steps % self._every:
            return
        self.copies.append(self._ahead.again())
        if len(self.copies) > MOST_COPIES:
            self.copies = self.copies[::2]
            self._every *= 2

    def at(self, at_s: float) -> RunReducer:
        """The run after all entries up to the first one that is later than `at_s`.

        `reach` has to have been there.
        """
        newest = next(one for one in reversed(self.copies) if one.newest_s <= at_s)
        found = newest.again()
        while entries := found.feed.poll(limit=STEP):
            for entry in entries:
                if entry.at_s > at_s:
                    return found.run
                found.run.take(entry)
        return found.run
