"""The run that pages show: its store, fed once for all visitors."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gemini_lab.log.follow import LogFeed, name_of
from gemini_lab.report.moments import Moments
from gemini_lab.report.reopen import Reading, keep, reopened
from gemini_lab.report.tables import Tables
from gemini_lab_widgets.store import EventStore

PULL_S: Final = 0.1
"""Between two looks at the log, however many visitors ask."""
SLICE: Final = 20_000
"""Events taken at once: a long log comes in slices, between which pages are answered."""


OFTEN: Final = 2_000_000
"""Entries of a long log after which it is kept on the way."""


class Follower:
    """Feeds one `EventStore` from the log of the newest run.

    Every page calls `pull` and then draws from `store`; where nobody looks, nothing is read. All
    calls come from one thread, the server's.

    Args:
        newest: Gives the log to show, or None while there is none. When it gives another one, a new
            store begins.

    Attributes:
        store: What was read so far.
        log: The file it came from.
        is_catching_up: Whether the log has more than was taken at once.
    """

    def __init__(self, newest: Callable[[], Path | None]) -> None:
        self.store = EventStore()
        self.log: Path | None = None
        self._number = 0
        self.is_catching_up = False
        self._newest = newest
        self._feed: LogFeed | None = None
        self._reading: Reading | None = None
        self._pulled_at_s = float("-inf")
        self._tables: dict[str, tuple[object, Tables]] = {}

    @property
    def name(self) -> str:
        """Name of the run: that of its folder, or of its file."""
        return "" if self.log is None else name_of(self.log)

    @property
    def state(self) -> tuple[int, int]:
        """What run it is, and how many of its events are known: differs when there is news."""
        return self._number, self.store.count

    @property
    def behind_bytes(self) -> int:
        """Of the log, what was not read yet."""
        return 0 if self._feed is None else int(self._feed.behind_bytes)

    def pull(self) -> None:
        """Read what is new, at most a slice, and not more often than every `PULL_S`."""
        now_s = time.monotonic()
        if now_s - self._pulled_at_s < PULL_S:
            return
        log = self._newest()
        if log is not None and log != self.log:
            self.log = log
            self._reading = reopened(log, name=self.name)
            self._feed = self._reading.feed
            self.store = EventStore(run=self._reading.run)
            self._number += 1
            self._tables.clear()
        if self._feed is not None:
            bad_lines = self._feed.bad_lines
            entries = self._feed.poll(limit=SLICE)
            self.store.extend(entries, bad_lines=self._feed.bad_lines - bad_lines)
            self.is_catching_up = len(entries) == SLICE
            if self._reading is not None:
                self._reading.note()
            self._keep()
        self._pulled_at_s = time.monotonic()

    def _keep(self) -> None:
        """Keep what was read for the next time, when a long log has been read, and on the way."""
        reading = self._reading
        if reading is None or not reading.is_worth_keeping:
            return
        if not self.is_catching_up or reading.run.count - reading.kept >= OFTEN:
            keep(reading)

    def tables(self, beside: "Follower | None" = None) -> Tables:
        """The tables of what was read so far, beside another run; made once for all pages."""
        state = self.state, None if beside is None else (beside.log, beside.state)
        name = "" if beside is None else beside.name
        made = self._tables.get(name)
        if made is None or made[0] != state:
            self.store.earlier = () if beside is None else (beside.store,)
            made = self._tables[name] = state, self.store.tables()
        return made[1]

    @property
    def moments(self) -> Moments | None:
        """The run at any moment of it; `None` while there is no run."""
        return None if self._reading is None else self._reading.moments
