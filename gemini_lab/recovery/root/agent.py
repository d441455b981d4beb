"""The root agent's decisions (paper, section 6): happenings become instructions.

`RootAgent.handle` takes one happening and returns instructions. It does no I/O and reads no clock,
so a list of happenings is a test. The root agent's shell writes `RootState` to the store, fenced by
the root agent's own key, before it carries out the instructions after it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.ailments import RULES
from gemini_lab.recovery.discarded_versions import ask_back
from gemini_lab.recovery.drains import nodes_wanted
from gemini_lab.recovery.guard import LossWatch
from gemini_lab.recovery.kept_ranks import SEVERED
from gemini_lab.recovery.messages import (
    Ailing,
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
    RankProtected,
    ReadyToJoin,
    ReadyToStart,
    RestoreFailed,
    SaveFailed,
    ScriptFinished,
    Severed,
    WordsSaid,
    WorkerEnded,
    WorkerPulse,
)
from gemini_lab.recovery.protocol import (
    AgentJoined,
    AgentLost,
    Emit,
    FromAgent,
    Happening,
    Instruction,
    JobSubmitted,
    NoMachineComes,
    Requested,
    RequestNodes,
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
from gemini_lab.recovery.root.agents import Agents
from gemini_lab.recovery.root.ending import Ending
from gemini_lab.recovery.root.known_run import KnownRun, PartOfRoot
from gemini_lab.recovery.root.lifecycle import BEFORE_START, Lifecycle
from gemini_lab.recovery.root.workers import Workers
from gemini_lab.recovery.root_state import (
    ACTIVE,
    CopyPlacement,
    InTier,
    NodesSetAside,
    RootState,
    Setup,
)
from gemini_lab.recovery.saver import Saver
from gemini_lab.recovery.stop import what_for
from gemini_lab.seats import in_order

FENCE_LIMIT_S: Final = 60.0  # an agent that has not killed its workers by then counts as lost
INVENTORY_LIMIT_S: Final = 900.0  # reading every checksum of a large memory takes minutes
LONGEST_RETRY_S: Final = 30.0


class RootAgent(PartOfRoot):
    """The root agent, as a state machine without I/O.

    Args:
        state: The state that the previous root agent stored.
        at_s: Now.
    """

    lifecycle_kind: type[Lifecycle] = Lifecycle
    agents_kind: type[Agents] = Agents
    may_take_long: bool = False
    """Whether deciding may take seconds, as a user's own function may."""

    def __init__(self, *, state: RootState, at_s: float) -> None:
        super().__init__(run := KnownRun(state=state, at_s=at_s))
        self.ending = Ending(run)
        self.lifecycle = self.lifecycle_kind(run, self.ending)
        self.workers = Workers(run, self.lifecycle, self.ending)
        self.agents = self.agents_kind(run, self.lifecycle, self.workers, self.ending)

    @property
    def living(self) -> dict[str, AgentJoined]:
        """The first message of each node's agent."""
        return self.run.living

    def close(self) -> None:
        """End what decides in another process; here nothing does."""

    def take_over(self, at_s: float) -> list[Instruction]:
        """Return what a newly elected root agent does; `living` was filled before."""
        return self.agents.take_over(at_s)

    def handle(self, happening: Happening) -> list[Instruction]:
        """Return what is to be done because of a happening."""
        done = list(self._handle(happening))
        self.run.state = self.run.replicas.hear(happening, done, self.state)
        return done

    def _handle(self, happening: Happening) -> Iterator[Instruction]:
        match happening:
            case AgentJoined():
                yield from self.agents.on_joined(happening)
            case AgentLost():
                self.run.ailing.pop(happening.node, None)
                yield from self.agents.on_lost(happening)
            case JobSubmitted():
                yield from self._on_job(happening)
            case Requested():
                yield from self._on_request(happening)
            case NoMachineComes():
                yield from self.agents.on_none_come(happening.at_s)
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
            case Fenced() | Inventory():
                yield from self.lifecycle.on_answer(said.at_s, said.node, message)
            case EventSaid() | WordsSaid():
                yield from self.workers.on_words(said.at_s, message.words)
            case WorkerEnded() if self.run.ahead.has(said.node, message):
                last = message.output.splitlines()[-1:] or [f"exit code {message.code}"]
                why = f"that of rank {message.rank} has ended ({last[0]})"
                yield from self.run.without_ahead(said.at_s, why)
            case WorkerEnded():
                yield from self.workers.on_exit(said.at_s, said.node, message)
            case RankProtected() | EndReached() | ScriptFinished():
                yield from self.workers.on_word(said.at_s, message)
            case Ailing():
                yield from self._on_ailing(said.at_s, said.node, message)
            case Held() | ReadyToStart() | ReadyToJoin() | NodeLeaves():
                yield from self._on_move(said.at_s, said.node, message)
            case Severed() | AllLive() | RestoreFailed():
                yield from self.workers.on_trouble(said.at_s, said.node, message)
            case OrderFailed():
                yield from self.agents.on_failed_order(said.at_s, said.node, message)
            case WorkerPulse():
                self.run.watch.pulses.hear(message, at_s=said.at_s)
            case Persisted() | SaveFailed() | Committed() | Disowned():
                yield from self._on_persistence(said.at_s, said.node, message)

    def _on_ailing(self, at_s: float, node: str, said: Ailing) -> Iterator[Instruction]:
        """Tell of a fault of a machine; move its ranks if the fault's rule and the settings say so.

        A new root agent hears of it again, and has the ranks of a node moved only once.
        """
        known = self.run.ailing.setdefault(node, {})
        if said.is_over:
            known.pop(said.fault, None)
        elif said.fault in RULES:
            known[said.fault] = said
        if self.state.setup.order is None or said.fault not in RULES:
            return  # with a job, it is told then
        is_asked = self.state.read_settings().on_ailing == "drain"
        drains = is_asked and RULES[said.fault].drains and not said.is_over
        seen = f"{RULES[said.fault].means}: {said.seen}"
        yield Emit(
            event=events.NodeAiling(
                name=node, fault=said.fault, seen=seen, drains=drains, is_over=said.is_over
            )
        )
        if drains:
            yield from self._on_leaving(at_s, node)

    def _on_move(
        self, at_s: float, node: str, said: Held | ReadyToStart | ReadyToJoin | NodeLeaves
    ) -> Iterator[Instruction]:
        """Act on a rank that has stopped, a node that can start ranks, or one that is to leave."""
        match said:
            case Held() if self.run.stop.is_complete(said.rank, self.state):
                leaves = [self.state.drain.holding] if self.state.drain.holding else []
                yield from self.lifecycle.restart(at_s, cause=what_for(self.state), lost=leaves)
            case ReadyToStart() if node in self.run.living:
                self.run.living[node] = replace(self.run.living[node], is_ready=True)
                yield from self.run.let_leave(at_s)
            case ReadyToJoin() if self.run.ahead.hear(node, said):
                yield from self.run.let_leave(at_s)
            case NodeLeaves():
                yield from self._on_leaving(at_s, node, within_s=said.within_s)

    def _on_persistence(
        self, at_s: float, node: str, said: Persisted | SaveFailed | Committed | Disowned
    ) -> Iterator[Instruction]:
        if isinstance(said, Disowned):
            yield from self.ending.on_disowned(at_s, said)
            return
        if said.version != self.run.saver.version:
            return
        yield from self.run.saver.hear(at_s, node, said, state=self.state)
        if isinstance(said, Committed):
            saved, saved_at_s = self.run.saver.last
            self.run.change(
                replace(
                    self.state.tier,
                    saved=saved,
                    saved_at_s=saved_at_s,
                    is_behind=self.run.saver.is_behind,
                    asked=max(self.state.tier.asked, self.run.saver.asked),
                )
            )
            yield WriteState(state=self.state)
        if self.state.phase == "finishing" and self.run.saver.version is None:
            yield from self.ending.save_last(at_s)
        elif self.state.is_disowning and self.run.saver.version is None:
            yield from self.ending.end_disowned(
                [said.version] if isinstance(said, Committed) else []
            )
        else:
            yield from self.lifecycle.end_if_saved(at_s)

    # -- what people want ----------------------------------------------------------------------

    def _on_job(self, submitted: JobSubmitted) -> Iterator[Instruction]:
        seats = submitted.order.seats
        going = {*self.state.drain.leaving, *self.state.drain.moved}
        trusted = in_order(self.run.living.keys() - {*self.state.nodes.wrong})
        best_first = sorted(trusted, key=lambda node: node in going)
        present = in_order(best_first[: seats.nodes])
        members = (*present, *[None] * (seats.nodes - len(present)))
        self.run.saver = Saver(last_s=submitted.at_s)
        self.run.repeats, self.run.watch.losses = Repeats(), LossWatch()
        before = self.state
        self.run.state = RootState(
            epoch=before.epoch,
            setup=Setup(order=submitted.order, placed=seats.seated(members)),
            drain=replace(before.drain, holding=""),
            nodes=NodesSetAside(wrong=before.nodes.wrong, excluded=before.nodes.wrong),
            copies=CopyPlacement(risk=known_risk(before, submitted.order)),
            tier=InTier(saved_at_s=submitted.at_s),
        )
        yield from self.lifecycle.restart(submitted.at_s, cause="start", lost=[])
        for node, faults in [*self.run.ailing.items()]:
            for said in [*faults.values()]:
                yield from self._on_ailing(submitted.at_s, node, said)

    def _on_request(self, said: Requested) -> Iterator[Instruction]:
        """Start what a user asks for; a new root agent reads again what the last one has done."""
        run, state = self.run, self.state
        match said.request:
            case StopRun() if state.phase in ACTIVE:
                reason = "the run was stopped by its owner"
                yield from self.ending.fail(said.at_s, reason, cause="owner")
            case SaveVersion() if said.number > state.tier.asked:
                run.saver.want(said.number)
            case GiveUpProgress() if said.number > state.discarded.given_up:
                # What workers start from now was agreed to; another word holds for no later plan.
                waits = state.phase in BEFORE_START
                discarded = replace(state.discarded, has_given_up=waits, given_up=said.number)
                run.state = replace(state, discarded=discarded)
                yield WriteState(state=run.state)
                if state.phase == "waiting":
                    yield from self.lifecycle.decide(said.at_s)
            case RewindRun(steps=steps, skip=skip):
                done = [*run.adopt(ask_back(said.number, steps, state, run.living, skip=skip))]
                orders = [one.order for one in done if isinstance(one, Send)]
                run.asked_back = orders[-1] if orders else run.asked_back
                yield from done
            case DrainNode(node=node) if said.number > state.drain.drains:
                run.state = state.with_parts(replace(state.drain, drains=said.number))
                yield from self._on_leaving(said.at_s, node)
            case ResizeRun(nodes=nodes):
                yield from self._on_resize(said.at_s, said.number, nodes)

    def _on_leaving(
        self, at_s: float, node: str, *, within_s: float | None = None
    ) -> Iterator[Instruction]:
        yield from self.run.adopt(
            self.run.drains.ask(self.state, self.run.living, node, within_s=within_s)
        )
        yield from self.run.let_leave(at_s)

    def _on_resize(self, at_s: float, number: int, nodes: int) -> Iterator[Instruction]:
        goal = self.state.goal
        yield from self.run.adopt(self.run.resizes.ask(number, nodes, self.state))
        if self.state.goal < goal:  # of the machines that were asked for, some are too many
            count = nodes_wanted(self.state, self.run.living)
            yield RequestNodes(wanted=count, reason=f"{self.state.goal} nodes are enough")
        yield from self.run.let_leave(at_s)

    # -- time ----------------------------------------------------------------------------------

    def _on_tick(self, at_s: float) -> Iterator[Instruction]:
        match self.state.phase:
            case "fencing" if at_s - self.run.asked_s > FENCE_LIMIT_S:
                yield from self.agents.drop_silent(at_s)
            case "inventory" if at_s - self.run.asked_s > INVENTORY_LIMIT_S:
                yield from self.agents.drop_silent(at_s)
            case "waiting":
                yield from self._look_again(at_s)
            case "starting" | "running":
                yield from self._look_at_workers(at_s)
            case "failed" if self.state.is_disowning:
                yield from self.ending.hurry(at_s)
            case "finishing":
                yield from self.run.saver.give_up_if_late(at_s, state=self.state)
                if self.run.saver.version is None:
                    yield from self.ending.save_last(at_s)

    def _look_again(self, at_s: float) -> Iterator[Instruction]:
        """Plan again while the run waits: once with fewer machines, else with what has come."""
        yield from self.run.saver.give_up_if_late(at_s, state=self.state)
        if self.state.story.parting is not None:
            yield from self.lifecycle.end_if_saved(at_s)
            return
        yield from self._save_meanwhile(at_s)
        if patience_s(self.state, at_s) == 0 and not self.lifecycle.has_run_short:
            self.lifecycle.has_run_short = True
            yield from self.lifecycle.decide(at_s)
        elif (
            at_s - self.run.entered_s > self.run.retry_s
            or self.run.entered_s < self.lifecycle.resumes_s <= at_s
        ):
            self.run.retry_s = min(2 * self.run.retry_s, LONGEST_RETRY_S)
            self.lifecycle.looks += 1
            yield from self.lifecycle.take_inventory(at_s)

    def _look_at_workers(self, at_s: float) -> Iterator[Instruction]:
        """Notice workers that are late, and start what is due."""
        yield from self.workers.check_progress(at_s)
        if late := self.run.stop.late(at_s, self.state.ranks):
            yield Emit(event=events.Note(text=late))
        if self.run.roll_call.is_late(at_s):
            yield from self.lifecycle.restart(at_s, cause=SEVERED, lost=[])
            return
        if self.run.ahead.is_late(at_s):
            yield from self.run.without_ahead(at_s, "they did not come to `protect` in time")
        if self.state.phase == "running":
            yield from self.run.saver.give_up_if_late(at_s, state=self.state)
            yield from self.run.saver.begin_if_due(at_s, state=self.state)
            yield from self.run.adopt(
                self.run.resizes.begin_if_due(at_s, self.state, self.run.living)
            )
            yield from self.run.adopt(
                self.run.replicas.begin_if_due(at_s, self.state, self.run.living)
            )

    def _save_meanwhile(self, at_s: float) -> Iterator[Instruction]:
        """Save what memory holds while machines are missing, so that fewer can go on from it."""
        if self.run.plan is not None and self.run.plan.missing:
            yield from self.run.saver.begin_from_memory(at_s, self.run.plan, state=self.state)
