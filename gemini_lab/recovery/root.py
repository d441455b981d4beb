"""The root agent's decisions (paper, section 6): what happens becomes what is to be done.

`RootAgent.handle` takes one happening and returns instructions; it does no I/O and reads no clock,
so a story of happenings is a test. What must outlive the root is in `RootState`, which a shell
writes to the store, fenced by the root's own key, before it carries out what follows it.

Layers, from below: what is known of a run (`recovery.steps`), how it ends (`recovery.ending`), how
it goes through its phases (`recovery.phases`), its workers are watched (`recovery.watching`), its
agents come and go (`recovery.attending`), and here what is heard finds its way to all of them,
people ask for things, and time passes.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.attending import AttendedRun
from gemini_lab.recovery.drains import nodes_wanted
from gemini_lab.recovery.finite import LossWatch
from gemini_lab.recovery.keeping import SEVERED
from gemini_lab.recovery.messages import (
    AllLive,
    Committed,
    Disowned,
    EndReached,
    EventSaid,
    Fenced,
    Held,
    Inventory,
    NodeLeaves,
    OrderFailed,
    Persisted,
    PersistFailed,
    PortHeld,
    ReadyToJoin,
    ReadyToStart,
    RestoreFailed,
    ScriptFinished,
    Severed,
    WorkerExited,
    WorkerPulse,
)
from gemini_lab.recovery.protocol import (
    ACTIVE,
    Emit,
    FromAgent,
    Happening,
    HeardEvent,
    Instruction,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NoMachineComes,
    Requested,
    RequestNodes,
    RootState,
    Send,
    Tick,
    WriteState,
)
from gemini_lab.recovery.repeats import Repeats
from gemini_lab.recovery.replicas import known_risk
from gemini_lab.recovery.requests import (
    DrainNode,
    GiveUpProgress,
    ResizeRun,
    RewindRun,
    SaveVersion,
    StopRun,
)
from gemini_lab.recovery.resizes import patience_s
from gemini_lab.recovery.rewinds import ask_back
from gemini_lab.recovery.saver import Saver
from gemini_lab.recovery.stop import what_for
from gemini_lab.seats import in_order

FENCE_LIMIT_S: Final = 60.0  # an agent that has not killed its workers by then counts as lost
INVENTORY_LIMIT_S: Final = 900.0  # reading every checksum of a large memory takes minutes
RENDEZVOUS_LIMIT_S: Final = (
    400.0  # an agent may wait 300 s for imports; then it begins again itself
)
LONGEST_RETRY_S: Final = 30.0


class RootAgent(AttendedRun):
    """The root agent, as a state machine; its arguments are those of `KnownRun`."""

    def handle(self, happening: Happening) -> list[Instruction]:
        """What is to be done now that `happening` happened."""
        done = list(self._handle(happening))
        self.state = self._replicas.hear(happening, done, self.state)
        return done

    def _handle(self, happening: Happening) -> Iterator[Instruction]:
        match happening:
            case NodeJoined():
                yield from self._on_joined(happening)
            case NodeLost():
                yield from self._on_lost(happening)
            case JobSubmitted():
                yield from self._on_job(happening)
            case Requested():
                yield from self._on_request(happening)
            case NoMachineComes():
                yield from self._on_none_come(happening.at_s)
            case Tick():
                yield from self._on_tick(happening.at_s)
            case FromAgent():
                yield from self._on_message(happening)

    # -- what agents say -----------------------------------------------------------------------

    def _on_message(self, said: FromAgent) -> Iterator[Instruction]:
        message = said.message
        if message.epoch not in {None, self.state.epoch}:
            return  # from before a fence
        match message:
            case Fenced() | Inventory() | PortHeld():
                yield from self._on_answer(said.at_s, said.node, message)
            case EventSaid() if isinstance(message.entry.event, HeardEvent):
                yield from self._on_event(said.at_s, message.entry.event)
            case WorkerExited() if self._ahead.has(said.node, message):
                last = message.output.splitlines()[-1:] or [f"exit code {message.code}"]
                why = f"that of rank {message.rank} has ended ({last[0]})"
                yield from self._without_ahead(said.at_s, why)
            case WorkerExited():
                yield from self._on_exit(said.at_s, said.node, message)
            case EndReached() | ScriptFinished():
                yield from self._on_end(said.at_s, message)
            case Held() | ReadyToStart() | ReadyToJoin() | NodeLeaves():
                yield from self._on_move(said.at_s, said.node, message)
            case Severed() | AllLive() | RestoreFailed() | OrderFailed():
                yield from self._on_trouble(said.at_s, said.node, message)
            case WorkerPulse():
                self._pulses.hear(message, at_s=said.at_s)
            case Persisted() | PersistFailed() | Committed() | Disowned():
                yield from self._on_persistence(said.at_s, said.node, message)

    def _on_move(
        self, at_s: float, node: str, said: Held | ReadyToStart | ReadyToJoin | NodeLeaves
    ) -> Iterator[Instruction]:
        """What an agent says of moves: a rank has stopped, ranks could start here, it is to go."""
        match said:
            case Held() if self._stop.is_complete(said.rank, self.state):
                leaves = [self.state.holding] if self.state.holding else []
                yield from self._begin(at_s, cause=what_for(self.state), lost=leaves)
            case ReadyToStart() if node in self.living:
                self.living[node] = replace(self.living[node], is_ready=True)
                yield from self._let_leave(at_s)
            case ReadyToJoin() if self._ahead.hear(node, said):
                yield from self._let_leave(at_s)
            case NodeLeaves():
                yield from self._on_leaving(at_s, node, within_s=said.within_s)

    def _on_persistence(
        self, at_s: float, node: str, said: Persisted | PersistFailed | Committed | Disowned
    ) -> Iterator[Instruction]:
        if isinstance(said, Disowned):
            yield from self._on_disowned(at_s, said)
            return
        if said.version != self._saver.version:
            return
        yield from self._saver.hear(at_s, node, said, state=self.state)
        if isinstance(said, Committed):
            saved, saved_at_s = self._saver.last
            self.state = replace(
                self.state, saved=saved, saved_at_s=saved_at_s, is_behind=self._saver.is_behind
            )
            yield WriteState(state=self.state)
        if self.state.phase == "finishing" and self._saver.version is None:
            yield from self._save_last(at_s)
        elif self.state.is_disowning and self._saver.version is None:
            yield from self._end_disowned([said.version] if isinstance(said, Committed) else [])
        else:
            yield from self._part_if_saved(at_s)

    # -- what people want ----------------------------------------------------------------------

    def _on_job(self, submitted: JobSubmitted) -> Iterator[Instruction]:
        seats = submitted.order.seats
        going = {*self.state.leaving, *self.state.moved}
        trusted = in_order(self.living.keys() - {*self.state.wrong})
        best_first = sorted(trusted, key=lambda node: node in going)
        present = in_order(best_first[: seats.nodes])
        members = (*present, *[None] * (seats.nodes - len(present)))
        self._saver = Saver(last_s=submitted.at_s)
        self._repeats, self._losses = Repeats(), LossWatch()
        self.state = RootState(
            epoch=self.state.epoch,
            order=submitted.order,
            placed=seats.seated(members),
            leaving=self.state.leaving,
            moved=self.state.moved,
            drains=self.state.drains,
            wrong=self.state.wrong,
            excluded=self.state.wrong,
            risk=known_risk(self.state, submitted.order),
            saved_at_s=submitted.at_s,
        )
        yield from self._begin(submitted.at_s, cause="start", lost=[])

    def _on_request(self, said: Requested) -> Iterator[Instruction]:
        """Start what a user asks for; a new root agent reads again what the last one has done."""
        match said.request:
            case StopRun() if self.state.phase in ACTIVE:
                yield from self._fail(said.at_s, "the run was stopped by its owner", cause="owner")
            case SaveVersion():
                self._saver.want()
            case GiveUpProgress() if said.number > self.state.given_up:
                self.state = replace(self.state, has_given_up=True, given_up=said.number)
                yield WriteState(state=self.state)
                if self.state.phase == "waiting":
                    yield from self._decide(said.at_s)
            case RewindRun(steps=steps, skip=skip):
                asked = ask_back(said.number, steps, self.state, self.living, skip=skip)
                done = [*self._adopt(asked)]
                orders = [one.order for one in done if isinstance(one, Send)]
                self._asked_back = orders[-1] if orders else self._asked_back
                yield from done
            case DrainNode(node=node) if said.number > self.state.drains:
                self.state = replace(self.state, drains=said.number)
                yield from self._on_leaving(said.at_s, node)
            case ResizeRun(nodes=nodes):
                yield from self._on_resize(said.at_s, said.number, nodes)

    def _on_leaving(
        self, at_s: float, node: str, *, within_s: float | None = None
    ) -> Iterator[Instruction]:
        yield from self._adopt(self._drains.ask(self.state, self.living, node, within_s=within_s))
        yield from self._let_leave(at_s)

    def _on_resize(self, at_s: float, number: int, nodes: int) -> Iterator[Instruction]:
        goal = self.state.goal
        yield from self._adopt(self._resizes.ask(number, nodes, self.state))
        if self.state.goal < goal:  # of the machines that were asked for, some are too many
            count = nodes_wanted(self.state, self.living)
            yield RequestNodes(wanted=count, reason=f"{self.state.goal} nodes are enough")
        yield from self._let_leave(at_s)

    # -- time ----------------------------------------------------------------------------------

    def _on_tick(self, at_s: float) -> Iterator[Instruction]:
        match self.state.phase:
            case "fencing" if at_s - self._asked_s > FENCE_LIMIT_S:
                yield from self._drop_silent_agents(at_s)
            case "inventory" if at_s - self._asked_s > INVENTORY_LIMIT_S:
                yield from self._drop_silent_agents(at_s)
            case "waiting":
                yield from self._look_again(at_s)
            case "rendezvous" if at_s - self._entered_s > RENDEZVOUS_LIMIT_S:
                node = "" if self._port is None else self._port.to
                reason = f"{node} held no port for the rendezvous within {RENDEZVOUS_LIMIT_S:.0f} s"
                yield from self._on_machine(at_s, node, reason, cause="no answer")
            case "starting" | "running":
                yield from self._look_at_workers(at_s)
            case "failed" if self.state.is_disowning:
                yield from self._hurry(at_s)
            case "finishing":
                yield from self._saver.give_up_if_late(at_s, state=self.state)
                if self._saver.version is None:
                    yield from self._save_last(at_s)

    def _look_again(self, at_s: float) -> Iterator[Instruction]:
        """The run waits: with fewer machines once, when it may, and else for what has come."""
        yield from self._saver.give_up_if_late(at_s, state=self.state)
        if self.state.parting is not None:
            yield from self._part_if_saved(at_s)
            return
        yield from self._save_meanwhile(at_s)
        if patience_s(self.state, at_s) == 0 and not self._has_run_short:
            self._has_run_short = True
            yield from self._decide(at_s)
        elif at_s - self._entered_s > self._retry_s or self._entered_s < self.resumes_s <= at_s:
            self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
            self._looks += 1
            yield from self._take_inventory(at_s)

    def _look_at_workers(self, at_s: float) -> Iterator[Instruction]:
        """Workers start or train: who is late is noticed, and what is due is begun."""
        yield from self._check_progress(at_s)
        if late := self._stop.late(at_s, self.state.ranks):
            yield Emit(event=events.Note(text=late))
        if self._roll_call.is_late(at_s):
            yield from self._begin(at_s, cause=SEVERED, lost=[])
            return
        if self._ahead.is_late(at_s):
            yield from self._without_ahead(at_s, "they did not come to `protect` in time")
        if self.state.phase == "running":
            yield from self._saver.give_up_if_late(at_s, state=self.state)
            yield from self._saver.begin_if_due(at_s, state=self.state)
            yield from self._adopt(self._resizes.begin_if_due(at_s, self.state, self.living))
            yield from self._adopt(self._replicas.begin_if_due(at_s, self.state, self.living))

    def _save_meanwhile(self, at_s: float) -> Iterator[Instruction]:
        """Machines are missing: what memory holds is saved, so that fewer can go on from it."""
        if self._plan is not None and self._plan.missing:
            yield from self._saver.begin_from_memory(at_s, self._plan, state=self.state)
