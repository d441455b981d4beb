"""A run as its log tells it so far, wherever the log comes from."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, Self

from gemini_lab.display import last_lines, readable
from gemini_lab.errors import RunFailedError
from gemini_lab.lab.progress_bars import Shown
from gemini_lab.log import events
from gemini_lab.log.entry import Entry, readable_entry
from gemini_lab.log.events import FailureCause, PersistFailed, PersistFinished, PersistStarted
from gemini_lab.recovery.requests import Requestable
from gemini_lab.report.follower import LogFollower
from gemini_lab.report.recovery import WorkerExit, culprits
from gemini_lab.report.reducer import FOR_PROGRESS
from gemini_lab.report.reducers.course import Course, Phase
from gemini_lab.report.reducers.recoveries import exit_of
from gemini_lab.units import LARGEST

PHASES: Final[dict[Phase, str]] = {
    "waiting for events": "starting",
    "waiting for machines": "waiting",
    "finished": "over",
    "failed": "over",
    "stopped": "over",
}
"""What `phase` calls a phase, where it has a word of its own."""


GLANCE_S: Final = 0.05
"""Between two looks at how far a run has come."""
SHOWN_S: Final = 5.0
"""So long a bar may take for its last lines."""
MOST_EXITS: Final = 4096
"""Newest workers that ended early, of which is known how."""


class FollowedRun(Requestable):
    """A run that can be watched and waited for; the reader of its log calls `follow`.

    Args:
        name: What it is called.
        root: The node with the root agent, where that is known.

    Attributes:
        name: What it is called.
        iteration: Newest iteration that every rank has finished.
        phase: starting, training, recovering, waiting (for machines) or over.
        members: The node on each position.
        root: The node with the root agent.
        failure: Why the run was given up, if it was.
        cause: The same for programs.
        recoveries: How many there were, the one under way included.
        persisted: The version that reached the persistent tier last, and the tier's URL.
        total: Iterations after which the script's loop ends, if it says so.
        loss: Newest `"loss"` that the script logged, the mean of what ranks told last.
    """

    def __init__(self, name: str, *, root: str | None = None) -> None:
        self.name = readable(name)
        self.iteration = 0
        self.members: list[str] = []
        self.root = root
        self.failure: str | None = None
        self.phase = "starting"
        self.recoveries = 0
        self.persisted: tuple[int, str] | None = None
        self.total: int | None = None
        self._losses: dict[int, float] = {}  # by rank
        self.cause: FailureCause | None = None
        self._seen = LogFollower.of(self.name, keep=FOR_PROGRESS)
        self._exits: deque[WorkerExit] = deque(maxlen=MOST_EXITS)
        self._over = threading.Event()
        self._showing: list[threading.Thread] = []
        self._watchers: list[Callable[[Entry], None]] = []
        self._listeners: list[Callable[[int, list[str]], None]] = []

    @property
    def course(self) -> Course:
        """The run's facts."""
        return self._seen.run.course

    @property
    def detail(self) -> str:
        """The step of a start or a recovery; empty if there is no more to say than `phase`."""
        return self.course.detail if self.phase in {"starting", "recovering", "waiting"} else ""

    @property
    def loss(self) -> float | None:
        losses = [*self._losses.values()]  # at once: the thread of the log adds to it
        return sum(losses) / len(losses) if losses else None

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or failed."""
        return self._over.is_set()

    @property
    def names(self) -> Collection[str]:
        """Every node that the log names."""
        return self._seen.run.nodes.names

    @property
    def standbys(self) -> list[str]:
        """Nodes that wait."""
        return self._seen.run.nodes.standbys

    def is_over_within(self, timeout_s: float) -> bool:
        """Return whether the run is over; waits for that, but not longer than `timeout_s`."""
        return self._over.wait(timeout_s)

    def wait(self, timeout_s: float | None = None, *, until: int | None = None) -> Self:
        """Wait for the end, or until every rank has finished so many iterations.

        Args:
            timeout_s: Wait no longer than this.
            until: The iterations; by default those of the whole job.

        Raises:
            ConfigError: The run holds before that, until a user acts.
            TimeoutError: It has not come so far in time.
            RunFailedError: The run was given up; the message says why.
        """
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self.is_over and (until is None or self.iteration < until):
            self._require_moving(until)
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                what = "over" if until is None else f"at iteration {until}"
                raise TimeoutError(f"{self} is not {what} after {timeout_s:.0f} s")
            self._over.wait(min(left_s, GLANCE_S))
        if self.is_over:  # later output is to be below the last lines of progress bars
            showing, self._showing = self._showing, []
            for each in showing:
                each.join(SHOWN_S)
        if self.failure is not None:
            how = "ended" if self.cause == "owner" else "failed"  # a person may end it
            why, *more = self.failure.splitlines() or [""]
            said = [f"{self.name} {how}: {why}", *(f"  {line}" for line in more)]
            said += [f"  | {line}" for line in last_lines(self.course.output)]
            raise RunFailedError("\n".join([*said, *self._culprits()]))
        return self

    def progress(self, total: int | None = None, *, show_output: bool = False) -> None:
        """Show a bar, and failures as they come, from now until the end; returns at once.

        In a notebook all of it stands below the cell that calls this, while other cells run. `wait`
        waits for the end.

        Args:
            total: Iterations of the job, the bar's full length.
            show_output: Show what rank 0 prints, too.
        """
        shown = Shown(self, total=total, show_output=show_output)
        thread = threading.Thread(target=shown.follow, name="gemini-progress", daemon=True)
        self._showing.append(thread)
        thread.start()

    def watch(self, watcher: Callable[[Entry], None]) -> Callable[[], None]:
        """Call `watcher` with every event from now on, on the thread that follows the log.

        Returns a function that ends this.
        """
        self._watchers = [*self._watchers, watcher]
        return lambda: self._forget(watcher)

    def listen(self, listener: Callable[[int, list[str]], None]) -> Callable[[], None]:
        """Call `listener` with a rank and the lines it prints, on the thread that follows the log.

        Returns a function that ends this.
        """
        self._listeners = [*self._listeners, listener]
        return lambda: self._forget(listener)

    def __repr__(self) -> str:
        return f"<Run {self.name}: iteration {self.iteration}, {self.phase}>"

    # -- for the reader of the log -----------------------------------------------------------------

    def follow(self, entry: Entry) -> None:
        """Take in the log's next entry."""
        entry = readable_entry(entry)
        self._seen.take(entry)
        run = self._seen.run
        self.root = run.nodes.root or self.root
        self.phase = PHASES.get(self.course.phase, self.course.phase)
        match entry.event:
            case events.Iteration(restored=False) as done:
                self.iteration = run.reached.done()
                if 0 < (done.of or 0) <= LARGEST:
                    self.total = done.of
                if (loss := done.value("loss")) is not None:
                    self._losses[done.rank] = loss
            case events.RecoveryPlanned():
                self._losses.clear()
                self.members = [str(node) for node in run.nodes.members]
                self.iteration = run.reached.done()
            case events.WorkerExited() as gone:
                self._exits.append(exit_of(entry, gone))
            case events.RecoveryStarted():
                self.recoveries += 1
            case events.PersistFinished(version=version, url=url):
                self.persisted = version, url
            case events.RunFailed(reason=reason, cause=cause):
                self.failure, self.cause = reason, cause
                self._end()
            case events.RunFinished():
                self._end()
        for watcher in self._watchers:
            watcher(entry)

    def hear(self, rank: int, lines: list[str]) -> None:
        """Take in what a worker printed."""
        shown = [readable(line) for line in lines]
        for listener in self._listeners:
            listener(rank, shown)

    def _require_moving(self, until: int | None) -> None:
        """Refuse to wait for an iteration that training does not reach by itself."""

    def _culprits(self) -> Iterator[str]:
        """Give the table of the workers that ended in the last try, if they made the run fail."""
        exits = [*self._exits]  # at once: the log may still tell of others
        newest = max((one.epoch for one in exits), default=0)
        if self.course.output:
            yield from culprits([one for one in exits if one.epoch == newest])

    def _end(self) -> None:
        self._over.set()

    def _forget(self, callback: object) -> None:
        self._watchers = [each for each in self._watchers if each is not callback]
        self._listeners = [each for each in self._listeners if each is not callback]


# -- an end that was announced ---------------------------------------------------------------------


LOOK_S: Final = 0.1
NO_TIER: Final = "the run has no persistent tier; name one with --persistent-url"
NOTHING_YET: Final = "no iteration was done since the start, so there was nothing to save"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The outcome of a notice."""

    # The newest one that reached the persistent tier meanwhile; `None` for none.
    version: int | None = None
    url: str = ""  # where it is
    reason: str = ""  # why there is none, for people


def save_within(run: FollowedRun, notice_s: float) -> Saved:
    """Save a version that `run` makes from now on; wait for it up to `notice_s`."""
    settings = run.course.settings
    if not settings.get("persistent_url"):
        is_known = run.iteration and "persistent_url" in settings  # since the script's `protect`
        return Saved(reason=NO_TIER if is_known else NOTHING_YET)
    heard: SimpleQueue[Entry] = SimpleQueue()
    forget = run.watch(heard.put)
    try:
        run.save_version()
        return _wait(run, heard.get, time.monotonic() + notice_s, notice_s)
    finally:
        forget()


def _wait(run: FollowedRun, get: Callable[..., Entry], give_up_s: float, notice_s: float) -> Saved:
    """Return the newest version that was saved, preferably one that was begun meanwhile."""
    begun: set[int] = set()
    newest = Saved(reason=f"none was whole there within the notice of {notice_s:.0f} s")
    while time.monotonic() < give_up_s:
        try:
            event = get(timeout=LOOK_S).event
        except Empty:
            if run.is_over_within(0):
                break
            continue
        match event:
            case PersistStarted(version=version):
                begun.add(version)
            case PersistFinished(version=version, url=url):
                newest = Saved(version=version, url=url)
                if version in begun:
                    break
            case PersistFailed(reason=reason) if newest.version is None:
                newest = Saved(reason=reason)
    return newest
