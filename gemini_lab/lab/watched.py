"""A run's reducer that is kept up to date, wherever the log comes from: for commands that look."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from gemini_lab.lab.access import Finder
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.file import LOG_FILE
from gemini_lab.log.follow import LogFeed
from gemini_lab.report.metrics import FOR_METRICS, Snapshot, snapshot_of
from gemini_lab.report.reducer import RunReducer

Answer = TypeVar("Answer")
APART_S: Final = 1.0
MOMENTS: Final = 2000


class Watched:
    """What a run's log comes to so far.

    Args:
        name: The run's.
        folder: The run's, if its log is read there; else whoever has it calls `take`.
    """

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._run = RunReducer(name=name, keep=FOR_METRICS)
        self._feed = None if folder is None else LogFeed(folder / LOG_FILE)
        self._lock = threading.Lock()

    def take(self, entry: Entry) -> None:
        """Take in the log's next entry."""
        with self._lock:
            self._run.take(entry)

    def ask(self, question: Callable[[RunReducer, float], Answer]) -> Answer:
        """What `question` says of the run as it is now, and of the moment."""
        with self._lock:
            while self._feed is not None and (entries := self._feed.poll()):
                self._run.extend(entries)
            return question(self._run, time.time())

    @property
    def bad_lines(self) -> int:
        """Lines of its log that were no events."""
        return 0 if self._feed is None else self._feed.bad_lines

    def snapshots(self) -> Iterator[Snapshot]:
        """The metrics after each iteration that was told since, and as they are now.

        Such moments are `APART_S` apart or more, and the further apart the older the run is: a
        snapshot costs time in proportion to the iterations so far. What others `take` has no
        moments of its own: of that there is only the newest.
        """
        next_s = 0.0
        while self._feed is not None and (entries := self._feed.poll()):
            for entry in entries:
                self.take(entry)
                if isinstance(entry.event, events.Iteration) and entry.at_s >= next_s:
                    with self._lock:
                        then = snapshot_of(self._run, now_s=entry.at_s, is_newest=False)
                    next_s = then.at_s + max(APART_S, (then.at_s - then.started_s) / MOMENTS)
                    yield then
        yield self.ask(lambda run, now_s: snapshot_of(run, now_s=now_s))


@contextmanager
def watched(finder: Finder) -> Iterator[Watched]:
    """The run that `finder` finds: from its log where that is seen here, else from its owner.

    Raises:
        TimeoutError: The owner does not tell.
    """
    if finder.folder is not None:
        yield Watched(finder.name, finder.folder)
        return
    run = AttachedRun(finder.name, finder.way)
    seen = Watched(finder.name)
    run.watch(seen.take)
    with run:
        run.catch_up()
        yield seen
