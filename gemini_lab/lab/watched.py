"""A run's reducer that is kept up to date, wherever the log comes from: for commands that look."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from gemini_lab.lab.access import Finder
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.log.entry import Entry
from gemini_lab.log.file import LOG_FILE
from gemini_lab.log.follow import LogFeed
from gemini_lab.report.metrics import FOR_METRICS
from gemini_lab.report.reducer import RunReducer

Answer = TypeVar("Answer")


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
