"""The runs that a page offers: the one it shows, and those beside which it can be put."""

import time
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from gemini_lab.errors import GeminiError
from gemini_lab.log.events import RunStarted
from gemini_lab.log.file import LOG_FILE, name_of, read_log
from gemini_lab_widgets.follow import ShownRun

NEWEST: Final = 50
"""Runs of a folder that are offered."""
LISTED_S: Final = 1.5
"""Between two looks for runs."""
HEAD: Final = 50
"""Entries of a log among which the job is told."""


class Library:
    """Runs by name, each read once for all visitors.

    Args:
        newest: Gives the log to show by default, or None while there is none.
        beside: The log of the run to compare with; by default the newest earlier run of the same
            job.
        is_open: Whether the other runs of that folder may be chosen, too.
    """

    def __init__(
        self,
        newest: Callable[[], Path | None],
        *,
        beside: Path | None = None,
        is_open: bool = True,
    ) -> None:
        self.latest = ShownRun(newest)
        self._newest = newest
        self._beside, self._is_open = beside, is_open
        self._listed: tuple[float, Path | None, dict[str, Path]] = float("-inf"), None, {}
        self._followers: WeakValueDictionary[Path, ShownRun] = WeakValueDictionary()

    def names(self) -> dict[str, Path]:
        """The log of every run that may be chosen, by its name, newest first.

        The folder is looked through now and then, however many visitors ask.
        """
        log, now_s = self._newest(), time.monotonic()
        seen_s, seen, found = self._listed
        if log != seen or now_s - seen_s > LISTED_S:
            found = {} if log is None else self._found(log)
            self._listed = now_s, log, found
        return found

    def _found(self, log: Path) -> dict[str, Path]:
        found = []
        if self._is_open and log.name == LOG_FILE:
            found = sorted(log.parent.parent.glob(f"*/{LOG_FILE}"), key=_changed_s)[::-1][:NEWEST]
        if self._beside is not None and self._beside not in found:
            found.append(self._beside)
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

    def partner(self, log: Path) -> Path | None:
        """Return the log to compare with by default: the newest earlier run of the job."""
        if self._beside is not None:
            return self._beside if self._beside != log else None
        mine = job_of(log)
        if mine is None:
            return None
        others = [(job_of(one), one) for one in self.names().values() if one != log]
        same = [
            (job[1], one) for job, one in others if job and job[0] == mine[0] and job[1] < mine[1]
        ]
        return max(same)[1] if same else None


def job_of(log: Path) -> tuple[tuple[object, ...], float] | None:
    """Return what a run computes, and when it began; `None` until its log says so."""
    try:
        return _job_of(log)
    except LookupError:
        return None


@lru_cache(maxsize=1024)
def _job_of(log: Path) -> tuple[tuple[object, ...], float]:
    """Kept only where the log says it.

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
