"""`Run`: a job under way on a lab, as its owner sees it."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemini_lab.errors import RunFailedError
from gemini_lab.events import Event, EventLog
from gemini_lab.job import Job


class Run:
    """A job under way, or one that is over; its log is `folder/events.jsonl`.

    Attributes:
        folder: The run's folder: event log, workers' output, persistent tier.
        iteration: Newest iteration that every rank has finished.
        members: The node on each position.
        root: The node with the root agent.
        failure: Why the run was given up, if it was.
    """

    def __init__(
        self,
        *,
        folder: Path,
        number: int,
        job: Job,
        inject: Callable[[str, dict[str, Any]], None],
        stop: Callable[[int], None],
        scenario: Any = None,
    ) -> None:
        self.folder = folder
        self.number = number
        self.job = job
        self.iteration = 0
        self.members: list[str] = []
        self.root: str | None = None
        self.failure: str | None = None
        self.phase = "starting"
        self._log = EventLog(folder / "events.jsonl")
        self._inject, self._stop = inject, stop
        self._scenario = scenario
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._watchers: list[Callable[[Event], None]] = []
        self._by_rank: dict[int, int] = {}
        self._began_s = time.time()

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or failed."""
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> "Run":
        """Wait for the end.

        Raises:
            TimeoutError: It is not over in time.
            RunFailedError: The run was given up; the message says why.
        """
        if not self._over.wait(timeout_s):
            raise TimeoutError(f"{self} is not over after {timeout_s:.0f} s")
        if self.failure is not None:
            raise RunFailedError(f"{self.folder.name} failed: {self.failure}")
        return self

    def stop(self) -> None:
        """End the run; its log and persistent versions stay."""
        if not self.is_over:
            self._stop(self.number)

    def watch(self, watcher: Callable[[Event], None]) -> None:
        """Call `watcher` with every event from now on, on the lab's thread."""
        self._watchers.append(watcher)

    def take(self, event: Event) -> None:
        """Add an event to the log (the lab calls this)."""
        with self._lock:
            if not self._over.is_set() or event.kind == "lab_closed":
                self._log.append(event)
        self._follow(event)
        for watcher in self._watchers:
            watcher(event)

    def take_output(self, rank: int, lines: list[str]) -> None:
        """Add a worker's printed lines to its file (the lab calls this)."""
        folder = self.folder / "output"
        folder.mkdir(exist_ok=True)
        with (folder / f"rank-{rank}.log").open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)

    def close(self) -> None:
        """Close the log."""
        with contextlib.suppress(ValueError):
            self._log.close()

    def __repr__(self) -> str:
        state = "over" if self.is_over else self.phase
        return f"<Run {self.folder.name}: iteration {self.iteration}, {state}>"

    def _follow(self, event: Event) -> None:
        data = event.data
        match event.kind:
            case "iteration":
                self._by_rank[data["rank"]] = data["iteration"]
                self.iteration = min(self._by_rank.values())
                self.phase = "training"
            case "root_elected":
                self.root = data["name"]
            case "recovery_planned":
                self.members = list(data["members"])
                self._by_rank = {}
            case "recovery_started":
                self.phase = "recovering"
            case "run_failed":
                self.failure = data["reason"]
                self._over.set()
            case "run_finished":
                self._over.set()
