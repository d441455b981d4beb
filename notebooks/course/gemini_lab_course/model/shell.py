"""The acting half of a modelled root: it gives happenings to a real `RootAgent` and obeys it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemini_lab.log import events
from gemini_lab.recovery.messages import FromAgentMessage
from gemini_lab.recovery.protocol import (
    AgentJoined,
    AgentLost,
    Emit,
    FromAgent,
    HangUp,
    Happening,
    Instruction,
    JobSubmitted,
    Requested,
    Send,
    Tick,
    WriteState,
)
from gemini_lab.recovery.requests import DrainNode, GiveUpProgress, ResizeRun, StopRun
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab_course.model.machines import Link, TierRecord

if TYPE_CHECKING:
    from gemini_lab_course.model.judged import JudgedWorld
    from gemini_lab_course.model.node import Node

STORE_PATIENCE_S = 60.0


@dataclass(slots=True)
class ModelledKeeper:
    """What a root knows of one agent, as in `gemini_lab.node.agent_links`."""

    link: Link | None = None
    is_registered: bool = True
    is_dead: bool = False


class Shell:
    """A root agent on a node, from its election until it is deposed.

    Attributes:
        said: The last thing that it told about the recovery under way.
        fuse: After so many more instructions, what befalls its node.
    """

    def __init__(self, node: "Node", record: TierRecord) -> None:
        self.node = node
        self.world: JudgedWorld = node.world
        self.record = record
        self.root: RootAgent | None = None
        self.keepers: dict[str, ModelledKeeper] = {}
        self.inbox: deque[Happening] = deque()
        self.pending: deque[Instruction] = deque()
        self.is_open = self.has_taken_over = False
        self.job_number: int | None = None
        self.cancelled: int | None = None
        self.given_up: int | None = None
        self.drains: dict[str, int] = {}
        self.resized: tuple[int, int] | None = None
        self.blocked_since_s: float | None = None
        self.said: events.AnyEvent | None = None

    # -- its life ------------------------------------------------------------------------------

    @property
    def is_acting(self) -> bool:
        """Whether it is not known to be deposed, and its node runs."""
        return self.node.can_act and self.node.shell is self

    def act(self) -> bool:
        """Return one happening, with all that follows from it."""
        if not self.is_acting:
            return False
        if self.root is None:
            return self._open()
        if not self.has_taken_over:
            self.has_taken_over = True
            self._have_done(self.root.take_over(self.world.now_s))
        elif self.pending:
            return self._carry_out()
        elif self.inbox:
            self._have_done(self.root.handle(self.inbox.popleft()))
        else:
            return False
        self._carry_out()
        return True

    def _have_done(self, instructions: Sequence[Instruction]) -> None:
        self.pending.extend(instructions)
        self.world.note_handled(self, instructions)

    def _open(self) -> bool:
        """Read what the last root left, and connect to everybody."""
        if not self.node.reaches_store:
            return False
        store = self.world.store
        state = RootState() if store.state is None else RootState.from_text(store.state.to_text())
        self.job_number = state.setup.order.number if state.setup.order else None
        root = self.world.make_root(self.node, state)
        for name in store.leases:
            keeper = self.keepers[name] = ModelledKeeper()
            joined = self._link(name, keeper)
            if joined is not None:
                root.living[name] = joined
        self.root = root
        self.world.log_term = max(self.world.log_term, self.record.term)
        return True

    def close(self) -> None:
        """End its time as root."""
        for keeper in self.keepers.values():
            if keeper.link is not None:
                keeper.link.cut(99, 0)
        if self.node.shell is self:
            self.node.shell = None

    def observe(self, *, is_settled: bool) -> None:
        """Take note of the store's content."""
        if self.root is None:
            return
        self._see_leases(is_settled=is_settled)
        self._see_job()
        if self.job_number:
            self._see_wishes()
        self.inbox.append(Tick(at_s=self.world.now_s))

    def _see_leases(self, *, is_settled: bool) -> None:
        store, now = self.world.store, self.world.now_s
        for name in store.leases:
            self.keepers.setdefault(name, ModelledKeeper()).is_registered = True
        for name, keeper in self.keepers.items():
            if is_settled and keeper.is_registered and name not in store.leases:
                keeper.is_registered = False
                self._hang_up(name)
                self.inbox.append(AgentLost(at_s=now, node=name, cause="lease"))

    def _see_job(self) -> None:
        """Note that there is a job, or that it was cancelled."""
        store, now, order = self.world.store, self.world.now_s, self.world.order
        connected = sum(k.link is not None and not k.link.is_broken for k in self.keepers.values())
        wanted = min(order.seats.nodes, len(store.leases))
        if order.number != self.job_number and connected >= wanted:
            self.job_number = order.number
            self.inbox.append(JobSubmitted(at_s=now, order=order))
        if store.cancel is not None and store.cancel != self.cancelled:
            self.cancelled = store.cancel
            if self.cancelled == self.job_number:
                self.inbox.append(Requested(at_s=now, number=store.cancel, request=StopRun()))

    def _see_wishes(self) -> None:
        """Hear what people ask of the job."""
        store, now = self.world.store, self.world.now_s
        if store.give_up is not None and store.give_up != self.given_up:
            self.given_up = store.give_up
            self.inbox.append(Requested(at_s=now, number=store.give_up, request=GiveUpProgress()))
        for name, number in store.drains.items():
            if self.drains.get(name) != number:
                self.drains[name] = number
                self.inbox.append(Requested(at_s=now, number=number, request=DrainNode(node=name)))
        if store.resize is not None and store.resize != self.resized:
            self.resized = store.resize
            number, nodes = store.resize
            self.inbox.append(Requested(at_s=now, number=number, request=ResizeRun(nodes=nodes)))

    # -- its connections -------------------------------------------------------------------------

    def listen(self, name: str) -> bool:
        """Hear the next thing that an agent says, or that its connection broke."""
        if not self.is_acting or self.root is None:
            return False
        keeper = self.keepers.get(name)
        if keeper is None or keeper.is_dead:
            return False
        link, now = keeper.link, self.world.now_s
        if link is None:
            joined = self._link(name, keeper)
            if joined is not None:
                self.inbox.append(joined)
            return joined is not None or self._tell_if_dead(name, keeper)
        if link.to_root:
            if self.world.nodes[name].is_cut_off or self.node.is_cut_off:
                return False
            message = link.to_root.popleft()
            assert isinstance(message, FromAgentMessage)
            self.inbox.append(FromAgent(at_s=now, node=name, message=message))
            return True
        if not link.is_broken:
            return False
        keeper.link = None
        joined = self._link(name, keeper)
        if joined is not None:
            self.inbox.append(joined)
        elif not self._tell_if_dead(name, keeper):
            self.inbox.append(AgentLost(at_s=now, node=name, cause="connection"))
        return True

    def _tell_if_dead(self, name: str, keeper: ModelledKeeper) -> bool:
        if keeper.is_dead:
            self.inbox.append(AgentLost(at_s=self.world.now_s, node=name, cause="dead"))
        return keeper.is_dead

    def _link(self, name: str, keeper: ModelledKeeper) -> AgentJoined | None:
        node = self.world.nodes[name]
        if not node.is_alive:
            keeper.is_dead = node.refuses and not keeper.is_registered
            return None
        if node.is_frozen or node.is_cut_off or self.node.is_cut_off:
            return None
        if self.record.term < node.term:
            return None
        node.term = self.record.term
        if node.link is not None:
            node.link.cut(0, 99)
        node.link = Link()
        if not keeper.is_registered:
            node.link.is_broken = True
            return None
        keeper.link = node.link
        worker = node.worker
        workers = {} if worker is None else {worker.rank: worker.status}
        left = node.left if self.world.rules.keeps_rewinds else ()
        return AgentJoined(
            at_s=self.world.now_s, node=name, epoch=node.epoch, workers=workers, left=left
        )

    def _hang_up(self, name: str) -> None:
        keeper = self.keepers.get(name)
        if keeper is not None and keeper.link is not None:
            keeper.link.cut(99, 0)

    # -- what its decisions ask for --------------------------------------------------------------

    def _carry_out(self) -> bool:
        has_moved = False
        while self.pending and self.node.can_act:
            one = self.pending[0]
            if isinstance(one, WriteState) and not self._write(one):
                return has_moved
            if self.node.shell is not self:
                return True  # deposed
            self.pending.popleft()
            has_moved = True
            match one:
                case Send():
                    keeper = self.keepers.get(one.to)
                    link = None if keeper is None else keeper.link
                    if link is not None and not link.is_broken:
                        link.to_agent.append(one.order)
                case Emit():
                    self.world.hear_event(self, one.event)
                case HangUp():
                    self._hang_up(one.node)
                case _:
                    pass
            self.world.burn_fuse(self.node)
        if self.node.can_act and self.node.shell is self:
            self.world.check_root(self)
        return has_moved

    def _write(self, one: WriteState) -> bool:
        store, now = self.world.store, self.world.now_s
        if not self.node.reaches_store:
            if self.blocked_since_s is None:
                self.blocked_since_s = now
            if now - self.blocked_since_s > STORE_PATIENCE_S:
                self.close()
            return False
        self.blocked_since_s = None
        if store.root is not self.record:
            self.close()
            return False
        store.state = one.state
        return True
