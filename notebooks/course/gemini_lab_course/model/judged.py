"""A lab without I/O, and what must hold of it: the real `RootAgent` among modelled machines."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gemini_lab.job import Job
from gemini_lab.log import events
from gemini_lab.recovery.discarded_versions import is_left, joined
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.recovery.plan import VersionId
from gemini_lab.recovery.protocol import Instruction
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings, SettingValue
from gemini_lab.shard.lineage import MOST_REWINDS, Lineage
from gemini_lab_course.model.machines import LEASE_S, ModelledJob, Store, Tier
from gemini_lab_course.model.node import Node
from gemini_lab_course.model.shell import Shell
from gemini_lab_course.model.truth import BrokenError, HeldVersion, Histories, Safety, whole_states

_OF_RECOVERY = (
    events.RecoveryStarted,
    events.RecoveryWaiting,
    events.RecoveryPlanned,
    events.RecoveryFinished,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The protocol's rules, each of which a test can switch off to see whether it is missed."""

    root: type[RootAgent] = RootAgent
    has_lineage: bool = True
    takes_unread_for_empty: bool = False
    lays_out_anew: bool = True
    counts_rewinds: bool = True
    keeps_rewinds: bool = True


FOLLOWING: Final[dict[str, SettingValue]] = {
    "replicas": "auto",
    "failures_per_day": 0.001,
    "survival_target": 0.99999,
    "adapt_pause_s": 2.0,
}
"""Settings with which one failure of a node is reason enough to have copies placed again."""
RACKS: Final = {f"node-{number}": "ab"[number // 2 % 2] for number in range(40)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large a world is."""

    nodes: int = 4
    standbys: int = 2
    replicas: int = 2
    iterations: int = 8
    has_tier: bool = True
    persist_every: int = 2
    shrinks: bool = False
    follows: bool = False
    is_refilled: bool = True
    """Whether in the end new machines come for standbys, too, and not only where one is missing."""


@dataclass(slots=True)
class ModelLog:
    """What was said of the recoveries, by number."""

    started: dict[int, events.OfRecovery] = field(default_factory=dict)
    finished: dict[int, events.OfRecovery] = field(default_factory=dict)
    failed: str = ""
    done: bool = False

    def hear(self, known: dict[int, events.OfRecovery], event: events.OfRecovery) -> bool:
        """Return a start or an end; whether it is news, as a root that is elected says it again."""
        is_news = event.recovery not in known
        if known.setdefault(event.recovery, event) != event:
            raise BrokenError(f"recovery {event.recovery} has two of {event.kind}")
        return is_news


def _given(shape: Shape) -> dict[str, SettingValue]:
    """Return what a job of this shape sets."""
    given: dict[str, SettingValue] = {"replicas": shape.replicas}
    if shape.has_tier:
        given["persistent_url"] = "memory://run"
        given["persist_every_iterations"] = shape.persist_every
    if shape.shrinks:
        given |= {"when_short": "shrink", "shrink_after_s": 1.0, "grow_pause_s": 2.0}
    if shape.follows:
        given |= FOLLOWING
    return given


class JudgedWorld:
    """A lab, its run, and what must hold of them after every step.

    Args:
        shape: How large.
        rules: The protocol's, all of them by default.
    """

    def __init__(self, shape: Shape | None = None, rules: Rules | None = None) -> None:
        self.shape = shape or Shape()
        self.rules = rules or Rules()
        self.now_s = 0.0
        self.histories = Histories()
        self.tier, self.store = Tier(), Store()
        self.jobs: dict[tuple[int, str], ModelledJob] = {}
        self.nodes: dict[str, Node] = {}
        self.iterations = self.shape.iterations
        self.ports = 0
        self.safety = Safety()
        self.full_states: set[int] = {0}
        self.log_term = 0
        self.heard = 0  # the newest version that was whole by what any root ever heard
        self.told = ModelLog()
        self.left: tuple[VersionId, ...] = ()  # by rewinds of which any rank has said
        self.flips = 0
        self.has_given_up = self.is_cancelled = False
        self.worker_kills = 0
        self.given_up: tuple[VersionId, ...] = ()  # by a user's word, for good
        self.replaced = 0  # how often copies were placed again
        self._halfway = 0  # the epoch in which `go_halfway` came there last
        self._fuses: dict[str, tuple[int, str]] = {}
        given = _given(self.shape)
        self.settings = Settings.parse(given)
        self.order = JobOrder(
            number=1,
            run=7,
            job=Job(script="model.py", cwd="/"),
            seats=Seats(
                nodes=self.shape.nodes,
                standbys=self.shape.standbys,
                rack_of=RACKS if self.shape.follows else {},
            ),
            settings=given,
        )
        for _ in range(self.order.seats.machines):
            self._add_node()

    def _add_node(self) -> None:
        node = Node(f"node-{len(self.nodes)}", self)
        self.nodes[node.name] = node
        if self.store.is_up:
            self.store.leases[node.name] = self.now_s + LEASE_S

    def shells(self) -> list[Shell]:
        """Return all who take themselves for the root."""
        return [node.shell for node in self.nodes.values() if node.shell is not None]

    # -- for who is interested -------------------------------------------------------------------

    def make_root(self, node: Node, state: RootState) -> RootAgent:  # noqa: ARG002 - see `Watched`
        """Return the deciding half of a root agent that has been elected on this node."""
        return self.rules.root(state=state, at_s=self.now_s)

    def note_handled(self, shell: Shell, instructions: Sequence[Instruction]) -> None:
        """Note that a root agent has decided; for subclasses."""

    def burn_fuse(self, node: Node) -> None:
        """Note that an instruction of a root agent's was carried out on this node."""

    # -- what must hold ----------------------------------------------------------------------------

    def memory(self) -> list[HeldVersion]:
        """Return every whole copy in the memory of a machine that is not dead."""
        return [copy for node in self.nodes.values() for copy in node.copies()]

    def newest_saved(self) -> int:
        """Return the newest version that exists in memory or in the tier, reachable or not.

        One that its holders did not all have yet is nobody's progress: the one before it is.
        """
        held = [one for one in self.memory() if not is_left(one.version, one.lineage, self.left)]
        states = whole_states(held)
        in_memory = (self.histories.version[state] for state in states & self.full_states)
        stored = self.tier.versions.items()
        in_tier = (v for v, (lineage, _) in stored if not is_left(v, lineage, self.left))
        return max([0, *in_memory, *in_tier])

    def note_full(self, job: ModelledJob) -> None:
        """Note a version that all holders have."""
        seats = job.seats if job.seats.placement else job.seats.placed(self.settings)
        members = tuple(job.seats.members)
        _, version = max(job.full_at, (0, job.version or 0))
        self.full_states |= {s for (_, v), s in job.states.items() if v == version}
        alive = all(m is not None and self.nodes[m].is_alive for m in members)
        is_newest = all(job.order.epoch >= epoch for epoch, _ in self.jobs)
        is_good = all(copy.is_good for copy in self.memory() if copy.version == version)
        if alive and is_newest and is_good and version > 0:  # version 0 is made again at no cost
            self.safety.note_full(members, seats.holders.holders)
        self.check_safety()

    def check_safety(self) -> None:
        """Check that a whole version exists, as long as the placement promises it."""
        if self.safety.is_excused or self.told.done or self.told.failed:
            return
        if not whole_states(self.memory()):
            raise BrokenError(f"no version is whole in memory, though only {self.safety.lost} went")

    def hear_event(self, shell: Shell, event: events.AnyEvent) -> None:
        """Log what a root says; the log refuses a deposed one."""
        if isinstance(event, _OF_RECOVERY):
            shell.said = event
        if shell.record.term < self.log_term:
            return
        match event:
            case events.RecoveryStarted():
                self.told.hear(self.told.started, event)
            case events.RecoveryFinished():
                if self.told.hear(self.told.finished, event):
                    # Said once, it holds for one recovery; a root agent may not have read it yet.
                    assert shell.root is not None
                    read = shell.root.state.discarded.given_up
                    self.has_given_up = (self.store.give_up or 0) > read
            case events.RecoveryPlanned():
                self._check_plan(shell, event)
            case events.RunFailed():
                self.told.failed = event.reason
                self._check_failure(shell, event)
            case events.RunFinished():
                self._check_end(event)
            case events.ReplicasPlaced(placement=placement):
                self.replaced += 1
                self.safety.note_placed(placement.holders)
            case events.NodeDrained():
                self._check_drained(shell, event.name)
            case _:
                pass

    def _check_plan(self, shell: Shell, plan: events.RecoveryPlanned) -> None:
        """Check that nothing newer than what is loaded exists or may come back."""
        assert shell.root is not None
        if self.store.root is not shell.record:
            return
        newest = min(self.newest_saved(), self.heard)
        self.heard = plan.version or 0
        if self.has_given_up or self.flips:
            self.safety.is_excused = True
            if self.has_given_up and not self.flips:
                self._note_given_up(shell.root.state, plan, newest)
            return
        self._check_line(shell.root, plan)
        if (plan.version or 0) < newest:
            raise BrokenError(
                f"recovery {plan.recovery} goes on from {plan.version} ({plan.tier}) though "
                f"version {newest} exists: {plan.reason}"
            )

    def _note_given_up(self, state: RootState, plan: events.RecoveryPlanned, newest: int) -> None:
        """Note that a user chose a plan over newer versions: these count no more."""
        version = plan.version or 0
        if version < newest:
            before = Lineage(run=self.order.run, epoch=state.epoch - 1, rewinds=MOST_REWINDS)
            self.given_up = (*self.given_up, VersionId(version=version, lineage=before))
        # The root agent may have asked for what nobody had heard of.
        told = (one for one in state.discarded.left if one.lineage.rewinds == MOST_REWINDS)
        self.left = joined(self.left, (*self.given_up, *told))

    def _check_line(self, root: RootAgent, plan: events.RecoveryPlanned) -> None:
        """Check that neither an asked node nor a user knows that this version was left."""
        asked = [node for name, node in self.nodes.items() if name in root.living]
        known = joined((), (one for node in asked if node.is_alive for one in node.left))
        lineage = Lineage(run=self.order.run, epoch=plan.made_in, rewinds=plan.made_after)
        for left, how in ((known, "a rewind left"), (self.given_up, "a user gave up")):
            if plan.version is not None and is_left(plan.version, lineage, left):
                raise BrokenError(
                    f"recovery {plan.recovery} goes on from version {plan.version} of {lineage}, "
                    f"which {how}: {left}"
                )

    def _check_failure(self, shell: Shell, event: events.RunFailed) -> None:
        """Check that a run ends for its machines only if those that are well cannot go on."""
        assert shell.root is not None
        if self.is_cancelled or self.worker_kills >= 3:
            return
        well = [node.name for node in self.nodes.values() if node.is_well]
        has_lacked = any(node.lacks or node.well_since_s for node in self.nodes.values())
        can_send = [c for one in self.nodes.values() if not one.lacks for c in one.copies()]
        is_needed = self.flips or whole_states(can_send) < whole_states(self.memory())
        if not has_lacked or (len(well) >= self.shape.nodes and self.heard and not is_needed):
            raise BrokenError(f"a healthy run fails, with {well} at hand: {event.reason}")

    def _check_drained(self, shell: Shell, name: str) -> None:
        """Check that a drained node runs no worker."""
        worker = self.nodes[name].worker
        assert shell.root is not None
        is_over = shell.root.state.phase in {"done", "failed"}
        if worker is not None and not is_over and worker.epoch == shell.root.state.epoch:
            raise BrokenError(f"{name} may go, and rank {worker.rank} trains there")

    def _check_end(self, event: events.RunFinished) -> None:
        self.told.done = True  # a root that dies while it says so leaves it to be said again
        if untold := self.told.started.keys() ^ self.told.finished.keys():
            raise BrokenError(f"it was not told how the recoveries {sorted(untold)} went")
        if event.iteration > self.iterations:
            raise BrokenError(f"the run finishes with version {event.iteration}")

    def check_root(self, shell: Shell) -> None:
        """Check that a root that waits has said why, after all else of the recovery."""
        assert shell.root is not None
        state = shell.root.state
        if self.store.root is shell.record:
            self.heard = max(self.heard, state.reached.newest)
        has_said = state.story.parting is not None or isinstance(shell.said, events.RecoveryWaiting)
        if state.phase == "waiting" and not has_said:
            raise BrokenError(f"the root waits, but the last it said is {shell.said}")
