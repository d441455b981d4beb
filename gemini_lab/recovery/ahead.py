"""New processes that start before they are needed: a planned move's, beside those that train.

Where processes are kept, the ranks of a node that is to leave need new ones on a standby. These
start, import, and build their model while training goes on, with what the other ranks' set-up was
told. When they could take their places, the ranks stop, and only the switch stands between two
iterations. Whatever comes between, they are ended, and the move goes on without them.
"""

from collections.abc import Iterator
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.messages import (
    Fence,
    Fenced,
    ReadyToJoin,
    StartWorkers,
    WorkerEnded,
)
from gemini_lab.recovery.plan import PlanPart
from gemini_lab.recovery.protocol import AgentJoined, Emit, Instruction, Send
from gemini_lab.recovery.root_state import RootState
from gemini_lab.recovery.seating import fill_positions
from gemini_lab.recovery.stop import Living
from gemini_lab.seats import Seats, in_order

AHEAD_S: Final = 120.0
"""For the new processes to come to `protect`; of a notice, half of what it gives."""


def next_standby(state: RootState, living: Living, node: str) -> str:
    """Who would take a node's place now; empty if nobody would at once."""
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
    """The processes of one move that start ahead, as a root agent follows them.

    Attributes:
        leaving: The node whose places they are to take; empty for none.
        standby: Where they are; empty for nowhere.
        address: Where the ranks will meet, if all of these can join; empty before it is known.
    """

    def __init__(self) -> None:
        self.leaving = self.standby = self.address = ""
        self._seats: Seats | None = None
        self._ready: set[int] = set()
        self._until_s = 0.0
        self._given_up: set[str] = set()  # nodes whose moves do without
        self._within_s: dict[str, float] = {}

    def note_notice(self, node: str, within_s: float | None) -> None:
        """A node is to go within a time."""
        if within_s is not None:
            self._within_s[node] = within_s

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whose processes these are."""
        return () if self._seats is None else tuple(self._seats.ranks_on(self.standby))

    @property
    def is_ready(self) -> bool:
        """Whether all of them could join."""
        return bool(self.ranks) and self._ready >= {*self.ranks}

    def is_awaited(self, state: RootState, living: Living, node: str) -> bool:
        """Whether the node's ranks stop later, when new processes for them could join."""
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
            seats=seats,
            plan=PlanPart(version=state.reached.newest, tier="memory"),
            rendezvous=said.address,
            fingerprint=state.setup.fingerprint,
            kept=[rank for rank in seats.ranks if rank not in self.ranks],
            joins=state.reached.rendezvous,
            code=state.digests,
        )
        yield Send(to=node, order=order)

    def hear(self, node: str, said: ReadyToJoin) -> bool:
        """A process could join; whether now all could."""
        if node == self.standby:
            self._ready.add(said.rank)
        return self.is_ready

    def has(self, node: str, exited: WorkerEnded) -> bool:
        """Whether a worker that ended was one of these, and none that trains."""
        return node == self.standby and exited.rank in self.ranks

    def give_up(self, state: RootState, why: str) -> Iterator[Instruction]:
        """The move does without them."""
        standby, node = self.standby, self.leaving
        self.end()
        self._given_up.add(node)
        text = f"the ranks of {node} move without processes that were started ahead: {why}"
        yield Emit(event=events.Note(text=text))
        yield Send(to=standby, order=Fence(epoch=state.epoch))

    def is_late(self, at_s: float) -> bool:
        """Whether they have not come to where they could join, in time."""
        return bool(self.standby) and not self.is_ready and at_s > self._until_s

    def is_lost_with(self, joined: AgentJoined) -> bool:
        """Whether they are gone with the connection of their agent, which came back."""
        return joined.node == self.standby

    def end(self) -> None:
        """They have joined, or are ended: another move has its own."""
        self.leaving = self.standby = self.address = ""
        self._seats, self._ready = None, set()

    def forget(self, node: str) -> None:
        """The node's ranks have moved, or it stays: another time it may be tried again."""
        self._given_up.discard(node)
        self._within_s.pop(node, None)
