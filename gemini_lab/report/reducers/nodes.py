"""The nodes of a lab: who is there and where, who waits, whose worker failed, who was lost."""

from collections.abc import Collection
from typing import Final

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    PLANNED,
    DrainWaiting,
    Injected,
    Iteration,
    LabStarted,
    NodeDrained,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    Protected,
    RecoveryFinished,
    RecoveryPlanned,
    RecoveryStarted,
    RootElected,
    RunFinished,
    RunStarted,
    WorkerExited,
    WorkerHung,
)
from gemini_lab.report.reducers import MOST_RANKS, seconds

MOST: Final = 100_000
LAB: Final = "lab"
"""Who speaks where no node does; in simulations, of everything."""


class Nodes:
    """Names of nodes, in the order in which they came, and their positions."""

    def __init__(self) -> None:
        self.root = ""
        # When each root agent was elected, and on which node.
        self.roots: list[tuple[float, str]] = []
        self.members: list[str | None] = []  # the node on each position; `None` where there is none
        self.gone: set[int] = set()  # positions whose node was lost and not yet replaced
        # Nodes whose worker exited or hung, until workers are started again.
        self.failed: set[str] = set()
        self.lost: dict[str, None] = {}  # nodes that were lost and did not come back, in order
        self.lost_count = 0  # nodes that were lost, all told
        self.lost_standbys: dict[str, None] = {}  # those among `lost` that had no position then
        # Nodes that are to go and have ranks, with what these wait for before they move; empty
        # where nothing was said of that.
        self.leaving: dict[str, str] = {}
        self.drained: dict[str, None] = {}  # nodes without ranks whose machines are to go, in order
        # Nodes that were gone after their ranks had moved, in order.
        self.left: dict[str, None] = {}
        # When a node was gone, or came back: the moment, its name, whether it is there then.
        self.comings: list[tuple[float, str, bool]] = []
        self._names: dict[str, None] = {}
        self._seats: dict[int, str] = {}
        self._per_node = 1
        self._epoch = 0

    def take(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case Iteration() | Protected():  # the most frequent one first
                if event.epoch >= self._epoch:
                    self._seat(event.rank, entry.node)
            case LabStarted():
                self._join(entry.at_s, *event.names)
                self.root = event.root or self.root
            case NodeJoined():
                self._join(entry.at_s, event.name)
            case NodeLost():
                self._lose(entry.at_s, event.name)
            case RootElected():
                self.root = event.name
                if len(self.roots) < MOST:
                    self.roots.append((entry.at_s, event.name))
            case RunStarted() if not self.members:
                self._start(event)
            case _:
                self._follow(entry)

    def _follow(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case Injected(failure="node_loss") if entry.node != LAB:
                self._lose(entry.at_s, entry.node)
            case WorkerExited() | WorkerHung() if len(self.failed) < MOST:
                seat = self._seats.get(event.rank, "")
                self.failed.add(entry.node if isinstance(event, WorkerExited) else seat)
            case NodeLeaving() | DrainWaiting() | NodeDrained() as told:
                self._leave(told)
            case RecoveryStarted() if event.cause not in PLANNED:
                for name in event.lost:
                    self._lose(entry.at_s, name)
            case RecoveryPlanned() if event.epoch >= self._epoch:
                self._plan(entry.at_s, event)
            case RecoveryFinished() | RunFinished():
                self.failed.clear()

    def _leave(self, told: NodeLeaving | DrainWaiting | NodeDrained) -> None:
        """Note that a machine is to go, or that its ranks wait, stay after all, or have moved."""
        name = told.name
        if len(self.leaving) + len(self.drained) >= MOST:
            return
        match told:
            case NodeLeaving():
                self.leaving.setdefault(name, "")
            case DrainWaiting(is_given_up=True):
                self.leaving.pop(name, None)
            case DrainWaiting(reason=reason):
                self.leaving[name] = reason
            case NodeDrained():
                self.leaving.pop(name, None)
                self.drained[name] = None

    def _start(self, job: RunStarted) -> None:
        if not 0 < job.nodes * job.workers_per_node <= MOST_RANKS:
            raise ValueError(f"no cluster has {job.nodes} x {job.workers_per_node} ranks")
        self._per_node = job.workers_per_node
        known = list(self._names)[: job.nodes]
        self.members = [*known, *(f"node-{p}" for p in range(len(known), job.nodes))]

    def _plan(self, at_s: float, plan: RecoveryPlanned) -> None:
        if not 0 < len(plan.members) * self._per_node <= MOST_RANKS:
            raise ValueError(f"no cluster has {len(plan.members)} x {self._per_node} ranks")
        self._epoch = plan.epoch
        if len(plan.members) != len(self.members):  # the run has another size from here on
            self._seats.clear()
        self.members = list(plan.members)
        self.gone = {p for p, name in enumerate(plan.members) if name is None}
        self.failed.clear()
        self._join(at_s, *(name for name in plan.members if name is not None))
        for name in plan.members:
            self.drained.pop(name or "", None)  # used again, as there was no other
        for position, name in enumerate(plan.members):
            for rank in range(position * self._per_node, (position + 1) * self._per_node):
                self._seat(rank, name or "")

    def _seat(self, rank: int, node: str) -> None:
        if not 0 <= rank < MOST_RANKS:
            raise ValueError(f"no run has rank {rank}")
        if node != LAB:
            self._seats[rank] = node

    def _join(self, at_s: float, *names: str) -> None:
        for name in names:
            if len(self._names) < MOST:
                self._names[name] = None
            if name in self.lost or name in self.left:
                self._come(at_s, name, is_there=True)
            self.lost.pop(name, None)
            self.lost_standbys.pop(name, None)
            self.left.pop(name, None)

    def _lose(self, at_s: float, name: str) -> None:
        self.leaving.pop(name, None)
        if name not in self.lost and name not in self.left:
            self._come(at_s, name, is_there=False)
        if name in self.drained or name in self.left:
            self.drained.pop(name, None)
            self.left[name] = None
            return
        self.gone |= {p for p, member in enumerate(self.members) if member == name}
        if name not in self.lost and len(self.lost) < MOST:
            self.lost_count += 1
            self.lost[name] = None
            if name not in self.members:
                self.lost_standbys[name] = None

    def _come(self, at_s: float, name: str, *, is_there: bool) -> None:
        if len(self.comings) < MOST:
            self.comings.append((seconds(at_s), name, is_there))

    # -- answers ---------------------------------------------------------------------------------

    def node_of(self, rank: int) -> str | None:
        """Return the node on which a rank runs; `None` while the log has not told."""
        return self._seats.get(rank) or None

    @property
    def names(self) -> Collection[str]:
        return self._names.keys()

    @property
    def standbys(self) -> list[str]:
        away = {*self.members, *self.lost, *self.leaving, *self.drained, *self.left}
        return [name for name in self._names if name not in away]
