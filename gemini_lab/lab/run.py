"""`Run`: a job under way on a lab, as its owner sees it."""

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Final

import msgspec

from gemini_lab.engine.holding_points import HoldingPoints
from gemini_lab.errors import ConfigError
from gemini_lab.injector.failures import Failure
from gemini_lab.injector.orders import Cast, Order, orders
from gemini_lab.injector.scenario import Pace, Scenario
from gemini_lab.job import Job
from gemini_lab.lab import pages
from gemini_lab.lab.control import close_control
from gemini_lab.lab.followed import FollowedRun
from gemini_lab.lab.node_contracts import RunOwner
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    AnyEvent,
    FailureCause,
    Protected,
    RecoveryFinished,
    RecoveryPlanned,
    RecoveryStarted,
    RunFailed,
)
from gemini_lab.log.file import LOG_FILE, EventLog, read_log
from gemini_lab.memory.free import free_memory, too_little_for
from gemini_lab.placement import Placement
from gemini_lab.recovery.messages import OutputSaid, RunDescribed, TakeStacks
from gemini_lab.recovery.requests import AnyRequest, RunFacts
from gemini_lab.report import RunReport, load_report
from gemini_lab.report.follower import BackgroundReader
from gemini_lab.seats import Seats


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """A run's identity from its start."""

    folder: Path  # where it keeps its log; it is there, and empty
    number: int  # counts the lab's runs
    job: Job  # what runs
    seats: Seats  # how many nodes and workers, and their racks
    # Iterations after which training holds until `go_on`.
    holds: HoldingPoints = field(default_factory=HoldingPoints)
    scenario: Scenario = field(default_factory=Scenario)  # failures to inject on the way
    root: str | None = None  # the node with the root agent


class Run(FollowedRun):
    """A job under way, or one that is over; its log is in `folder`.

    Args:
        log: Where its log goes on, if it was taken over; by default it begins.

    Attributes:
        folder: The run's folder: event log, workers' output, persistent tier.
        log: The event log in it.
        reopen: Leaves the way to the run's lab in its folder again.
    """

    def __init__(self, origin: RunOrigin, owner: RunOwner, log: EventLog | None = None) -> None:
        super().__init__(origin.folder.name, root=origin.root)
        self.folder = origin.folder
        self.number = origin.number
        self.job = origin.job
        self._owner = owner
        self._seats = origin.seats
        self._scenario = origin.scenario
        self._holds = origin.holds
        self.log = origin.folder / LOG_FILE
        self._log = log or EventLog(self.log)
        self._reader = BackgroundReader(self.log)
        self._output = OutputFiles(origin.folder / "output")
        self._lock = threading.Lock()
        self.reopen: Callable[[Path], None] = lambda _: None
        self._told_removals = 0
        self._recoveries, self._placed = RecoveriesOnce(), Placed()
        self._training_since_s: float | None = None
        self._pace = Pace()

    # -- for its owner -------------------------------------------------------------------------

    def ask(self, request: AnyRequest) -> str:
        """Pass a request on to the root agent, if this run can do it; return the answer.

        Raises:
            ConfigError: It cannot.
        """
        if not self.is_over:
            request.check(self._facts())
            self._owner.ask(self.number, request)
            self.go_on()
        elif request.late:
            raise ConfigError(f"{self.name} is over: {request.late}")
        return request.answer(self.folder.name)

    def _facts(self) -> RunFacts:
        placement = self._seats.placement
        return RunFacts(
            name=self.name,
            living=self._owner.living,
            members=self.members,
            settings=self.course.settings,
            placed=None if placement is None else placement.nodes,
            workers_per_node=self._seats.workers_per_node,
            model_parallel_size=self.course.model_parallel_size,
            lacks_memory=self._lacks_memory,
        )

    def _lacks_memory(self, nodes: int) -> str:
        return too_little_for(nodes, free_memory()) if self._owner.is_local else ""

    def inject(self, failure: Failure) -> list[Order]:
        """Make a failure happen now; returns which node was told to do what to itself.

        Raises:
            ConfigError: The run is over, or the failure names a node or rank that is not there.
        """
        given = self._strike(failure)
        self.go_on()
        return given

    def stacks(self, *ranks: int) -> str:
        """Log what the threads of some workers do now, or of all; the workers go on.

        The log has them some seconds later, as events `stacks_taken`.

        Raises:
            ConfigError: The run is over, or has no such rank.
        """
        if self.is_over or not self.members:
            raise ConfigError(f"{self} has no workers now, so they have no stacks")
        per_node = self._seats.workers_per_node
        known = per_node * len(self.members)
        if ranks and max(ranks) >= known:
            raise ConfigError(f"there is no rank {max(ranks)}; there are 0 to {known - 1}")
        asked = ranks or range(known)
        nodes = dict.fromkeys(self.members[rank // per_node] for rank in asked)
        self._owner.take_stacks([*nodes], TakeStacks(ranks=[*ranks]))
        return f"{self.name} looks at {len(asked)} of its {known} workers"

    @property
    def holds_at(self) -> int | None:
        """The iteration after which training holds now, for its user to act."""
        held = None if self.is_over else self._holds.next
        return held if held is not None and self.iteration >= held else None

    def go_on(self) -> None:
        """Release training if it holds; a failure or a request does so, too."""
        if (held := self.holds_at) is not None:
            self._holds.let_pass(held)

    def events(self, *kinds: str) -> list[Entry]:
        """Return the log's entries so far, in order of arrival: all, or only these kinds."""
        said = read_log(self.log)
        return [entry for entry in said if not kinds or entry.kind in kinds]

    def report(self) -> RunReport:
        """Return the report on the run so far, from its log."""
        return load_report(self.folder)

    def save(self, path: str | Path, *, window: tuple[float, float] | None = None) -> Path:
        """Write what the dashboard shows of the run so far to one HTML file, for any browser.

        The file needs no network and no server. Returns its path.

        Args:
            path: The file to write.
            window: From when to when, in seconds since the run's start, each bar of the timeline is
                in the page; by default the newest ones. The rest is there in bins of time.

        Raises:
            ConfigError: Panel is not installed, or the file cannot be written.
        """
        return pages.save_log(self.log, path, window=window)

    def controls(self) -> pages.ControlsHandle:
        """Return buttons that make the run fail, or end it.

        Raises:
            ConfigError: ipywidgets is not installed.
        """
        return pages.controls_of(self)

    def _repr_html_(self) -> str:
        nodes = ", ".join(f"{n} (root)" if n == self.root else n for n in self.members)
        rows = {
            "run": self.folder.name,
            "phase": self.phase if self.holds_at is None else "holds, for you to act",
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
        if isinstance(entry.event, events.RunFinished):
            left, self._scenario = self._scenario.planned, replace(self._scenario, planned=())
            for planned in left:
                self._say(f"{planned.failure} did not happen: training ended before {planned.when}")
        with self._lock:
            if not self._recoveries.takes(entry.event):
                return
            entry = self._placed.brief(entry)
            is_wanted = not self.is_over or isinstance(entry.event, events.LabClosed)
            before = self._log.waiting
            if is_wanted and not self._log.append(entry):
                return  # it was in the log that was taken over
            is_news = bool(before) != bool(self._log.waiting)
        self.follow(entry)
        if is_news:
            self._tell_of_disk(before)
        if self._log.removals > self._told_removals:
            self._tell_of_removal()
        if isinstance(entry.event, events.Iteration):
            self.strike()

    def take_output(self, said: OutputSaid, *, node: str) -> None:
        with contextlib.suppress(OSError):  # the log tells of a full disk
            self._output.write(said.rank, said.lines, node=node, epoch=said.epoch)
        self.hear(said.rank, said.lines)

    def describe(self) -> RunDescribed:
        """Return how it is now, in short."""
        return RunDescribed(
            phase=self.phase,
            recoveries=self.recoveries,
            nodes=len(self._owner.living),
            wanted=self._seats.machines,
        )

    def recall(self) -> None:
        """Read a log that was taken over, so that failures which were due are not due again."""
        for entry in read_log(self.log):
            self._recoveries.takes(entry.event)
            self.follow(self._placed.brief(entry))
        self._scenario = self._scenario.due(iteration=self.iteration, elapsed_s=0.0)[1]

    def give_up(self, reason: str, cause: FailureCause) -> None:
        """End it in the log, because its nodes are about to go."""
        ending = RunFailed(reason=reason, cause=cause)
        self.take(Entry(at_s=time.time(), node="lab", event=ending))

    def settle(self) -> None:
        """Return when all that was taken is on the disk itself.

        Raises:
            OSError: The disk does not take it now.
        """
        with contextlib.suppress(ValueError):  # the log is closed
            self._log.settle()

    def strike(self) -> None:
        """Inject what the scenario has for this moment."""
        if self.is_over or self._training_since_s is None:
            return
        now_s = time.monotonic()
        coming, self._scenario = self._scenario.due(
            iteration=self._pace.at(now_s), elapsed_s=now_s - self._training_since_s
        )
        for failure in coming:
            try:
                self._strike(failure)
            except ConfigError as error:
                self._say(f"{failure} did not happen: {error}")

    def close(self) -> None:
        """Close the log, which is kept for its readers."""
        close_control(self.folder)
        self._reader.close()
        try:
            self._log.close()
        except OSError as error:
            warnings.warn(
                f"the last {self._log.waiting} entries of {self.log} are lost: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _strike(self, failure: Failure) -> list[Order]:
        if self.is_over or not self.members:
            late = (
                "this run has finished; start it again"
                if self.is_over
                else "wait for its first iteration: run.wait(until=1)"
            )
            raise ConfigError(f"nothing can fail now: {self} has no workers; {late}")
        given = orders(failure, self._cast(), seed=self._scenario.seed)
        for order in given:
            self._owner.obey(order)
        return given

    def _require_moving(self, until: int | None) -> None:
        held = self.holds_at
        if held is not None and (until is None or until > held):
            raise ConfigError(
                f"{self.name} holds after iteration {held} until you act; break something, such as "
                'run.inject(NodeLoss("rank-2")), or let it go on: run.go_on()'
            )

    def _tell_of_disk(self, before: int) -> None:
        """Say that the log waits for room on its disk, or that it did, with so many entries."""
        if self._log.trouble is not None:
            reason = self._log.trouble.strerror
            text = f"the log waits in memory until {self.folder} takes it again: {reason}"
        else:
            text = f"the log is written again; {before} entries had to wait for room on its disk"
        self._say(text)

    def _tell_of_removal(self) -> None:
        """Say that somebody removed the run's folder, or its log: it trains on, and keeps both."""
        self._told_removals = self._log.removals
        with contextlib.suppress(OSError):
            self.reopen(self.folder)
        self._say(
            f"ERROR: {self.log} was removed while the run writes it, and was written again; what "
            f"else was in {self.folder}, saved versions among it, is gone: leave a run's folder "
            "alone until the run is over"
        )

    def _say(self, text: str) -> None:
        self.take(Entry(at_s=time.time(), node="lab", event=events.Note(text=text)))

    def _cast(self) -> Cast:
        return Cast(
            members=self.members,
            root=self.root or self.members[0],
            racks=self._seats.nodes_by_rack,
            workers_per_node=self._seats.workers_per_node,
            standbys=[node for node in self._owner.living if node not in self.members],
        )

    def follow(self, entry: Entry) -> None:
        """Take in the log's next entry."""
        if isinstance(entry.event, events.Iteration) and not entry.event.restored:
            self._training_since_s = self._training_since_s or time.monotonic()
        super().follow(entry)
        self._pace.end(self.iteration, time.monotonic())

    def _end(self) -> None:
        close_control(self.folder)
        super()._end()


# -- workers' output -------------------------------------------------------------------------------

MOST_BYTES: Final = 64 << 20
KEPT: Final = 3  # older files of a rank


class OutputFiles:
    """The files of one run."""

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._heads: dict[int, str] = {}

    def write(self, rank: int, lines: Sequence[str], *, node: str, epoch: int) -> None:
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"rank-{rank}.log"
        if path.exists() and path.stat().st_size > self._most_bytes:
            self._turn(path)
            self._heads.pop(rank, None)
        head = f"{node}, epoch {epoch}"
        with path.open("a", encoding="utf-8") as file:
            if self._heads.get(rank) != head:
                self._heads[rank] = head
                moment = time.strftime("%Y-%m-%d %H:%M:%S")
                file.write(f"-- rank {rank} on {head}, {moment} --\n")
            file.writelines(line + "\n" for line in lines)

    def _turn(self, path: Path) -> None:
        for number in range(KEPT, 0, -1):
            older = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number}"))


# -- events that a new root agent repeats ----------------------------------------------------------


class RecoveriesOnce:
    """Takes each recovery's start and end once.

    A root agent that is elected says the newest ones again: where its predecessor was cut off as it
    said them, they have not been heard.
    """

    def __init__(self) -> None:
        self._newest: dict[type[AnyEvent], int] = {}

    def takes(self, event: AnyEvent) -> bool:
        """Return whether it is to be taken: it was not said before."""
        if not isinstance(event, RecoveryStarted | RecoveryFinished):
            return True
        is_new = event.recovery > self._newest.get(type(event), 0)
        if is_new:
            self._newest[type(event)] = event.recovery
        return is_new


class Placed:
    """Leaves a placement out where the log has it already.

    Rank 0 says it in each start, and it grows with the nodes. Readers go on with the last one, or,
    where there are more nodes or fewer, with none: then it is told again.
    """

    def __init__(self) -> None:
        self._known: Placement | None = None
        self._epoch = 0
        self._is_told: dict[int, bool] = {}  # by epoch: what is said again is told as it was

    def brief(self, entry: Entry) -> Entry:
        """Return the entry as the log is to tell it; one of the log itself stays as it is."""
        match entry.event:
            case RecoveryPlanned(epoch=epoch, members=members) if epoch >= self._epoch:
                self._epoch = epoch
                if self._known is not None and self._known.nodes != len(members):
                    self._known = None
            case Protected(rank=0, epoch=epoch, placement=None):
                self._is_told[epoch] = False
            case Protected(epoch=epoch, placement=Placement() as placement) as event:
                if not self._is_told.setdefault(epoch, placement != self._known):
                    untold = msgspec.structs.replace(event, placement=None)
                    return msgspec.structs.replace(entry, event=untold)
                if epoch >= self._epoch:
                    self._known = placement
        return entry
