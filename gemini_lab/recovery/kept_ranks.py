"""The root agent's decision which ranks keep their process through a recovery.

At a recovery's first fence, workers may stand still instead of ending. They go on in place if the
planned version is in memory and each of them keeps its seat on its node (`Keeping`). One process
serves the port at which all ranks meet: a new one, if any rank has one, else a kept one. If
anything else happens, all ranks start again.

The ranks of a node that will leave need new processes on a standby (`Ahead`). These start, import
and build their model while the others train, and play the others' set-up from its record. Once all
of them are ready, training stops, and only the switch stands between two iterations. If anything
fails before that, they are ended, and the move goes on without them.

A worker whose peer died often knows it before that peer's agent does, so the root agent asks all
agents when a connection breaks (`RollCall`). An agent answers only after it has reported all its
workers that ended, and gives no answer if one of them has ended.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.messages import (
    CallRoll,
    Fence,
    Fenced,
    ReadyToJoin,
    StartWorkers,
    WorkerEnded,
)
from gemini_lab.recovery.plan import PlanPart, RecoveryPlan
from gemini_lab.recovery.protocol import AgentJoined, Emit, Instruction, Send
from gemini_lab.recovery.root_state import RootState
from gemini_lab.recovery.seating import fill_positions
from gemini_lab.recovery.stop import Living
from gemini_lab.recovery.told_seats import ToldSeats, told_ranks
from gemini_lab.seats import Seats, in_order

AHEAD_S: Final = 120.0
"""The limit for new processes to reach `protect`; half of the notice, if that is shorter."""


def next_standby(state: RootState, living: Living, node: str) -> str:
    """Return the standby that would take a node's place at once; empty for none."""
    spares = (
        set(state.seats.spares(living)) - state.avoided - {*state.drain.leaving, *state.nodes.wrong}
    )
    ready = [one for one in in_order(spares) if living[one].is_ready]
    seats = state.seats
    filled = fill_positions(
        members=[None if one == node else one for one in seats.members],
        spares=ready,
        copies=(),
        holders=seats.holders.holders,
        workers_per_node=seats.workers_per_node,
        rack_of=seats.rack_of,
    )
    return filled[seats.members.index(node)] or ""


class Ahead:
    """The processes that start ahead of one move, as a root agent follows them.

    Attributes:
        leaving: The node whose ranks they will be; empty for none.
        standby: Their node; empty for none.
        address: The port at which all ranks will meet; empty before it is known.
    """

    def __init__(self) -> None:
        self.leaving = self.standby = self.address = ""
        self._seats: Seats | None = None
        self._ready: set[int] = set()
        self._until_s = 0.0
        self._given_up: set[str] = set()  # nodes whose moves do without
        self._within_s: dict[str, float] = {}

    def note_notice(self, node: str, within_s: float | None) -> None:
        """Note how much time a leaving node has."""
        if within_s is not None:
            self._within_s[node] = within_s

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of these processes."""
        return () if self._seats is None else tuple(self._seats.ranks_on(self.standby))

    @property
    def is_ready(self) -> bool:
        """Whether all of them could join."""
        return bool(self.ranks) and self._ready >= {*self.ranks}

    def is_awaited(self, state: RootState, living: Living, node: str) -> bool:
        """Return whether the node's ranks stop later, after new processes are ready."""
        if node == self.leaving:
            return not self.is_ready
        settings = state.read_settings()
        can_be_kept = (
            settings.keep_processes
            and settings.verify_every is None
            and settings.replicate != "gradients"
        )
        is_new = can_be_kept and bool(state.reached.rendezvous) and node not in self._given_up
        return is_new and bool(next_standby(state, living, node))

    def begin(
        self, at_s: float, state: RootState, living: Living, node: str
    ) -> Iterator[Instruction]:
        """Fence the standby that will take the node's place; its answer names a port to meet in."""
        if self.standby:
            return
        self.standby, self.leaving = next_standby(state, living, node), node
        self.address, self._seats, self._ready = "", None, set()
        half_notice_s = self._within_s.get(node, 2 * AHEAD_S) / 2
        self._until_s = at_s + min(AHEAD_S, half_notice_s)
        reason = f"{self.standby} starts its ranks' processes meanwhile"
        yield Emit(event=events.DrainWaiting(name=node, reason=reason))
        yield Send(to=self.standby, order=Fence(epoch=state.epoch))

    def start(self, state: RootState, node: str, said: Fenced) -> Iterator[Instruction]:
        """Start the processes on the standby, which holds a port now."""
        if node != self.standby or self.address or not said.address:
            return
        members = [node if one == self.leaving else one for one in state.members]
        seats = state.seats_to_tell.seated(members)
        self.address, self._seats = said.address, seats
        order = StartWorkers(
            epoch=state.epoch,
            order=state.job,
            seats=ToldSeats.of(seats),
            plan=PlanPart(version=state.reached.newest, tier="memory"),
            rendezvous=said.address,
            fingerprint=state.setup.fingerprint,
            kept=told_ranks(rank for rank in seats.ranks if rank not in self.ranks),
            joins=state.reached.rendezvous,
            code=state.digests,
        )
        yield Send(to=node, order=order)

    def hear(self, node: str, said: ReadyToJoin) -> bool:
        """Note that a process could join; return whether all could now."""
        if node == self.standby:
            self._ready.add(said.rank)
        return self.is_ready

    def has(self, node: str, exited: WorkerEnded) -> bool:
        """Return whether an ended worker was one of these, and none that trains."""
        return node == self.standby and exited.rank in self.ranks

    def give_up(self, state: RootState, why: str) -> Iterator[Instruction]:
        """Give these processes up; the move goes on without them."""
        standby, node = self.standby, self.leaving
        self.end()
        self._given_up.add(node)
        text = f"the ranks of {node} move without processes that were started ahead: {why}"
        yield Emit(event=events.Note(text=text))
        yield Send(to=standby, order=Fence(epoch=state.epoch))

    def is_late(self, at_s: float) -> bool:
        """Return whether they are not ready in time."""
        return bool(self.standby) and not self.is_ready and at_s > self._until_s

    def is_lost_with(self, joined: AgentJoined) -> bool:
        """Return whether they were lost with their agent's connection, which came back."""
        return joined.node == self.standby

    def end(self) -> None:
        """Forget these processes, which have joined or ended."""
        self.leaving = self.standby = self.address = ""
        self._seats, self._ready = None, set()

    def forget(self, node: str) -> None:
        """Forget a node that has left or stays, so that another move may start processes."""
        self._given_up.discard(node)
        self._within_s.pop(node, None)


SEVERED: Final = "link_cut"
HUNG: Final = "worker_hung"
ENDED: Final = frozenset({"worker_exited", "node_lost", events.DRAIN, SEVERED, HUNG})
"""Causes that leave the other ranks unharmed."""


class Keeping:
    """The ranks that stand still, as a root agent hears of them.

    Args:
        ahead: The processes that start ahead of a move.

    Attributes:
        ends: Ranks that must end at the fence under way.
    """

    def __init__(self, ahead: Ahead) -> None:
        self.ends: list[int] = []
        self._ahead = ahead
        self._new: tuple[int, ...] = ()  # ranks whose processes were started ahead
        self._standby = self._address = ""
        self._is_asked = False
        self._lost: frozenset[str] = frozenset()
        self._nodes: dict[int, str] = {}  # by rank

    def begin(
        self, state: RootState, cause: str, lost: Iterable[str], *, ends: Iterable[int] = ()
    ) -> None:
        """Note that a fence begins; another one in the same recovery ends all workers.

        Args:
            state: The state while training was still under way.
            cause: The fence's cause.
            lost: Nodes whose ranks move.
            ends: Ranks that may never reach the top of their loop again.
        """
        self._nodes, self._lost, self.ends = {}, frozenset(lost), sorted(ends)
        is_first = state.phase == "running" and state.story.trouble is None
        self._is_asked = is_first and cause in ENDED and state.read_settings().keep_processes
        ahead = self._ahead
        is_of_use = self._is_asked and cause == events.DRAIN and ahead.is_ready
        self._new = ahead.ranks if is_of_use else ()
        self._address = ahead.address if is_of_use else ""
        self._standby = ahead.standby if is_of_use else ""
        if ahead.standby and not is_of_use:
            self._lost |= {ahead.standby}
        ahead.end()

    def asks(self, node: str) -> bool:
        """Return whether a node's workers may stand still at this fence."""
        return self._is_asked and node not in self._lost

    def hear(self, node: str, said: Fenced) -> None:
        """Note a node's answer to the fence."""
        self._nodes.update(dict.fromkeys(said.kept, node))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that stand still, or have a process that was started ahead."""
        return tuple(sorted(self._nodes))

    @property
    def trained(self) -> tuple[int, ...]:
        """The kept ranks whose processes have trained already."""
        return tuple(rank for rank in self.ranks if rank not in self._new)

    @property
    def standby(self) -> str:
        """The node whose processes were started ahead; empty for none."""
        return self._standby

    @property
    def address(self) -> str:
        """The port in which all meet, if one of them serves it already; else empty."""
        return self._address if {*self._new} <= self._nodes.keys() else ""

    def fits(self, plan: RecoveryPlan, before: RootState, now: RootState) -> bool:
        """Return whether this plan lets all ranks that stand still go on."""
        if not self._nodes:
            return True
        seats = now.seats.seated(plan.members)
        return (
            plan.tier == "memory"
            and not plan.cuts
            and seats.world_size == before.seats.world_size
            and seats.placement == before.seats.placement
            and all(seats.node_of(rank) == node for rank, node in self._nodes.items())
        )

    def hosts(self, seats: Seats) -> list[str]:
        """Return nodes, in order, one of which serves the port: those with new ranks, if any."""
        new = [rank for rank in seats.ranks if rank not in self._nodes]
        return [*dict.fromkeys(seats.node_of(rank) for rank in new or seats.ranks)]


ANSWER_S: Final = 0.5
"""The limit for the answers; an agent that gives none may be slow, or lost."""


class RollCall:
    """The question to all nodes whether their workers live.

    Attributes:
        is_under_way: Whether an answer is missing.
    """

    def __init__(self) -> None:
        self.is_under_way = False
        self._since_s = 0.0
        self._open: set[str | None] = set()

    def restart(self) -> None:
        """Forget the question, because all workers end or stand still."""
        self.is_under_way = False

    def begin(self, at_s: float, state: RootState, living: Living) -> Iterator[Send]:
        """Ask all nodes that train, unless they are asked already."""
        if self.is_under_way:
            return
        self.is_under_way, self._since_s = True, at_s
        self._open = {*state.members}
        for member in dict.fromkeys(state.members):
            if member in living:
                yield Send(to=str(member), order=CallRoll(epoch=state.epoch))

    def hear(self, node: str) -> bool:
        """Note that a node's workers all live; return whether those of all nodes do now."""
        self._open.discard(node)
        return self.is_under_way and not self._open

    def is_late(self, at_s: float) -> bool:
        """Return whether the missing answers are waited for no more."""
        return self.is_under_way and at_s - self._since_s >= ANSWER_S
