"""The runs that pages show: each read once for all visitors, and those that can be chosen."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from gemini_lab.errors import GeminiError
from gemini_lab.log.events import RunStarted
from gemini_lab.log.file import LOG_FILE, name_of, read_log
from gemini_lab.report.follower import LONG, SLICE, LogFollower, cache_folder, keep, reopened, room
from gemini_lab.report.moments import Moments
from gemini_lab.report.tables import Tables
from gemini_lab.units import format_bytes
from gemini_lab_widgets.store import EventStore

PULL_S: Final = 0.1
"""Seconds between two reads of the log, for any number of visitors."""
SURE_S: Final = 3.0
"""After this long a page estimates how long the rest of a log takes."""
MUCH_BYTES: Final = 1 << 30
"""Disk space of which a page warns beforehand."""
WHILE_S: Final = 0.3
"""How long a long log is read before pages are answered again."""


class ShownRun:
    """Feeds one `EventStore` from the log of the newest run.

    Every page calls `pull` and then draws from `store`; without a page, nothing is read. All
    calls come from one thread, the server's.

    Args:
        newest: Gives the log to show, or None while there is none. When it gives another one, a new
            store begins.

    Attributes:
        store: What was read so far.
        is_catching_up: Whether the log has more than was taken at once.
    """

    def __init__(self, newest: Callable[[], Path | None]) -> None:
        self.store = EventStore()
        self.log: Path | None = None
        self._number = 0
        self.is_catching_up = False
        self._newest = newest
        self._reading: LogFollower | None = None
        self._since_s, self._from_bytes, self._room = 0.0, 0, ""
        self._pulled_at_s = float("-inf")
        self._tables: dict[tuple[str, ...], tuple[object, Tables]] = {}

    @property
    def name(self) -> str:
        return "" if self.log is None else name_of(self.log)

    @property
    def state(self) -> tuple[int, int]:
        """Return the run's number and its count of events: it changes with each event."""
        return self._number, self.store.run.count

    @property
    def progress(self) -> str:
        """Return how far the reading of a long log is, in words."""
        if self._reading is None:
            return ""
        feed, behind_bytes = self._reading.source, self.behind_bytes
        done_bytes = feed.read_bytes - self._from_bytes
        took_s = time.monotonic() - self._since_s
        words = [
            f"{feed.read_bytes / (feed.read_bytes + behind_bytes):.0%} is shown",
            f"{format_bytes(behind_bytes)} to go",
        ]
        if done_bytes > 0 and took_s > SURE_S:
            left_s = behind_bytes * took_s / done_bytes
            words.append(f"about {left_s / 60:.0f} min" if left_s > 90 else f"about {left_s:.0f} s")
        return ", ".join(words) + ("" if self.trouble else self._room)

    def _room_of(self, log: Path) -> str:
        """Return a notice about the disk space that a long log needs; empty if it needs little."""
        with suppress(OSError):
            kept_bytes, free_bytes = room(log)
            if kept_bytes > free_bytes:
                free = f"{format_bytes(free_bytes)} is free in {cache_folder()}"
                return f"; {free}, so that some of it will be shown coarsely"
            if kept_bytes > MUCH_BYTES:
                return f"; about {format_bytes(kept_bytes)} is kept in {cache_folder()}"
        return ""

    @property
    def trouble(self) -> str:
        """Return why a part of the timeline is shown coarsely; empty if none is."""
        pyramid = self.store.traffic.pyramid
        if pyramid is None or not pyramid.trouble:
            return ""
        why = f"{cache_folder()} is full ({pyramid.trouble})"
        return f"a part of the timeline is coarse: {why}; make room and open the page again"

    @property
    def behind_bytes(self) -> int:
        return 0 if self._reading is None else int(self._reading.source.behind_bytes)

    def pull(self) -> None:
        """Read what is new, at most a slice, and not more often than every `PULL_S`."""
        now_s = time.monotonic()
        if now_s - self._pulled_at_s < PULL_S:
            return
        log = self._newest()
        if log is not None and log != self.log:
            self.log = log
            self._reading = reopened(log, name=self.name)
            self._since_s, self._from_bytes = now_s, self._reading.source.read_bytes
            self._room = self._room_of(log)
            self.store = EventStore(run=self._reading.run)
            self._number += 1
            self._tables.clear()
        if self._reading is not None:
            self._read(self._reading)
        self._pulled_at_s = time.monotonic()

    def _read(self, reading: LogFollower) -> None:
        """Read for a short while; save a long log once all of it is known."""
        until_s = time.monotonic() + WHILE_S
        while reading.read(limit=SLICE):
            if time.monotonic() > until_s:
                self.is_catching_up = True
                return
        self.is_catching_up = False
        if reading.news >= max(LONG, reading.kept // 4):
            keep(reading)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.end()

    def tables(self, beside: "Sequence[ShownRun]" = ()) -> Tables:
        """Return the tables, compared with other runs; they are made once for all pages."""
        state = self.state, [(one.log, one.state) for one in beside]
        names = tuple(one.name for one in beside)
        made = self._tables.get(names)
        if made is None or made[0] != state:
            self.store.earlier = tuple(one.store for one in beside)
            made = self._tables[names] = state, self.store.tables()
        return made[1]

    @property
    def moments(self) -> Moments | None:
        return None if self._reading is None else self._reading.moments


NEWEST: Final = 50
"""Runs of a folder that are offered."""
LISTED_S: Final = 1.5
"""Between two looks for runs."""
HEAD: Final = 50
"""Entries at a log's start that describe the job."""


class Library:
    """Runs by name, each read once for all visitors.

    Args:
        newest: Gives the log to show by default, or None while there is none.
        beside: Logs of the runs to compare with; by default the newest earlier run of the same job.
        is_open: Whether the other runs of that folder may be chosen, too.
    """

    def __init__(
        self,
        newest: Callable[[], Path | None],
        *,
        beside: Sequence[Path] = (),
        is_open: bool = True,
    ) -> None:
        self.latest = ShownRun(newest)
        self._newest = newest
        self._beside, self._is_open = beside, is_open
        self._listed: tuple[float, Path | None, dict[str, Path]] = float("-inf"), None, {}
        self._followers: WeakValueDictionary[Path, ShownRun] = WeakValueDictionary()

    def names(self) -> dict[str, Path]:
        """Return the log of every run that may be chosen, by its name, newest first.

        The folder is looked through now and then, however many visitors ask.
        """
        log, now_s = self._newest(), time.monotonic()
        seen_s, seen, found = self._listed
        if log != seen or now_s - seen_s > LISTED_S:
            found = {} if log is None else self._found(log)
            self._listed = now_s, log, found
        return found

    def _found(self, log: Path) -> dict[str, Path]:
        found = _siblings(log) if self._is_open else []
        found += [one for one in self._beside if one not in found]
        return {name_of(one): one for one in (*found, *([] if log in found else [log]))}

    def follower(self, log: Path) -> ShownRun:
        """Return the run with this log; it is forgotten when no page shows it."""
        found = self._followers.get(log)
        if found is None:
            found = self._followers[log] = ShownRun(lambda: log)
        return found

    def close(self) -> None:
        for one in (self.latest, *self._followers.values()):
            one.close()

    def partners(self, log: Path) -> list[Path]:
        """Return the logs to compare with by default: the newest earlier run of the job."""
        if self._beside:
            return [one for one in self._beside if one != log]
        mine = job_of(log)
        if mine is None:
            return []
        others = [(job_of(one), one) for one in _siblings(log) if one != log]
        same = [
            (job[1], one) for job, one in others if job and job[0] == mine[0] and job[1] < mine[1]
        ]
        return [max(same)[1]] if same else []


def _siblings(log: Path) -> list[Path]:
    """Return the newest logs of the same folder, the newest first."""
    if log.name != LOG_FILE:
        return []
    return sorted(log.parent.parent.glob(f"*/{LOG_FILE}"), key=_changed_s)[::-1][:NEWEST]


def job_of(log: Path) -> tuple[tuple[object, ...], float] | None:
    """Return what a run computes, and when it began; `None` until its log says so."""
    try:
        return _job_of(log)
    except LookupError:
        return None


@lru_cache(maxsize=1024)
def _job_of(log: Path) -> tuple[tuple[object, ...], float]:
    """Return it, and remember it only if the log says it.

    Raises:
        LookupError: It does not.
    """
    try:
        for entry in islice(read_log(log), HEAD):
            match entry.event:
                case RunStarted() as job:
                    what = (job.script, job.module, job.args, job.nodes, job.workers_per_node)
                    return what, entry.at_s
    except (OSError, GeminiError) as error:
        raise LookupError(log) from error
    raise LookupError(log)


def _changed_s(log: Path) -> float:
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0
