"""What must hold of a simulated lab, checked all along, whatever its agents believe."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from gemini_lab.errors import GeminiError
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.memory.slab import Slab
from gemini_lab.node.host import Worker
from gemini_lab.node.root_shell import RootShell
from gemini_lab.recovery.discarded_versions import left_of
from gemini_lab.recovery.plan import VersionId, is_left, joined
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import ACTIVE, RootState
from gemini_lab.shard.lineage import Lineage
from gemini_lab.storage import persistent_tier
from gemini_lab_bench.world.coverage import NO_ROOT, Coverage
from gemini_lab_bench.world.wait_limits import WELL_S, WaitLimits

if TYPE_CHECKING:
    from gemini_lab_bench.world.virtual_machine import VirtualMachine
    from gemini_lab_bench.world.virtual_rank import VirtualRank
    from gemini_lab_bench.world.world import VirtualWorld

LOOK_S: Final = 0.25
RUN: Final = 7
"""The number of the run."""
TRACED: Final = (
    events.RootElected,
    events.RecoveryStarted,
    events.RecoveryWaiting,
    events.RecoveryPlanned,
    events.RecoveryFinished,
    events.RunFinished,
    events.RunFailed,
    events.LinkCut,
    events.Note,
    events.WorkerExited,
)
EXPECTED: Final = ("store", "etcd", "Errno")


class Judge:
    """What is really so in a world, and what must hold of it.

    Attributes:
        trace: All that counts of what was said, with its moment.
        failed: Why the run was given up.
        is_done: Whether the run has finished.
    """

    def __init__(self, world: "VirtualWorld") -> None:
        self.world = world
        self.trace: list[str] = []
        self.coverage, self.waits = Coverage(), WaitLimits(world)
        self.failed, self.is_done = "", False
        self.wrong: list[str] = []
        self.heard = 0  # the newest version that a root agent in its place ever knew
        self.has_given_up = self.has_stopped = False
        self.given_up: list[tuple[int, int]] = []  # from what on was gone, and in which epoch
        self.worker_kills = self.flips = 0
        self.has_ended_early = False  # whether a script was to come to an end on one rank alone
        self.left: tuple[VersionId, ...] = ()  # by rewinds of which any rank has said
        self.on_event: Callable[[VirtualMachine, events.AnyEvent, int | None], object] = _nothing
        self._roots: dict[int, str] = {}
        self._labels: dict[tuple[int, Lineage], int] = {}
        self._loaded: dict[int, tuple[int, int]] = {}
        self._trained_s: dict[int, float] = {}  # when an epoch's first iteration was done
        self._full: set[tuple[int, Lineage]] = set()
        self._started: dict[int, events.OfRecovery] = {}
        self._finished: dict[int, events.OfRecovery] = {}
        self._members: tuple[str | None, ...] = ()
        self._holders: Sequence[Sequence[int]] = ()
        self._lost: set[int] = set()
        self._is_excused = True
        self._term = 0
        self._planned = 0  # the epoch of the last plan

    def broken(self, text: str) -> None:
        """Note that something does not hold."""
        self.wrong.append(f"{self.world.loop.time():.3f} {text}")

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.world.loop.time():.3f} {text}")

    # -- what agents say -------------------------------------------------------------------------

    def follow(self, machine: "VirtualMachine") -> None:
        """Hear all that an agent says, at the moment at which it does."""
        agent = machine.agent
        assert agent is not None
        pass_on = agent.lab.pass_on

        def heard(entry: Entry, *, term: int | None = None) -> None:
            self._hear(machine, entry.event, term)
            pass_on(entry, term=term)

        agent.lab.pass_on = heard  # type: ignore[method-assign]

    def _hear(self, machine: "VirtualMachine", event: events.AnyEvent, term: int | None) -> None:
        self.on_event(machine, event, term)
        if isinstance(event, TRACED):
            self.note(f"{machine.name}: {event.kind} {event}"[:300])
        if isinstance(event, events.Note) and f"{machine.name}'s agent: " in event.text:
            said = event.text.partition("agent: ")[2]
            if not any(word in said for word in EXPECTED):
                self.broken(event.text)
        if term is not None and term >= self._term:
            self._hear_root(machine, event, term)

    def _hear_root(self, machine: "VirtualMachine", event: events.AnyEvent, term: int) -> None:
        shell = self._shell_of(machine)
        if isinstance(event, events.RootElected) and shell is not None:
            stored = self.world.value("state")
            self.coverage.follow(shell, RootState.from_text(stored) if stored else RootState())
        self.coverage.hear(event)
        match event:
            case events.RootElected():
                if self._roots.setdefault(term, event.name) != event.name:
                    self.broken(f"term {term} has two roots, {self._roots[term]} and {event.name}")
                self._term = term
            case events.RecoveryStarted():
                # Each root agent tells the time by its machine's clock, which may have jumped.
                self._told(self._started, msgspec.structs.replace(event, failed_at_s=0.0))
            case events.NodeLost() if not self.world.is_closing and self.waits.lost_though_well(
                event, machine
            ):
                self.broken(f"{event.name} is well, and counts as lost: {event.cause}")
            case events.RecoveryFinished():
                self._told(self._finished, event)
            case events.RecoveryPlanned():
                self._check_plan(machine, event)
            case events.RunFailed():
                self.failed = event.reason
                self._check_failure(event)
            case events.NodeDrained():
                self._check_drained(event.name)
            case events.RunFinished():
                self.is_done = True
                newest = max([0, *(v for v, line in self._full if line.epoch == self._planned)])
                if event.iteration < newest and not self.left:
                    self.broken(f"it ends with version {event.iteration}, and {newest} was whole")
                if untold := self._started.keys() ^ self._finished.keys():
                    self.broken(f"it was not told how the recoveries {sorted(untold)} went")

    def _told(self, known: dict[int, events.OfRecovery], event: events.OfRecovery) -> None:
        if known.setdefault(event.recovery, event) != event:
            self.broken(f"recovery {event.recovery} has two of {event.kind}")

    def forget_excuses(self) -> None:
        """Excuse nothing any more by what befell the lab before training went on."""
        self.has_given_up, self.worker_kills = False, 0

    def check_wait(self) -> None:
        """Check that a root agent that waits for long lacks something."""
        for machine, root in self.roots():
            state = root.state
            silent = {self.world.named(name) for name in state.nodes.silent}
            if self.flips or self.world.has_lacked or not silent <= {*self.world.core}:
                return
            is_pausing = machine.wall_s() < root.lifecycle.resumes_s + 10
            newest = self.newest_saved(self.world.core)
            if newest >= max(1, state.reached.newest) and not is_pausing:
                self.broken(f"the root waits though version {newest} is there: {state.phase}")

    # -- who is root -----------------------------------------------------------------------------

    def look(self) -> None:
        """Learn what the root agent in its place knows, and check how long waits last."""
        roots = [*self.roots()]
        for _, root in roots:
            self.heard = max(self.heard, root.state.reached.newest)
        for text in () if self.is_done or self.failed else self.waits.look(roots):
            self.broken(text)

    def note_epoch(self) -> None:
        """Check that a root agent that begins an epoch reaches others: they may train well."""
        for machine, _ in self.shells():
            if self.waits.is_alone(machine):
                self.broken(f"{machine.name} begins an epoch, and reaches no other agent")

    def shells(self) -> Iterator[tuple["VirtualMachine", RootShell]]:
        """Yield those that take themselves for root, and whose record stands."""
        for machine in self.world.machines:
            shell = self._shell_of(machine)
            if shell is None or machine.is_dead:
                continue
            if shell.record.to_text() == self.world.value("root"):
                yield machine, shell

    @staticmethod
    def _shell_of(machine: "VirtualMachine") -> RootShell | None:
        return None if machine.agent is None else machine.agent._root_role.shell  # noqa: SLF001

    @property
    def phase(self) -> str:
        """The phase of the root agent in its place."""
        return next((state.phase for _, state in self.root_states()), NO_ROOT)

    def roots(self) -> Iterator[tuple["VirtualMachine", RootAgent]]:
        """Yield the root agent in its place."""
        for machine, shell in self.shells():
            if shell._root is not None:  # noqa: SLF001
                yield machine, shell._root  # noqa: SLF001

    def root_states(self) -> Iterator[tuple["VirtualMachine", RootState]]:
        """Yield the state of the root agent in its place."""
        for machine, root in self.roots():
            yield machine, root.state

    # -- one history -----------------------------------------------------------------------------

    def sealed(self, version: int, lineage: Lineage, state: int) -> None:
        """Check that a version and a lineage name one state."""
        if self._labels.setdefault((version, lineage), state) != state:
            self.broken(f"version {version} of {lineage} has two states")

    def mixed(self, rank: "VirtualRank", states: Sequence[int]) -> None:
        """Check that all ranks of a collective have one state."""
        if len(set(states)) > 1:
            self.broken(f"{rank.process.name}: version {rank.version} mixes states {states}")

    def loaded(self, rank: "VirtualRank", states: Sequence[tuple[int, int]]) -> None:
        """Check that all ranks of a start loaded one state."""
        if len(set(states)) > 1:
            self.broken(f"epoch {rank.start.epoch}: ranks loaded {states}")

    def note_started(self, machine: "VirtualMachine", rank: "VirtualRank") -> None:
        """Check that no other worker writes the memory of a node in which one starts."""
        for one in machine.ranks:
            writes = not (one.process.is_gone or one.stands)
            if writes and one.start.epoch != rank.start.epoch:
                self.broken(
                    f"{machine.name} starts rank {rank.start.rank} of epoch {rank.start.epoch} "
                    f"while rank {one.start.rank} of epoch {one.start.epoch} still writes"
                )

    def note_ended(self, machine: "VirtualMachine", workers: Sequence[Worker]) -> None:
        """Check that a node ends no workers that its root agent has start or train."""
        if machine.agent is None or not machine.agent.root.is_open:
            return
        for _, state in self.root_states():
            ended = [one.rank for one in workers if one.epoch == state.epoch and not one.is_ahead]
            if ended and state.phase in {"starting", "running"}:
                self.broken(f"{machine.name} ends ranks {ended}, and epoch {state.epoch} goes on")

    def met(self, rank: "VirtualRank") -> None:
        """Check that a process served the port in which the ranks of a start have met."""
        if not rank.job.is_served:
            self.broken(f"epoch {rank.start.epoch}: no process serves the port in which all meet")

    def trained(self, rank: "VirtualRank") -> None:
        """Check that a rank of an older epoch trains no more once its node can know of the new one.

        Such ranks may outlive their epoch if all of them were silent: they miss none of them.
        """
        now_s, epoch = self.world.loop.time(), rank.start.epoch
        self._trained_s.setdefault(epoch, now_s)
        newest = max(self._trained_s)
        is_old = epoch < newest and now_s - self._trained_s[newest] > WELL_S
        if is_old and self.waits.is_well_for_long(rank.machine):
            self.broken(f"{rank.process.name} trains in epoch {epoch}, and {newest} has begun")

    def rewound(self, said: events.Rewound) -> None:
        """Note that what was made after a version counts no more."""
        self.left = joined(self.left, [left_of(said, run=RUN)])

    # -- what exists -----------------------------------------------------------------------------

    def note_full(self, rank: "VirtualRank") -> None:
        """Note that every holder has a version."""
        name = (rank.version, rank.lineage)
        if name in self._full:
            return
        self._full.add(name)
        members = tuple(rank.start.seats.members)
        machines = [self.world.named(member) for member in members if member is not None]
        newest = max(job.start.epoch for job in self.world.jobs.values())
        is_well = all(not one.is_dead for one in machines) and rank.start.epoch == newest
        if is_well and rank.version > 0 and not self.flips:
            self._members, self._holders = members, rank.seats.holders.holders
            self._lost, self._is_excused = set(), False

    def note_dead(self, machine: "VirtualMachine") -> None:
        """Forget a node's memory."""
        if machine.name in self._members:
            self._lost.add(self._members.index(machine.name))
        if any({*positions} <= self._lost for positions in self._holders):
            self._is_excused = True
        self.check_memory()

    def note_left(self, machine: "VirtualMachine") -> None:
        """Note that an agent has ended by itself."""
        self.note(f"{machine.name}: its agent has ended")
        is_told = machine in self.world.drained
        if machine in self.world.core and not (self.world.is_closing or is_told):
            self.broken(f"{machine.name} was well, and its agent has ended")

    def check_memory(self) -> None:
        """Check that a whole version exists, as long as the placement promises it."""
        if not (self._is_excused or self.is_done or self.failed) and not self.whole_versions():
            self.broken(f"no version is whole in memory, though only {self._lost} went")

    def whole_versions(
        self, among: Sequence["VirtualMachine"] | None = None
    ) -> set[tuple[int, Lineage]]:
        """Return the versions of which every shard is in the memory of a machine."""
        found: defaultdict[tuple[int, int, Lineage], set[int]] = defaultdict(set)
        for machine in self.world.machines if among is None else among:
            for ranks, slab in self.slabs(machine):
                for copy in slab.copies():
                    if not slab.read(copy.shard, copy.version, copy.lineage).bad_chunks():
                        found[ranks, copy.version, copy.lineage].add(copy.shard)
        return {(v, line) for (ranks, v, line), shards in found.items() if len(shards) == ranks}

    def slabs(self, machine: "VirtualMachine") -> list[tuple[int, Slab]]:
        """Return the slabs of a machine that is not dead, each with its number of ranks."""
        if machine.is_dead or machine.agent is None:
            return []
        memory = machine.agent.supervisor.memory
        # Nobody but this judge, who is no part of the lab, looks there.
        own = [(memory._ranks, slab) for slab in memory._slabs.values()]  # noqa: SLF001
        aside = memory._aside.items()  # noqa: SLF001
        return [*own, *((ranks, slab) for ranks, one in aside for slab in one.slabs.values())]

    def newest_saved(self, among: Sequence["VirtualMachine"] | None = None) -> int:
        """Return the newest version that exists and that all holders have had.

        Args:
            among: The machines whose memory counts; by default that of all.
        """
        in_tier = set[tuple[int, Lineage]]()
        with suppress(GeminiError):
            survey = persistent_tier(self.world.tier.url).survey()
            in_tier = {(one.version, one.lineage) for one in survey.stored}
        there = [v for v, line in in_tier if self._counts(v, line)]
        return max([self.newest_in_memory(among), *there])

    def newest_in_memory(self, among: Sequence["VirtualMachine"] | None = None) -> int:
        """Return the newest version in memory that all holders have had."""
        whole = self.whole_versions(among) & self._full
        return max([0, *(v for v, line in whole if self._counts(v, line))])

    def _counts(self, version: int, lineage: Lineage) -> bool:
        """Return whether neither a rewind nor a user has left a version behind."""
        is_given_up = any(version > to and lineage.epoch < epoch for to, epoch in self.given_up)
        return not (is_given_up or is_left(version, lineage, self.left))

    def _check_plan(self, machine: "VirtualMachine", plan: events.RecoveryPlanned) -> None:
        if machine not in [one for one, _ in self.shells()]:
            return
        newest = min(self.newest_saved(), self.heard)
        self._planned = plan.epoch
        self.heard = plan.version or 0
        self._check_line(plan)
        for version, epoch in self.given_up:
            if (plan.version or 0) > version and plan.made_in < epoch and not self.flips:
                self.broken(
                    f"recovery {plan.recovery} goes on from version {plan.version} of epoch "
                    f"{plan.made_in}, which a user gave up in epoch {epoch}"
                )
        if self.has_given_up or self.flips:
            self._is_excused = True
            if (plan.version or 0) < newest:
                self.given_up.append((plan.version or 0, plan.epoch))
        elif (plan.version or 0) < newest:
            self.broken(
                f"recovery {plan.recovery} goes on from {plan.version} ({plan.tier}) though "
                f"version {newest} exists: {plan.reason}"
            )

    def _check_line(self, plan: events.RecoveryPlanned) -> None:
        """Check that no asked agent was told of a rewind that left this version behind."""
        living = {name for _, state in self.root_states() for name in state.members}
        told = [one for one in self.world.machines if one.name in living and not one.is_dead]
        known = joined((), (left for one in told for left in one.left))
        lineage = Lineage(run=RUN, epoch=plan.made_in, rewinds=plan.made_after)
        if plan.version is not None and not self.flips and is_left(plan.version, lineage, known):
            self.broken(
                f"recovery {plan.recovery} goes on from {plan.version}, which a rewind left"
            )

    def _check_drained(self, name: str) -> None:
        for rank in self.world.named(name).ranks:
            states = [state for _, state in self.root_states()]
            is_now = any(
                state.epoch == rank.start.epoch and state.phase in ACTIVE for state in states
            )
            if not rank.process.is_gone and is_now:
                self.broken(f"{name} may go, and {rank.process.name} trains there")

    def _check_failure(self, event: events.RunFailed) -> None:
        is_meant = self.has_stopped and event.cause == "owner"
        if is_meant or (self.has_ended_early and event.cause == "script"):
            return
        is_own = event.reason.startswith("root=")  # a root agent of the user's own is to blame
        if is_own or (self.worker_kills < 3 and not self.world.has_lacked):
            self.broken(f"a healthy run fails: {event.reason}")


def _nothing(*_: object) -> None:
    pass
