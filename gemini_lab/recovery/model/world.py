"""A lab without I/O: the real `RootAgent` among modelled agents, workers, links, store and tier.

Whatever happens is one action, a tuple of a name and whole numbers, and every action can be tried
in every state (where it makes no sense nothing happens): so any list of actions is a schedule, and
so is what is left of it when some are taken away.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gemini_lab.job import Job as Script
from gemini_lab.log import events
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.recovery.model.machines import LEASE_S, Job, Record, Store, Tier
from gemini_lab.recovery.model.node import Node
from gemini_lab.recovery.model.shell import Shell
from gemini_lab.recovery.model.truth import BrokenError, Held, Histories, Safety, whole_states
from gemini_lab.recovery.plan import VersionId
from gemini_lab.recovery.protocol import Instruction, RootState
from gemini_lab.recovery.rewinds import is_left, joined
from gemini_lab.recovery.root import RootAgent
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings, SettingValue
from gemini_lab.shard.lineage import Lineage

Action = tuple[str, *tuple[int, ...]]
STEP_S = 0.02
_OF_RECOVERY = (
    events.RecoveryStarted,
    events.RecoveryWaiting,
    events.RecoveryPlanned,
    events.RecoveryFinished,
)
CALM_ROUNDS = 600
CALM_EPOCHS = 14


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
"""Settings with which one failure of a node is reason enough to have copies placed anew."""
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
class Told:
    """What was said of the recoveries, by number."""

    started: dict[int, events.OfRecovery] = field(default_factory=dict)
    finished: dict[int, events.OfRecovery] = field(default_factory=dict)
    failed: str = ""
    done: bool = False

    def hear(self, known: dict[int, events.OfRecovery], event: events.OfRecovery) -> bool:
        """A start or an end; whether it is news, as a root that is elected says it again."""
        is_news = event.recovery not in known
        if known.setdefault(event.recovery, event) != event:
            raise BrokenError(f"recovery {event.recovery} has two of {event.kind}")
        return is_news


class World:
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
        self.jobs: dict[tuple[int, str], Job] = {}
        self.nodes: dict[str, Node] = {}
        self.iterations = self.shape.iterations
        self.ports = 0
        self.safety = Safety()
        self.full_states: set[int] = {0}
        self.log_term = 0
        self.heard = 0  # the newest version that was whole by what any root ever heard
        self.told = Told()
        self.left: tuple[VersionId, ...] = ()  # by rewinds of which any rank has said
        self.flips = 0
        self.has_given_up = self.is_cancelled = False
        self.worker_kills = 0
        self.replaced = 0  # how often copies were placed anew
        self._halfway = 0  # the epoch in which `go_halfway` came there last
        self._fuses: dict[str, tuple[int, str]] = {}
        given: dict[str, SettingValue] = {"replicas": self.shape.replicas}
        if self.shape.has_tier:
            given |= {
                "persistent_url": "memory://run",
                "persist_every_iterations": self.shape.persist_every,
            }
        if self.shape.shrinks:
            given |= {"when_short": "shrink", "shrink_after_s": 1.0, "grow_pause_s": 2.0}
        if self.shape.follows:
            given |= FOLLOWING
        self.settings = Settings.parse(given)
        self.order = JobOrder(
            number=1,
            run=7,
            job=Script(script="model.py", cwd="/"),
            seats=Seats(
                nodes=self.shape.nodes,
                standbys=self.shape.standbys,
                rack_of=RACKS if self.shape.follows else {},
            ),
            settings=given,
        )
        for _ in range(self.order.seats.machines):
            self._add_node()

    # -- actions ---------------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        """Let this happen, if it can."""
        name, *numbers = action
        handler: Callable[..., object] = getattr(self, f"do_{name}")
        handler(*numbers)

    def do_go(self, seed: int, moves: int) -> None:
        """So many moves of whoever comes first: messages, workers, roots, time."""
        rng = random.Random(seed)
        names = list(self.nodes)
        for _ in range(moves):
            node = self.nodes[names[int(rng.random() * len(names))]]
            self._move(node, rng)
            self.now_s += STEP_S
            self.renew()

    def do_go_halfway(self, seed: int, most: int) -> None:
        """Go on until a version is on some nodes and not yet on all, in another epoch than before.

        That is a rare moment, and one in which most can go wrong.
        """
        rng = random.Random(seed)
        for _ in range(most):
            newest = max(self.jobs.values(), key=lambda job: job.order.epoch, default=None)
            if newest is not None and newest.order.epoch > self._halfway and newest.is_halfway:
                self._halfway = newest.order.epoch
                return
            self.do_go(rng.randrange(10**6), 1)

    def make_root(self, node: Node, state: RootState) -> RootAgent:  # noqa: ARG002 - see `Watched`
        """The deciding half of a root agent that has been elected on this node."""
        return self.rules.root(state=state, at_s=self.now_s)

    def note_handled(self, shell: Shell, instructions: Sequence[Instruction]) -> None:
        """A root agent has decided; for who wants to know."""

    def _move(self, node: Node, rng: random.Random) -> None:
        kind = rng.random()
        if kind < 0.25:
            node.hear()
        elif kind < 0.6:
            for _ in range(1 + int(rng.random() * 3)):
                if not node.work() and rng.random() < 0.1:
                    node.notice_gone_peers()
        elif kind < 0.65:
            node.write()
        elif kind < 0.72:
            self.poll(node)
        else:
            many = 1 + int(rng.random() * 4)
            for shell in self.shells():
                for _ in range(many):
                    if not (shell.listen(node.name) if kind < 0.86 else shell.act()):
                        break

    def do_wait(self, tenths: int) -> None:
        """Time goes by, in which nobody comes to act."""
        self.now_s += tenths / 10
        self.renew()

    def do_kill(self, number: int, refuses: int) -> None:
        """A machine is gone, or its agent; where the machine is left, it says so."""
        node = self._node(number)
        if not node.is_alive or self._survivors() <= 1:
            return
        node.is_alive, node.is_frozen, node.refuses = False, False, bool(refuses)
        node.kill_worker()
        node.slab, node.shell = None, None
        node.aside.clear()
        if node.link is not None:
            node.link.cut(0, 99)
        for other in self.nodes.values():
            if other.shell is not None:
                keeper = other.shell.keepers.get(node.name)
                if keeper is not None and keeper.link is not None and refuses:
                    keeper.link.is_broken = True
        self.safety.note_dead(node.name)
        self.check_safety()

    def do_add(self) -> None:
        """The operator brings a machine."""
        if sum(node.is_alive for node in self.nodes.values()) < self.order.seats.machines:
            self._add_node()

    def do_freeze(self, number: int) -> None:
        node = self._node(number)
        node.is_frozen = node.is_alive

    def do_thaw(self, number: int) -> None:
        self._node(number).is_frozen = False

    def do_thaw_all(self) -> None:
        """Whoever was frozen goes on, and is reached again."""
        for number in range(len(self.nodes)):
            self.do_thaw(number)
            self.do_join(number)

    def do_kill_group(self, rank: int) -> None:
        """All nodes that keep a shard die."""
        for number in self._keepers_of(rank):
            self.do_kill(number, 1)

    def do_freeze_group(self, rank: int) -> None:
        """All nodes that keep a shard stand still."""
        for number in self._keepers_of(rank):
            self.do_freeze(number)

    def _keepers_of(self, rank: int) -> list[int]:
        safety, names = self.safety, list(self.nodes)
        if not safety.members:
            return []
        positions = safety.holders[rank % len(safety.holders)]
        return [names.index(str(safety.members[position])) for position in positions]

    def do_cut(self, number: int, arrive_at_agent: int, arrive_at_root: int) -> None:
        """The connection between a root and an agent breaks."""
        link = self._node(number).link
        if link is not None:
            link.cut(arrive_at_agent, arrive_at_root)

    def do_part(self, number: int, sees_store: int) -> None:
        """Nothing reaches an agent, nor does it reach any; its worker's network is another."""
        node = self._node(number)
        node.is_cut_off, node.sees_store = True, bool(sees_store)

    def do_join(self, number: int) -> None:
        """The network is mended."""
        node = self._node(number)
        node.is_cut_off, node.sees_store = False, True

    def do_store_down(self) -> None:
        self.store.is_up = False

    def do_store_up(self, keeps_leases: int) -> None:
        """The store is back; where it counted on, leases ran out meanwhile."""
        if self.store.is_up:
            return
        self.store.is_up = True
        if keeps_leases:
            self.store.leases = dict.fromkeys(self.store.leases, self.now_s + LEASE_S)

    def do_tier_down(self) -> None:
        self.tier.is_up = False

    def do_tier_up(self) -> None:
        self.tier.is_up, self.tier.is_full = True, False

    def do_tier_full(self) -> None:
        self.tier.is_full = True

    def do_flip(self, number: int, which: int) -> None:
        """A bit of a whole copy is wrong from now on."""
        copies = self._node(number).copies()
        if copies and self._node(number).is_alive:
            copies[which % len(copies)].is_good = False
            self.flips += 1
            self.safety.is_excused = True

    def do_kill_worker(self, number: int) -> None:
        node = self._node(number)
        if node.can_act and node.worker is not None:
            self.worker_kills += 1
            node.exit_worker(-9)

    def do_sever_worker(self, number: int) -> None:
        node = self._node(number)
        if node.can_act:
            node.sever_worker()

    def do_hang_worker(self, number: int) -> None:
        node = self._node(number)
        if node.worker is not None:
            node.worker.is_hung = True
            self.worker_kills += 1

    def do_fuse(self, instructions: int, how: int) -> None:
        """After so many more instructions the root's node dies (0), freezes (1) or is cut (2)."""
        if self.store.root is not None:
            self._fuses[self.store.root.name] = (instructions, ("kill", "freeze", "cut")[how % 3])

    def do_drain(self, number: int) -> None:
        """A person wants a machine to be free."""
        node, drains = self._node(number), self.store.drains
        if node.is_alive and self.store.is_up:
            drains.pop(node.name, None)
            drains[node.name] = max(drains.values(), default=0) + 1

    def do_resize(self, nodes: int) -> None:
        """A person wants another number of nodes."""
        if self.store.is_up:
            before, _ = self.store.resize or (0, 0)
            self.store.resize = before + 1, 1 + nodes

    def do_rewind(self, depth: int) -> None:
        """Training goes back after the next update, once in each start."""
        job = max(self.jobs.values(), key=lambda one: one.order.epoch, default=None)
        if job is not None and job.updated and job.wish is None:
            _, newest = max(job.updated.values())
            job.wish = (newest + 1, depth)

    def do_cancel(self) -> None:
        self.store.cancel, self.is_cancelled = 1, True

    def do_give_up(self) -> None:
        self.store.give_up, self.has_given_up = (self.store.give_up or 0) + 1, True
        self.safety.is_excused = True

    def burn_fuse(self, node: Node) -> None:
        """An instruction was carried out on this node."""
        if node.name not in self._fuses:
            return
        left, how = self._fuses.pop(node.name)
        if left > 0:
            self._fuses[node.name] = (left - 1, how)
            return
        number = list(self.nodes).index(node.name)
        if how == "cut":
            self.do_cut(number + 1, 0, 1)
        else:
            self.do((how, number, 1) if how == "kill" else (how, number))

    # -- the store, as agents see it -------------------------------------------------------------

    def renew(self) -> None:
        """Leases of nodes that reach the store stay; others run out."""
        if not self.store.is_up:
            return
        for name, until_s in list(self.store.leases.items()):
            node = self.nodes[name]
            if node.can_act and node.sees_store:
                self.store.leases[name] = self.now_s + LEASE_S
            elif self.now_s > until_s:
                self.store.drop(name)

    def poll(self, node: Node) -> None:
        """An agent reads the store, and acts on what it says."""
        if not node.can_act:
            return
        node.watch()
        if node.link is not None and node.link.is_broken and not node.link.to_agent:
            node.link = None
        if not node.reaches_store:
            node.is_store_away = True
            return
        if node.is_store_away:
            node.settled_s, node.is_store_away = self.now_s + 2 * LEASE_S, False
        store = self.store
        if node.name not in store.leases:
            store.leases[node.name] = self.now_s + LEASE_S
            return  # what it does about its old workers comes with the next look
        self._depose_the_dead(node)
        is_settled = self.now_s > node.settled_s
        if node.shell is not None:
            is_newest = store.term == node.shell.record.term
            if store.root is None and not is_settled and is_newest:
                store.root = node.shell.record
            elif store.root is not node.shell.record:
                node.shell.close()
            else:
                node.shell.observe(is_settled=is_settled)
        elif store.root is None and is_settled:
            store.term += 1
            store.root = Record(name=node.name, term=store.term)
            node.shell = Shell(node, store.root)
        elif store.root is not None and store.root.name == node.name:
            node.shell = Shell(node, store.root)  # it resigned while the store was away
        node.end_older_worker()

    def _depose_the_dead(self, node: Node) -> None:
        record = self.store.root
        if record is not None and node.link is None and not node.is_cut_off:
            root = self.nodes[record.name]
            if not root.is_alive and root.refuses:
                self.store.root = None

    # -- what must hold --------------------------------------------------------------------------

    def memory(self) -> list[Held]:
        """Every whole copy in the memory of a machine that is not dead."""
        return [copy for node in self.nodes.values() for copy in node.copies()]

    def newest_saved(self) -> int:
        """The newest version that exists in memory or in the tier, reachable or not.

        One that its holders did not all have yet is nobody's progress: the one before it is.
        """
        held = [one for one in self.memory() if not is_left(one.version, one.lineage, self.left)]
        states = whole_states(held)
        in_memory = (self.histories.version[state] for state in states & self.full_states)
        stored = self.tier.versions.items()
        in_tier = (v for v, (lineage, _) in stored if not is_left(v, lineage, self.left))
        return max([0, *in_memory, *in_tier])

    def note_full(self, job: Job) -> None:
        """All holders have the same version."""
        seats = job.seats if job.seats.placement else job.seats.placed(self.settings)
        members = tuple(job.seats.members)
        _, version = max(job.full_at, (0, job.version or 0))
        self.full_states |= {s for (_, v), s in job.states.items() if v == version}
        alive = all(m is not None and self.nodes[m].is_alive for m in members)
        is_newest = all(job.order.epoch >= epoch for epoch, _ in self.jobs)
        is_good = all(copy.is_good for copy in self.memory() if copy.version == version)
        if alive and is_newest and is_good and version > 0:  # version 0 is made anew at no cost
            self.safety.note_full(members, seats.holders.holders)
        self.check_safety()

    def check_safety(self) -> None:
        """One whole version exists, as long as the placement promises it."""
        if self.safety.is_excused or self.told.done or self.told.failed:
            return
        if not whole_states(self.memory()):
            raise BrokenError(f"no version is whole in memory, though only {self.safety.lost} went")

    def hear_event(self, shell: Shell, event: events.AnyEvent) -> None:
        """Somebody who is or was root says something; the log refuses a deposed one."""
        if isinstance(event, _OF_RECOVERY):
            shell.said = event
        if shell.record.term < self.log_term:
            return
        match event:
            case events.RecoveryStarted():
                self.told.hear(self.told.started, event)
            case events.RecoveryFinished():
                if self.told.hear(self.told.finished, event):
                    self.has_given_up = False  # said once, it holds for one recovery
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
        """Nothing newer exists, or may come back, than what is loaded."""
        assert shell.root is not None
        if self.store.root is not shell.record:
            return
        newest = min(self.newest_saved(), self.heard)
        self.heard = plan.version or 0
        if self.has_given_up or self.flips:
            self.safety.is_excused = True
            return
        self._check_line(shell.root, plan)
        if (plan.version or 0) < newest:
            raise BrokenError(
                f"recovery {plan.recovery} goes on from {plan.version} ({plan.tier}) though "
                f"version {newest} exists: {plan.reason}"
            )

    def _check_line(self, root: RootAgent, plan: events.RecoveryPlanned) -> None:
        """Nobody who was asked knows of a rewind that left this version."""
        asked = [node for name, node in self.nodes.items() if name in root.living]
        known = joined((), (one for node in asked if node.is_alive for one in node.left))
        lineage = Lineage(run=self.order.run, epoch=plan.made_in, rewinds=plan.made_after)
        if plan.version is not None and is_left(plan.version, lineage, known):
            raise BrokenError(
                f"recovery {plan.recovery} goes on from version {plan.version} of {lineage}, which "
                f"a rewind left: {known}"
            )

    def _check_failure(self, shell: Shell, event: events.RunFailed) -> None:
        assert shell.root is not None
        if not self.is_cancelled and self.worker_kills < 3:
            raise BrokenError(f"a healthy run fails: {event.reason}")

    def _check_drained(self, shell: Shell, name: str) -> None:
        """Whose machine may be taken trains no more."""
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
        """A root that waits has said why, after whatever else it said of the recovery."""
        assert shell.root is not None
        state = shell.root.state
        if self.store.root is shell.record:
            self.heard = max(self.heard, state.newest)
        if state.phase == "waiting" and not isinstance(shell.said, events.RecoveryWaiting):
            raise BrokenError(f"the root waits, but the last it said is {shell.said}")

    # -- the end: without faults every run ends --------------------------------------------------

    def shells(self) -> list[Shell]:
        """All who take themselves for the root."""
        return [node.shell for node in self.nodes.values() if node.shell is not None]

    def calm(self) -> None:
        """No more faults and machines enough: the run ends, and in reasonable time."""
        self._mend_all()
        first = self._epoch()
        idle_s, began_s = STEP_S, self.now_s
        for _ in range(CALM_ROUNDS):
            if self.told.done or self.told.failed:
                return
            idle_s = STEP_S if self._round() else min(2 * idle_s, 100.0)
            self.now_s += idle_s
            self.renew()
            self._have_a_person_decide(waited_s=self.now_s - began_s)
            if self._epoch() - first > CALM_EPOCHS:
                raise BrokenError(f"{CALM_EPOCHS} epochs without a fault: {self._stuck()}")
        raise BrokenError(f"the run does not end: {self._stuck()}")

    def _mend_all(self) -> None:
        self._fuses.clear()
        self.do_store_up(1)
        self.do_tier_up()
        for number, node in enumerate(self.nodes.values()):
            self.do_thaw(number)
            self.do_join(number)
            if not node.is_alive:
                node.refuses = True
        enough = self.order.seats.machines if self.shape.is_refilled else self.shape.nodes
        while sum(node.is_alive for node in self.nodes.values()) < enough:
            self._add_node()

    def _round(self) -> bool:
        """Everybody does what there is to do; whether anything was."""
        has_moved = False
        for node in list(self.nodes.values()):
            self.poll(node)
        for shell in self.shells():
            while shell.act():
                pass
        for node in list(self.nodes.values()):
            while node.hear() or node.work() or node.write():
                has_moved = True
            for shell in self.shells():
                while shell.listen(node.name):
                    has_moved = True
                    while shell.act():
                        pass
        return has_moved

    def _have_a_person_decide(self, *, waited_s: float) -> None:
        """A person gives up only what is really gone."""
        for shell in self.shells():
            is_waiting = shell.root is not None and shell.root.state.phase == "waiting"
            if not is_waiting or waited_s < 100:
                continue
            assert shell.root is not None
            if shell.root.state.has_given_up:
                continue
            newest = self.newest_saved()
            known = shell.root.state.newest
            is_hopeless = any(not self.nodes[name].is_alive for name in shell.root.state.silent)
            if newest and newest >= known and not self.flips and not is_hopeless:
                raise BrokenError(f"the root waits though version {newest} is there: {shell.said}")
            self.do_give_up()

    def _epoch(self) -> int:
        return 0 if self.store.state is None else self.store.state.epoch

    def _stuck(self) -> str:
        lines = [f"root {self.store.root}"]
        for shell in self.shells():
            if shell.root is not None:
                state = shell.root.state
                lines.append(f"{shell.record}: {state.phase} epoch {state.epoch} {state.members}")
        for node in self.nodes.values():
            worker = node.worker
            if worker is not None:
                lines.append(
                    f"{node.name}: rank {worker.rank} of epoch {worker.epoch}, stage "
                    f"{worker.stage}, version {worker.version} moving {worker.moving}"
                )
        return "; ".join(lines)

    # -- small helps -----------------------------------------------------------------------------

    def _node(self, number: int) -> Node:
        names = list(self.nodes)
        return self.nodes[names[number % len(names)]]

    def _survivors(self) -> int:
        return sum(node.is_alive for node in self.nodes.values())

    def _add_node(self) -> None:
        node = Node(f"node-{len(self.nodes)}", self)
        self.nodes[node.name] = node
        if self.store.is_up:
            self.store.leases[node.name] = self.now_s + LEASE_S
