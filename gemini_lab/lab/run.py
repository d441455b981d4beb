"""`Run`: a job under way on a lab, as its owner sees it."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.injector.failures import Failure
from gemini_lab.injector.orders import Cast, Order, orders
from gemini_lab.injector.scenario import Scenario
from gemini_lab.job import Job
from gemini_lab.lab import pages
from gemini_lab.lab.cluster import RunOwner
from gemini_lab.lab.control import close_control
from gemini_lab.lab.progress import show_progress
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.file import LOG_FILE, EventLog, read_log
from gemini_lab.report import RunReport, load_report
from gemini_lab.report.output import last_lines
from gemini_lab.report.reducers.course import Course, Phase
from gemini_lab.report.reducers.nodes import Nodes
from gemini_lab.report.reducers.reached import Reached
from gemini_lab.seats import Seats

PHASES: Final[dict[Phase, str]] = {
    "waiting for events": "starting",
    "waiting for machines": "waiting",
    "finished": "over",
    "failed": "over",
}
"""What `Run.phase` calls a phase, where it has a word of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """What a run is from its start.

    Attributes:
        folder: Where it keeps its log; it is there, and empty.
        number: Counts the lab's runs.
        job: What runs.
        seats: How many nodes and workers, and their racks.
        scenario: Failures to inject on the way.
        root: The node with the root agent.
    """

    folder: Path
    number: int
    job: Job
    seats: Seats
    scenario: Scenario = field(default_factory=Scenario)
    root: str | None = None


class Run:
    """A job under way, or one that is over; its log is in `folder`.

    Args:
        origin: What it is.
        owner: Whose nodes it is on.

    Attributes:
        folder: The run's folder: event log, workers' output, persistent tier.
        log: The event log in it.
        iteration: Newest iteration that every rank has finished.
        phase: starting, training, recovering, waiting (for machines) or over.
        members: The node on each position.
        root: The node with the root agent.
        failure: Why the run was given up, if it was.
    """

    def __init__(self, origin: RunOrigin, owner: RunOwner) -> None:
        self.folder = origin.folder
        self.number = origin.number
        self.job = origin.job
        self.iteration = 0
        self.members: list[str] = []
        self.root = origin.root
        self.failure: str | None = None
        self.phase = "starting"
        self._owner = owner
        self._seats = origin.seats
        self._scenario = origin.scenario
        self.log = origin.folder / LOG_FILE
        self._log = EventLog(self.log)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._watchers: list[Callable[[Entry], None]] = []
        self._listeners: list[Callable[[int, list[str]], None]] = []
        self._course, self._nodes, self._reached = Course(), Nodes(), Reached()
        self._training_since_s: float | None = None

    # -- for its owner -------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or failed."""
        return self._over.is_set()

    def is_over_within(self, timeout_s: float) -> bool:
        """Whether the run is over; waits for that, but not longer than `timeout_s`."""
        return self._over.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> "Run":
        """Wait for the end.

        Raises:
            TimeoutError: It is not over in time.
            RunFailedError: The run was given up; the message says why.
        """
        if not self._over.wait(timeout_s):
            raise TimeoutError(f"{self} is not over after {timeout_s:.0f} s")
        if self.failure is not None:
            said = [f"{self.folder.name} failed: {self.failure}", *last_lines(self._course.output)]
            raise RunFailedError("\n  | ".join(said))
        return self

    def progress(
        self, total: int | None = None, *, until: int | None = None, show_output: bool = False
    ) -> "Run":
        """Show a bar, and failures as they come, from the cell that calls this.

        An interrupt ends the bar, not the run.

        Args:
            total: Iterations of the job, the bar's full length.
            until: Return once every rank has finished so many; by default at the end.
            show_output: Show what rank 0 prints, too.

        Raises:
            RunFailedError: The run was given up; the message says why.
        """
        show_progress(self, total=total, until=until, show_output=show_output)
        return self.wait() if self.is_over else self

    def stop(self) -> None:
        """End the run; its log and persistent versions stay."""
        if not self.is_over:
            self._owner.stop(self.number)

    def give_up_progress(self) -> None:
        """Go on from the best version at hand: wait no more for newer ones that may come back.

        A run that waits says for what, in its log and in `progress`. What it gives up is computed
        again, or lost if training is not deterministic.
        """
        if not self.is_over:
            self._owner.give_up_progress(self.number)

    def inject(self, failure: Failure) -> list[Order]:
        """Make a failure happen now; returns which node was told to do what to itself.

        Raises:
            ConfigError: The run is over, or the failure names a node or rank that is not there.
        """
        if self.is_over or not self.members:
            raise ConfigError(f"nothing can fail now: {self} has no workers")
        given = orders(failure, self._cast(), seed=self._scenario.seed)
        for order in given:
            self._owner.obey(order)
        return given

    def events(self, *kinds: str) -> list[Entry]:
        """What the log says so far, in order of arrival: all of it, or only these kinds."""
        said = read_log(self.log)
        return [entry for entry in said if not kinds or entry.kind in kinds]

    def report(self) -> RunReport:
        """What the run did so far, from its log."""
        return load_report(self.folder)

    def save(self, path: str | Path) -> Path:
        """Write what the dashboard shows of the run so far to one HTML file, for any browser.

        The file needs no network and no server. Returns its path.

        Raises:
            ConfigError: Panel is not installed, or the file cannot be written.
        """
        return pages.save_log(self.log, path)

    def watch(self, watcher: Callable[[Entry], None]) -> Callable[[], None]:
        """Call `watcher` with every event from now on, on the lab's thread.

        Returns a function that ends this.
        """
        self._watchers = [*self._watchers, watcher]
        return lambda: self._forget(watcher)

    def listen(self, listener: Callable[[int, list[str]], None]) -> Callable[[], None]:
        """Call `listener` with a rank and the lines it prints, on the lab's thread.

        Returns a function that ends this.
        """
        self._listeners = [*self._listeners, listener]
        return lambda: self._forget(listener)

    def controls(self) -> pages.Controls:
        """Buttons that make the run fail, or end it.

        Raises:
            ConfigError: ipywidgets is not installed.
        """
        return pages.controls_of(self)

    def __repr__(self) -> str:
        return f"<Run {self.folder.name}: iteration {self.iteration}, {self.phase}>"

    def _repr_html_(self) -> str:
        nodes = ", ".join(f"{n} (root)" if n == self.root else n for n in self.members)
        rows = {
            "run": self.folder.name,
            "phase": self.phase,
            "iteration": self.iteration,
            "nodes": nodes,
            "failure": self.failure or "none",
            "folder": self.folder,
        }
        cells = (f"<tr><th>{name}</th><td>{escape(str(v))}</td></tr>" for name, v in rows.items())
        return f"<table>{''.join(cells)}</table>"

    # -- for the lab ---------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Add an entry to the log."""
        with self._lock:
            if not self.is_over or isinstance(entry.event, events.LabClosed):
                self._log.append(entry)
        self._follow(entry)
        for watcher in self._watchers:
            watcher(entry)
        if isinstance(entry.event, events.Iteration):
            self.strike()

    def take_output(self, rank: int, lines: list[str]) -> None:
        """Add a worker's printed lines to its file."""
        folder = self.folder / "output"
        folder.mkdir(exist_ok=True)
        with (folder / f"rank-{rank}.log").open("a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
        for listener in self._listeners:
            listener(rank, lines)

    def strike(self) -> None:
        """Inject what the scenario has for this moment."""
        if self.is_over or self._training_since_s is None:
            return
        elapsed_s = time.monotonic() - self._training_since_s
        coming, self._scenario = self._scenario.due(iteration=self.iteration, elapsed_s=elapsed_s)
        for failure in coming:
            try:
                self.inject(failure)
            except ConfigError as error:
                text = f"{failure} did not happen: {error}"
                self.take(Entry(at_s=time.time(), node="lab", event=events.Note(text=text)))

    def close(self) -> None:
        """Close the log."""
        close_control(self.folder)
        with contextlib.suppress(ValueError):
            self._log.close()

    def _forget(self, callback: object) -> None:
        self._watchers = [each for each in self._watchers if each is not callback]
        self._listeners = [each for each in self._listeners if each is not callback]

    def _cast(self) -> Cast:
        return Cast(
            members=self.members,
            root=self.root or self.members[0],
            racks=self._seats.nodes_by_rack,
            workers_per_node=self._seats.workers_per_node,
            standbys=[node for node in self._owner.living if node not in self.members],
        )

    def _follow(self, entry: Entry) -> None:
        for part in (self._course, self._nodes, self._reached):
            part.take(entry)
        self.root = self._nodes.root or self.root
        self.phase = PHASES.get(self._course.phase, self._course.phase)
        match entry.event:
            case events.Iteration(restored=False):
                self._training_since_s = self._training_since_s or time.monotonic()
                self.iteration = self._reached.done()
            case events.RecoveryPlanned():
                self.members = [str(node) for node in self._nodes.members]
                self.iteration = self._reached.done()
            case events.RunFailed(reason=reason):
                self.failure = reason
                self._end()
            case events.RunFinished():
                self._end()

    def _end(self) -> None:
        close_control(self.folder)
        self._over.set()
