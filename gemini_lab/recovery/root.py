"""The root agent's decisions (paper, section 6): what happens becomes what is to be done.

`RootAgent.handle` takes one happening and returns instructions; it does no I/O and reads no clock,
so a story of happenings is a test. What must outlive the root is in `RunState`, which a shell
writes to the store, fenced by the root's own key, before it carries out what follows it.

A run moves through phases:

    idle -> fencing -> inventory <-> (waiting) -> rendezvous -> starting -> running
                ^___________________________________________________________|   any failure
    running -> finishing -> done;   anything -> failed

A node that is to go has its ranks moved at an iteration's end (`recovery.drains`).

A failure in any phase begins again at fencing, with the next epoch; every step can be repeated. A
run waits for machines, and for memory that may come back rather than throw progress away.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from gemini_lab.log import events
from gemini_lab.recovery.distrust import left_by, reason_to_end, without
from gemini_lab.recovery.drains import Drains, ask_for_nodes, forgotten, moving
from gemini_lab.recovery.faults import (
    Verdict,
    after_failed_restore,
    judge_exit,
    judge_hang,
    rejections,
)
from gemini_lab.recovery.finite import LossWatch
from gemini_lab.recovery.hangs import Limits, Pulses
from gemini_lab.recovery.messages import (
    Committed,
    EventSaid,
    Fence,
    Fenced,
    GoBack,
    Held,
    HoldPort,
    Inventory,
    Learned,
    NodeLeaves,
    Persisted,
    PersistFailed,
    PortHeld,
    Prepare,
    ReadyToStart,
    Release,
    RestoreFailed,
    ScriptFinished,
    StartWorkers,
    TakeInventory,
    WorkerExited,
    WorkerPulse,
)
from gemini_lab.recovery.plan import RecoveryPlan, VersionId
from gemini_lab.recovery.planning import hopes, make_plan, resumes_elsewhere
from gemini_lab.recovery.progress import Progress
from gemini_lab.recovery.protocol import (
    ACTIVE,
    RESTARTING,
    DrainWanted,
    Emit,
    FromAgent,
    HangUp,
    Happening,
    HeardEvent,
    Instruction,
    JobCancelled,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NoMachineComes,
    Phase,
    ProgressGivenUp,
    ResizeWanted,
    RewindWanted,
    RootState,
    SaveWanted,
    Send,
    Tick,
    Trouble,
    WriteState,
)
from gemini_lab.recovery.repeats import Repeats
from gemini_lab.recovery.resizes import Resizes, if_none_comes, patience_s, seat_anew
from gemini_lab.recovery.rewinds import CANNOT_GO_BACK, joined, left_of
from gemini_lab.recovery.saver import Saver
from gemini_lab.recovery.stakes import reason_to_wait
from gemini_lab.recovery.stop import Stop
from gemini_lab.recovery.telling import (
    divergence_reason,
    finished_event,
    loss_event,
    not_finite_reason,
    rejected_copy,
)
from gemini_lab.recovery.told import planned
from gemini_lab.seats import in_order, listed
from gemini_lab.shard.lineage import NO_LINEAGE

FENCE_LIMIT_S: Final = 60.0  # an agent that has not killed its workers by then counts as lost
INVENTORY_LIMIT_S: Final = 900.0  # reading every checksum of a large memory takes minutes
RENDEZVOUS_LIMIT_S: Final = (
    400.0  # an agent may wait 300 s for imports; then it begins again itself
)
FIRST_RETRY_S: Final = 2.0  # while waiting: until all are asked again
LONGEST_RETRY_S: Final = 30.0


class RootAgent:
    """The root agent, as a state machine.

    Args:
        state: Where the previous root left the run.
        at_s: Now.
    """

    def __init__(self, *, state: RootState, at_s: float) -> None:
        self.state = state
        self.living: dict[str, NodeJoined] = {}
        self._answered: set[str] = set()  # who has answered this phase's question
        self._entered_s = at_s
        self._asked_s = at_s  # since when an answer is waited for
        self._plan: RecoveryPlan | None = None
        self._inventory: dict[str, Inventory] = {}
        self._waits_for = ""  # what was last said of that
        self._has_run_short = False  # whether it was planned anew with fewer machines
        self._retry_s = FIRST_RETRY_S
        self._progress = Progress()
        self._pulses = Pulses()
        self._repeats = Repeats()
        self._losses = LossWatch()
        self._learned: Learned | None = None  # what the job's scripts import
        self._protected: set[int] = set()
        self._restored: set[int] = set()
        self._finished: set[int] = set()
        self._saver = Saver(last_s=at_s)
        self._stop = Stop()
        self._drains, self._resizes = Drains(self._stop), Resizes(self._stop)

    # -- happenings ------------------------------------------------------------------------

    def handle(self, happening: Happening) -> list[Instruction]:
        """What is to be done now that `happening` happened."""
        match happening:
            case NodeJoined():
                return list(self._on_joined(happening))
            case NodeLost():
                return list(self._on_lost(happening))
            case JobSubmitted():
                return list(self._on_job(happening))
            case JobCancelled():
                return list(self._on_cancel(happening.at_s))
            case ProgressGivenUp():
                return list(self._on_given_up(happening))
            case SaveWanted():
                self._saver.want()
                return []
            case RewindWanted():
                return list(self._on_rewind_wanted(happening))
            case DrainWanted():
                return list(self._on_drain(happening))
            case ResizeWanted():
                return list(self._on_resize(happening))
            case NoMachineComes():
                return list(self._on_none_come(happening.at_s))
            case Tick():
                return list(self._on_tick(happening.at_s))
            case FromAgent():
                return list(self._on_message(happening))

    def take_over(self, at_s: float) -> list[Instruction]:
        """Go on where the previous root stopped; `living` was filled by NodeJoined before."""
        phase = self.state.phase
        if phase not in ACTIVE:
            return list(self._tell_ending())
        return [*self._go_on(at_s, phase), *self._ask_for_nodes("the last root agent was lost")]

    def _go_on(self, at_s: float, phase: Phase) -> list[Instruction]:
        """What an active run needs of a new root agent."""
        if phase in {"starting", "running", "finishing"}:
            self.state = replace(self.state, is_unsure=True)
        away = tuple(node for node in self.state.silent if node not in self.living)
        self.state = replace(self.state, silent=away)
        lost = [node for node in self.state.members if node is not None and node not in self.living]
        if lost:
            silent = dict.fromkeys((*self.state.silent, *lost))
            self.state = replace(self.state, silent=tuple(silent))
            gone = [Emit(event=events.NodeLost(name=n, cause="connection")) for n in lost]
            return [*gone, *self._begin(at_s, cause="node_lost", lost=lost)]
        if phase in RESTARTING or phase == "finishing":
            return list(self._begin(at_s, cause="root_lost", lost=[]))
        if self.state.holding:  # who of them holds is not known
            return list(self._begin(at_s, cause=events.DRAIN, lost=[self.state.holding]))
        if self.state.resizing:
            return list(self._begin(at_s, cause=events.RESIZE, lost=[]))
        working = {
            rank: status
            for joined in self.living.values()
            if joined.epoch == self.state.epoch
            for rank, status in joined.workers.items()
        }
        if phase == "running" and working.keys() < set(self.state.ranks):
            return list(self._begin(at_s, cause="worker_exited", lost=[]))
        self._finished = {rank for rank, status in working.items() if status == "finished"}
        self._protected = set(self.state.ranks)
        self._progress.restart(self.state.ranks, iteration=self.state.iteration)
        return list(self._finish_if_all_did(at_s))

    def _on_joined(self, joined: NodeJoined) -> Iterator[Instruction]:
        was_known = joined.node in self.living
        self.living[joined.node] = joined
        if was_known:
            yield from self._on_relinked(joined)
            return
        silent = tuple(node for node in self.state.silent if node != joined.node)
        self.state = replace(self.state, silent=silent)
        yield Emit(event=events.NodeJoined(name=joined.node))
        if self._learned is not None:
            yield self._prepare(joined.node, self._learned)
        yield from self._let_leave(joined.at_s)
        phase = self.state.phase
        if phase in {"inventory", "waiting"}:  # it was not fenced with the others
            yield Send(to=joined.node, order=Fence(epoch=self.state.epoch))
        if phase == "waiting":  # what it has in memory may be what is waited for
            yield from self._take_inventory(joined.at_s)
        elif phase in {"fencing", "inventory"}:
            yield self._question(joined.node)

    def _on_relinked(self, joined: NodeJoined) -> Iterator[Instruction]:
        """A connection broke and came back: what was said in between is in `workers`."""
        phase = self.state.phase
        if phase in {"fencing", "inventory", "rendezvous"}:
            yield from self._begin(joined.at_s, cause="link_cut", lost=[])
        elif phase in {"starting", "running"} and joined.node in self.state.members:
            self._finished |= {r for r, status in joined.workers.items() if status == "finished"}
            if not joined.workers.keys() >= set(self.state.seats.ranks_on(joined.node)):
                yield from self._begin(joined.at_s, cause="worker_exited", lost=[])
            else:
                yield from self._stop.ask_again(self.state, joined.node)
                yield from self._finish_if_all_did(joined.at_s)

    def _on_lost(self, lost: NodeLost) -> Iterator[Instruction]:
        was_living = self.living.pop(lost.node, None) is not None
        if lost.cause == "dead":
            self.state = forgotten(self.state, lost.node)
        yield from self._note_silence(lost, was_living=was_living)
        if not was_living:
            return
        yield Emit(event=events.NodeLost(name=lost.node, cause=lost.cause))
        if lost.node in self.state.members and self.state.phase in ACTIVE:
            yield from self._begin(lost.at_s, cause="node_lost", lost=[lost.node])
        elif self.state.phase in {"fencing", "inventory"}:
            self._answered.discard(lost.node)
            self._inventory.pop(lost.node, None)
            yield from self._advance(lost.at_s)
        elif self.state.phase in ACTIVE:
            yield from self._ask_for_nodes(f"{lost.node}, a standby, is gone")

    def _note_silence(self, lost: NodeLost, *, was_living: bool) -> Iterator[Instruction]:
        """Keep in mind whose memory may come back; of the dead nothing does."""
        silent = list(self.state.silent)
        is_dead, is_seated = lost.cause == "dead", lost.node in self.state.members
        if is_dead and lost.node in silent:
            silent.remove(lost.node)
        elif not is_dead and was_living and is_seated and lost.node not in silent:
            silent.append(lost.node)
        if tuple(silent) == self.state.silent:
            return
        self.state = replace(self.state, silent=tuple(silent))
        if self.state.phase == "waiting":
            yield from self._decide(lost.at_s)

    def _on_job(self, submitted: JobSubmitted) -> Iterator[Instruction]:
        seats = submitted.order.seats
        going = {*self.state.leaving, *self.state.moved}
        trusted = in_order(self.living.keys() - {*self.state.wrong})
        best_first = sorted(trusted, key=lambda node: node in going)
        present = in_order(best_first[: seats.nodes])
        members = (*present, *[None] * (seats.nodes - len(present)))
        self._saver = Saver(last_s=submitted.at_s)
        self._repeats, self._losses = Repeats(), LossWatch()
        self._learned = None
        self.state = RootState(
            epoch=self.state.epoch,
            order=submitted.order,
            placed=seats.seated(members),
            leaving=self.state.leaving,
            moved=self.state.moved,
            drains=self.state.drains,
            wrong=self.state.wrong,
            excluded=self.state.wrong,
        )
        yield from self._begin(submitted.at_s, cause="start", lost=[])

    def _on_given_up(self, said: ProgressGivenUp) -> Iterator[Instruction]:
        """A person lets go of what is waited for; a new root hears again what the last one did."""
        if said.number <= self.state.given_up:
            return
        self.state = replace(self.state, has_given_up=True, given_up=said.number)
        yield WriteState(state=self.state)
        if self.state.phase == "waiting":
            yield from self._decide(said.at_s)

    def _on_cancel(self, at_s: float) -> Iterator[Instruction]:
        if self.state.phase in ACTIVE:
            yield from self._fail(at_s, "the run was stopped by its owner", cause="owner")

    def _on_message(self, said: FromAgent) -> Iterator[Instruction]:
        message = said.message
        if message.epoch not in {None, self.state.epoch}:
            return  # from before a fence
        match message:
            case Fenced() | Inventory() | PortHeld():
                yield from self._on_answer(said.at_s, said.node, message)
            case EventSaid() if isinstance(message.entry.event, HeardEvent):
                yield from self._on_event(said.at_s, message.entry.event)
            case WorkerExited():
                yield from self._on_exit(said.at_s, said.node, message)
            case ScriptFinished():
                self._finished.add(message.rank)
                yield from self._finish_if_all_did(said.at_s)
            case Held() | ReadyToStart() | NodeLeaves():
                yield from self._on_move(said.at_s, said.node, message)
            case RestoreFailed():
                yield from self._on_failed_restore(said.at_s, message)
            case WorkerPulse():
                self._pulses.hear(message, at_s=said.at_s)
            case Learned():
                self._learned = message
                for node in in_order(self.living):
                    yield self._prepare(node, message)
            case Persisted() | PersistFailed() | Committed():
                yield from self._on_persistence(said.at_s, said.node, message)

    def _prepare(self, node: str, learned: Learned) -> Send:
        """Also standbys: they are who starts without having seen the script."""
        order = Prepare(
            epoch=self.state.epoch, modules=learned.modules, environment=learned.environment
        )
        return Send(to=node, order=order)

    def _on_failed_restore(self, at_s: float, said: RestoreFailed) -> Iterator[Instruction]:
        lineage = NO_LINEAGE if self._plan is None else self._plan.lineage
        before = self.state
        tried = VersionId(version=said.version, lineage=lineage)
        self.state = after_failed_restore(before, said, tried)
        yield from rejections(before, self.state, said)
        yield from self._begin(at_s, cause="restore_failed", lost=[])

    def _on_answer(
        self, at_s: float, node: str, answer: Fenced | Inventory | PortHeld
    ) -> Iterator[Instruction]:
        """An answer to this phase's question; to an earlier one's it comes too late."""
        match answer, self.state.phase:
            case Fenced(), "fencing":
                self._answered.add(node)
                yield from self._advance(at_s)
            case Inventory(), "inventory":
                self._answered.add(node)
                self._inventory[node] = answer
                self._repeats.learn(answer.iterations, answer.left)
                self._leave_behind(answer.left)
                if self.state.settings is None and answer.protected is not None:
                    self._learn_settings(answer.protected)
                yield from self._advance(at_s)
            case PortHeld(), "rendezvous":
                yield from self._start(at_s, answer.address)

    # -- a restart, step by step -----------------------------------------------------------------

    def _begin(self, at_s: float, *, cause: str, lost: Sequence[str]) -> Iterator[Instruction]:
        """Fence: the next epoch begins, all workers of older ones end."""
        state = moving(self.state)
        self._stop.restart()
        is_start = cause == "start"
        trouble = state.trouble
        is_new = trouble is None and not is_start
        if trouble is not None:
            trouble = replace(trouble, lost=(*trouble.lost, *lost))
        elif is_new:
            trouble = Trouble(cause=cause, lost=tuple(lost), at_s=at_s)
            state = replace(state, recoveries=state.recoveries + 1, has_given_up=False)
            state = replace(state, none_come=False)
        self.state = replace(state, epoch=state.epoch + 1, trouble=trouble)
        yield from self._enter("fencing", at_s)
        self._waits_for, self._has_run_short = "", False
        if is_new:  # said when it is written: a root that was deposed begins no recovery
            yield Emit(
                event=events.RecoveryStarted(
                    recovery=self.state.recovery,
                    epoch=self.state.epoch,
                    cause=cause,
                    lost=tuple(lost),
                    failed_at_s=at_s,
                    iteration=state.iteration,
                )
            )
        self._plan = None
        self._protected, self._restored, self._finished = set(), set(), set()
        self._saver.cancel()
        for node in self.living:
            yield self._question(node)
        yield from self._advance(at_s)

    def _question(self, node: str) -> Send:
        """What every living agent is asked in this phase, latecomers too."""
        if self.state.phase == "fencing":
            return Send(to=node, order=Fence(epoch=self.state.epoch))
        return Send(to=node, order=self._inventory_order())

    def _inventory_order(self, *, persistent_url: str | None = None) -> TakeInventory:
        return TakeInventory(
            epoch=self.state.epoch,
            run=self.state.job.run,
            persistent_url=persistent_url,
            asks_settings=self.state.settings is None,
        )

    def _enter(self, phase: Phase, at_s: float) -> Iterator[Instruction]:
        if self.state.phase in RESTARTING and phase != "fencing":
            yield self._step(self.state.phase, at_s)
        self.state = replace(self.state, phase=phase)
        self._entered_s = self._asked_s = at_s
        self._answered = set()
        yield WriteState(state=self.state)

    def _step(self, name: str, end_s: float) -> Emit:
        names = {"fencing": "fence", "rendezvous": "plan", "waiting": "reserve"}
        return Emit(
            event=events.RecoveryStep(
                recovery=self.state.recovery,
                epoch=self.state.epoch,
                step=names.get(name, name),
                start_s=self._entered_s,
                end_s=end_s,
            )
        )

    def _advance(self, at_s: float) -> Iterator[Instruction]:
        """Go to the next phase when everybody who was asked has answered."""
        if not self.living or not self._answered >= self.living.keys():
            return  # without any agent there is nobody to ask: the first that joins goes on
        if self.state.phase == "fencing":
            yield from self._take_inventory(at_s)
        elif self.state.phase == "inventory":
            if self._needs_storage():
                yield self._ask_storage()
            else:
                yield from self._decide(at_s)

    def _take_inventory(self, at_s: float) -> Iterator[Instruction]:
        """Ask everybody what is whole in memory."""
        self._inventory = {}
        yield from self._enter("inventory", at_s)
        for node in self.living:
            yield self._question(node)
        yield from self._advance(at_s)

    def _needs_storage(self) -> bool:
        """Whether memory does not suffice and nobody has looked into the persistent tier yet.

        A tier that is slow to answer holds up no recovery that can do without it.
        """
        if self.state.read_settings().persistent_url is None:
            return False
        is_known = any(
            said.persistent is not None or said.unread for said in self._inventory.values()
        )
        return not is_known and self._make_plan().tier != "memory"

    def _ask_storage(self) -> Send:
        """Have one agent answer again, with the versions that the persistent tier has."""
        node = in_order(self.living)[0]
        self._answered.discard(node)
        url = self.state.read_settings().persistent_url
        return Send(to=node, order=self._inventory_order(persistent_url=url))

    def _decide(self, at_s: float) -> Iterator[Instruction]:
        """Plan; then hold a port for the rendezvous, or wait for machines or for memory."""
        if self.state.phase == "inventory":
            yield from self._report_bad_copies()
        before, members = self.state, self.state.members
        self.state = seat_anew(at_s, before, self.living, self._inventory)
        self._plan = plan = self._make_plan()
        reason = self._reason_to_wait(plan, at_s)
        if reason or plan.missing:
            self.state = before
            yield from self._wait(at_s, plan, reason)
            return
        lineage = plan.lineage
        self._repeats.restart(
            plan.version or 0,
            epoch=lineage.epoch,
            rewinds=lineage.rewinds,
            is_resized=bool(plan.cuts) or before.seats.nodes != self.state.seats.nodes,
        )
        # What is newer than the plan's version is lost or given up: not to be waited for again.
        self.state = replace(
            self.state, placed=self.state.seats.seated(plan.members), newest=plan.version or 0
        )
        spares = self._spares()
        self._retry_s, self._waits_for = FIRST_RETRY_S, ""
        yield from self._enter("rendezvous", at_s)
        yield Emit(event=planned(plan, recovery=self.state.recovery, epoch=self.state.epoch))
        ready = [node for node in plan.members if node in members]  # a new machine still imports
        host = (ready or plan.members)[0]
        yield Send(to=str(host), order=HoldPort(epoch=self.state.epoch))
        if len(spares) < self.state.seats.standbys:
            yield from self._ask_for_nodes("a standby was used")

    def _reason_to_wait(self, plan: RecoveryPlan, at_s: float) -> str:
        """Why this plan would throw progress away; empty if it does not, or is allowed to."""
        patience_s = self.state.read_settings().give_up_progress_after_s
        trouble = self.state.trouble
        waited_s = 0.0 if trouble is None else at_s - trouble.at_s
        has_waited = patience_s is not None and waited_s >= patience_s
        if self.state.has_given_up or has_waited:
            return ""
        return reason_to_wait(plan, hopes(self.state, self._inventory)) or ""

    def _wait(self, at_s: float, plan: RecoveryPlan, reason: str) -> Iterator[Instruction]:
        """Nothing starts yet. Positions stay empty: whose memory comes back finds its own."""
        if self.state.phase != "waiting":
            yield from self._enter("waiting", at_s)
        if plan.missing:
            machines = f"no machine for positions {listed(plan.missing)}"
            machines += if_none_comes(self.state, at_s, self.living)
            reason = f"{reason}; {machines}" if reason else machines
            yield from self._ask_for_nodes(machines)
        if reason == self._waits_for:
            return
        self._waits_for = reason
        yield Emit(
            event=events.RecoveryWaiting(
                recovery=self.state.recovery,
                epoch=self.state.epoch,
                missing=plan.missing,
                standbys=tuple(self._spares()),
                reason=reason,
            )
        )

    def _on_none_come(self, at_s: float) -> Iterator[Instruction]:
        if self.state.phase == "waiting" and patience_s(self.state, at_s):
            self.state = replace(self.state, none_come=True)
            yield from self._decide(at_s)

    def _save_meanwhile(self, at_s: float) -> Iterator[Instruction]:
        """Machines are missing: what memory holds is saved, so that fewer can go on from it."""
        if self._plan is not None and self._plan.missing:
            yield from self._saver.begin_from_memory(at_s, self._plan, state=self.state)

    def _make_plan(self) -> RecoveryPlan:
        importing = self._importing
        return make_plan(self.state, self.living, self._inventory, importing=importing)

    @property
    def _importing(self) -> set[str]:
        """Nodes on which a start has to wait."""
        return {node for node, joined in self.living.items() if not joined.is_ready}

    def _report_bad_copies(self) -> Iterator[Instruction]:
        for node, said in self._inventory.items():
            for copy in said.damaged:
                yield rejected_copy(copy, node, self.state)

    def _start(self, at_s: float, address: str) -> Iterator[Instruction]:
        assert self._plan is not None
        self.state = replace(self.state, is_unsure=False, trained=self.state.epoch)
        yield from self._enter("starting", at_s)
        self._progress.restart(self.state.ranks, iteration=self._plan.version or 0)
        self._pulses.restart()
        for node, part in self._plan.parts().items():
            order = StartWorkers(
                epoch=self.state.epoch,
                order=self.state.job,
                seats=self.state.seats,
                plan=part,
                rendezvous=address,
                fingerprint=self.state.fingerprint,
            )
            yield Send(to=node, order=order)

    # -- what workers say --------------------------------------------------------------------

    def _on_event(self, at_s: float, event: HeardEvent) -> Iterator[Instruction]:
        match event:
            case events.Protected():
                yield from self._on_protected(at_s, event)
            case events.ShardRestored():
                self._restored.add(event.rank)
                if len(self._restored) == len(self.state.ranks):
                    assert self._plan is not None
                    self._saver.note_restored(self.state.ranks, self._plan)
                    yield self._step("retrieve", at_s)
                    self._entered_s = at_s
            case events.IterationBegun():
                yield from self._compare(at_s, event)
            case events.Iteration():
                yield from self._compare(at_s, event)
                yield from self._watch_loss(at_s, event)
                if not event.restored and self.state.phase in ACTIVE:
                    yield from self._on_iteration(at_s, event)
            case events.Rewound():
                yield from self._on_rewound(event)
            case events.WrongSums():
                yield from self._on_wrong_sums(at_s, event)
            case events.RewindFailed(cause="guard"):
                if self.state.phase in ACTIVE:
                    yield from self._fail(at_s, event.reason, cause="not_finite")
            case events.VersionComplete():
                yield from self._on_version(at_s, event)

    def _on_version(self, at_s: float, said: events.VersionComplete) -> Iterator[Instruction]:
        """A rank's version is whole; with the last of them the job's is."""
        self._saver.note_complete(said.rank, said.version, next_version=said.next_version)
        newest = max(self.state.newest, self._saver.newest_whole(self.state.ranks))
        if newest > self.state.newest:
            yield from self._adopt(self._resizes.settle(self.state, self.living))
        self.state = replace(self.state, newest=newest)
        if self.state.phase == "running":  # a fast job makes several versions a tick
            yield from self._saver.begin_if_due(at_s, state=self.state)

    def _on_protected(self, at_s: float, event: events.Protected) -> Iterator[Instruction]:
        """The settings are known now, and with them who keeps what."""
        self._protected.add(event.rank)
        if self.state.fingerprint == "":  # of another number of ranks
            self.state = replace(self.state, fingerprint=event.fingerprint)
        if self.state.settings is None and event.placement is not None:
            is_elsewhere = resumes_elsewhere(self.state.job, event.settings)
            self._learn_settings(event)
            yield WriteState(state=self.state)
            if is_elsewhere:
                yield from self._begin(at_s, cause="start", lost=[])
                return
        if len(self._protected) == len(self.state.ranks) and self.state.phase == "starting":
            yield self._step("start", at_s)
            self._entered_s = at_s

    def _learn_settings(self, event: events.Protected) -> None:
        self.state = replace(
            self.state,
            settings=event.settings,
            fingerprint=event.fingerprint,
            placed=replace(self.state.seats, placement=event.placement),
        )

    def _compare(
        self, at_s: float, said: events.IterationBegun | events.Iteration
    ) -> Iterator[Instruction]:
        """Say it where an iteration that is done again is not what it was."""
        diverged = self._repeats.take(said)
        if diverged is None:
            return
        yield Emit(event=diverged)
        if self.state.phase in ACTIVE and self.state.read_settings().on_divergence == "stop":
            yield from self._fail(at_s, divergence_reason(diverged), cause="divergence")

    def _watch_loss(self, at_s: float, said: events.Iteration) -> Iterator[Instruction]:
        """Keep states that make no numbers out of the persistent tier, where good ones lie."""
        if said.restored or self.state.phase not in ACTIVE:
            return
        if not self._losses.take(said):
            return
        told = loss_event(said, self.state, is_finite=self._losses.since is None)
        yield Emit(event=told)
        if isinstance(told, events.LossFinite):
            self._saver.is_held = False
        elif told.is_held:
            # The version before holds the weights of which this loss was made.
            reason = f"given up, as {told}"
            yield from self._saver.hold(reason, since=said.iteration - 1, state=self.state)
            if self.state.read_settings().on_not_finite == "stop":
                yield from self._fail(at_s, not_finite_reason(told), cause="not_finite")

    def _on_iteration(self, at_s: float, event: events.Iteration) -> Iterator[Instruction]:
        self._progress.note(event.rank, event.iteration, duration_s=event.duration_s)
        self._pulses.note_iteration(event.rank, event.iteration)
        done = self._progress.done
        started_from = (self._plan.version or 0) if self._plan else 0
        if self.state.phase == "starting" and done > started_from:
            yield from self._resumed(at_s, done)
        elif self.state.phase == "running" and done > self.state.iteration:
            self.state = replace(self.state, iteration=done, attempts=0, offences=())

    def _on_rewind_wanted(self, wanted: RewindWanted) -> Iterator[Instruction]:
        """A person asks; a new root hears again what the last one did."""
        before, count = self.state.asked_back
        if wanted.number <= before:
            return
        self.state = replace(self.state, asked_back=(wanted.number, count + 1))
        yield WriteState(state=self.state)
        if self.state.phase != "running":
            yield Emit(event=events.Note(text=CANNOT_GO_BACK))
            return
        order = GoBack(
            epoch=self.state.epoch, number=count + 1, steps=wanted.steps, skip=wanted.skip
        )
        for node in dict.fromkeys(self.state.members):
            if node in self.living:
                yield Send(to=str(node), order=order)

    def _on_rewound(self, said: events.Rewound) -> Iterator[Instruction]:
        """A rank went back, and so do all: what they had done since is left behind."""
        rank, version = said.rank, said.version
        self._saver.note_rewound(rank, version)
        self._progress.go_back(rank, version)
        self._pulses.note_iteration(rank, version)
        self._repeats.go_back(said)
        before = self.state.left
        self._leave_behind([left_of(said, run=self.state.job.run)])
        if self.state.left != before:
            yield from self._saver.forget_left(version, state=self.state)
            yield WriteState(state=self.state)

    def _on_wrong_sums(self, at_s: float, said: events.WrongSums) -> Iterator[Instruction]:
        """A machine computes wrong: go on without it, from what was verified, or end the run."""
        if self.state.phase not in ACTIVE or self.state.read_settings().on_wrong_sums == "warn":
            return
        if reason := reason_to_end(said, self.state):
            yield from self._fail(at_s, reason, cause="wrong_sums")
            return
        left = left_by(said, run=self.state.job.run)
        self._repeats.learn((), [left])
        self._leave_behind([left])
        yield from self._saver.forget_left(said.version, state=self.state)
        self.state = without(self.state, said.nodes)
        for node in said.nodes:
            yield Emit(event=events.NodeExcluded(name=node, reason=str(said)))
        yield from self._begin(at_s, cause="wrong_sums", lost=said.nodes)

    def _leave_behind(self, left: Iterable[VersionId]) -> None:
        """Training went back: versions after that, and iterations, count no more."""
        after = joined(self.state.left, left)
        if after == self.state.left:
            return
        # What the root knows is of the last start: what was left before that has been gone past.
        new = {*after} - {*self.state.left}
        new = {one for one in new if one.lineage.epoch == self.state.trained}
        to = min((one.version for one in new), default=self.state.newest)
        newest, done = min(self.state.newest, to), min(self.state.iteration, to)
        self.state = replace(self.state, left=after, newest=newest, iteration=done)

    def _resumed(self, at_s: float, iteration: int) -> Iterator[Instruction]:
        assert self._plan is not None
        yield self._step("warm_up", at_s)
        before = self.state
        self.state = replace(
            before, phase="running", trouble=None, iteration=iteration, attempts=0, offences=()
        )
        yield WriteState(state=self.state)
        if before.trouble is not None:
            answers = self._inventory.values()
            yield finished_event(before, self._plan, answers, iteration=iteration, at_s=at_s)
        was_drain = before.trouble is not None and before.trouble.cause == events.DRAIN
        yield from self._adopt(self._drains.end(self.state, was_drain=was_drain))
        ended = self._resizes.end(at_s, self.state, self.living)
        yield from self._adopt(ended)
        yield from self._let_leave(at_s)

    def _on_exit(self, at_s: float, node: str, exited: WorkerExited) -> Iterator[Instruction]:
        if self.state.phase not in {"starting", "running"} or exited.rank in self._finished:
            return
        if refused := list(self._adopt(self._resizes.refuse(self.state, exited))):
            yield from refused
            yield from self._begin(at_s, cause="resize_refused", lost=[])
            return
        verdict = judge_exit(self.state, exited, node=node, spares=self._spares())
        output = tuple(exited.output.splitlines())
        yield from self._act_on(at_s, verdict, cause="worker_exited", output=output)

    def _act_on(
        self, at_s: float, verdict: Verdict, *, cause: str, output: tuple[str, ...] = ()
    ) -> Iterator[Instruction]:
        """Workers failed: start again, leave the node that is to blame, or give the run up."""
        self.state = verdict.state
        if not verdict.reason:
            yield from self._begin(at_s, cause=cause, lost=[])
        elif verdict.left is not None:
            left = verdict.left
            yield Emit(event=events.NodeExcluded(name=left, reason=verdict.reason))
            excluded = (*self.state.excluded, left)
            self.state = replace(self.state, excluded=excluded, attempts=0, offences=())
            yield from self._begin(at_s, cause="node_excluded", lost=[left])
        else:
            yield from self._fail(at_s, verdict.reason, cause=verdict.cause, output=output)

    def _spares(self) -> list[str]:
        going = {*self.state.leaving, *self.state.moved, *self.state.wrong}
        return [node for node in self.state.seats.spares(self.living) if node not in going]

    # -- time ----------------------------------------------------------------------------------

    def _on_tick(self, at_s: float) -> Iterator[Instruction]:
        phase = self.state.phase
        elapsed_s = at_s - self._entered_s
        limit_s = FENCE_LIMIT_S if phase == "fencing" else INVENTORY_LIMIT_S
        if phase in {"fencing", "inventory"} and at_s - self._asked_s > limit_s:
            yield from self._drop_silent_agents(at_s)
        elif phase == "waiting":
            yield from self._saver.give_up_if_late(at_s, state=self.state)
            yield from self._save_meanwhile(at_s)
            if patience_s(self.state, at_s) == 0 and not self._has_run_short:
                self._has_run_short = True
                yield from self._decide(at_s)
            elif elapsed_s > self._retry_s:
                self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
                yield from self._take_inventory(at_s)
        elif phase == "rendezvous" and elapsed_s > RENDEZVOUS_LIMIT_S:
            yield from self._begin(at_s, cause="no answer", lost=[])
        elif phase in {"starting", "running"}:
            yield from self._check_progress(at_s)
            if late := self._stop.late(at_s, self.state.ranks):
                yield Emit(event=events.Note(text=late))
            if self.state.phase == "running":
                yield from self._saver.give_up_if_late(at_s, state=self.state)
                yield from self._saver.begin_if_due(at_s, state=self.state)
                yield from self._adopt(self._resizes.begin_if_due(at_s, self.state, self.living))
        elif phase == "finishing":
            before = self._saver.version
            yield from self._saver.give_up_if_late(at_s, state=self.state)
            if self._saver.version is None:
                yield from self._save_last(at_s, after=before)

    def _drop_silent_agents(self, at_s: float) -> Iterator[Instruction]:
        """Agents that live but do not answer count as lost, and are used again last of all."""
        self._asked_s = at_s  # who comes back has as much time again
        for node in [node for node in self.living if node not in self._answered]:
            self.state = replace(self.state, excluded=(*self.state.excluded, node))
            yield HangUp(node=node)
            yield from self._on_lost(NodeLost(at_s=at_s, node=node, cause="no answer"))

    def _check_progress(self, at_s: float) -> Iterator[Instruction]:
        """Hung workers (SIGSTOP, deadlock): end them all, and start anew."""
        settings = self.state.read_settings()
        is_running = self.state.phase == "running"  # the first step after a start has no pace
        limits = Limits(
            stopped_s=settings.min_progress_s,
            step_s=self._progress.step_limit_s(settings) if is_running else None,
            idle_s=settings.idle_s,
        )
        ranks, finished = self.state.ranks, self._finished
        for told in (self._pulses.late, self._pulses.standing):
            if text := told(at_s, limits, ranks=ranks, finished=finished):
                yield Emit(event=events.Note(text=text))
        hung = self._pulses.hung(at_s, limits, ranks=ranks, finished=finished)
        if not hung:
            return
        for one in hung:
            yield Emit(
                event=events.WorkerHung(
                    rank=one.rank,
                    epoch=self.state.epoch,
                    silent_s=one.quiet_s,
                    deadline_s=one.limit_s,
                    seen=one.seen,
                )
            )
        nodes = [self.state.seats.node_of(one.rank) for one in hung]
        verdict = judge_hang(
            self.state,
            nodes,
            seen=hung[0].seen,
            spares=self._spares(),
            is_past=hung[0].is_past,
        )
        yield from self._act_on(at_s, verdict, cause="worker_hung")

    # -- nodes that are to go --------------------------------------------------------------------

    def _on_drain(self, wanted: DrainWanted) -> Iterator[Instruction]:
        """A person asks; a new root hears again what the last one did."""
        if wanted.number > self.state.drains:
            self.state = replace(self.state, drains=wanted.number)
            yield from self._on_leaving(wanted.at_s, wanted.node)

    def _on_move(
        self, at_s: float, node: str, said: Held | ReadyToStart | NodeLeaves
    ) -> Iterator[Instruction]:
        """What an agent says of moves: a rank has stopped, ranks could start here, it is to go."""
        match said:
            case Held() if self._stop.is_complete(said.rank, self.state):
                leaves = self.state.holding
                cause = events.DRAIN if leaves else events.RESIZE
                yield from self._begin(at_s, cause=cause, lost=[leaves] if leaves else [])
            case ReadyToStart() if node in self.living:
                self.living[node] = replace(self.living[node], is_ready=True)
                yield from self._let_leave(at_s)
            case NodeLeaves():
                yield from self._on_leaving(at_s, node, within_s=said.within_s)

    def _on_leaving(
        self, at_s: float, node: str, *, within_s: float | None = None
    ) -> Iterator[Instruction]:
        yield from self._adopt(self._drains.ask(self.state, self.living, node, within_s=within_s))
        yield from self._let_leave(at_s)

    def _let_leave(self, at_s: float) -> Iterator[Instruction]:
        """Let go whoever has no ranks; have all ranks stop if the next one's can move now."""
        yield from self._adopt(self._drains.let_go(self.state, self.living))
        yield from self._adopt(self._drains.begin_if_due(at_s, self.state, self.living))
        yield from self._adopt(self._resizes.begin_if_due(at_s, self.state, self.living))

    def _on_resize(self, wanted: ResizeWanted) -> Iterator[Instruction]:
        yield from self._adopt(self._resizes.ask(wanted, self.state))
        yield from self._let_leave(wanted.at_s)

    def _adopt(self, instructions: Iterable[Instruction]) -> Iterator[Instruction]:
        """Take on each state that is to be written."""
        for one in instructions:
            if isinstance(one, WriteState):
                self.state = one.state
            yield one

    # -- the persistent tier -------------------------------------------------------------------

    def _on_persistence(
        self, at_s: float, node: str, said: Persisted | PersistFailed | Committed
    ) -> Iterator[Instruction]:
        if said.version != self._saver.version:
            return
        yield from self._saver.hear(at_s, node, said, state=self.state)
        if self.state.phase == "finishing" and self._saver.version is None:
            yield from self._save_last(at_s, after=said.version)

    def _save_last(self, at_s: float, *, after: int | None) -> Iterator[Instruction]:
        """Save the last version if it had to wait for the version `after`; else that was all."""
        if after is not None and after < self._saver.complete:
            yield from self._saver.begin(at_s, self._saver.complete, state=self.state)
        else:
            yield from self._done(at_s)

    # -- the end -------------------------------------------------------------------------------

    def _finish_if_all_did(self, at_s: float) -> Iterator[Instruction]:
        if self.state.phase not in {"starting", "running"}:
            return
        if len(self._finished) < len(self.state.ranks):
            return
        if self.state.phase == "starting" and self._plan is not None:
            yield from self._resumed(at_s, self.state.iteration)
        yield from self._enter("finishing", at_s)
        yield from self._saver.begin_last(at_s, state=self.state)
        if self._saver.version is None:
            yield from self._done(at_s)

    def _done(self, at_s: float) -> Iterator[Instruction]:
        self.state = replace(self.state, ending=events.RunFinished(iteration=self._saver.complete))
        yield from self._enter("done", at_s)
        yield from self._tell_ending()

    def _fail(
        self,
        at_s: float,
        reason: str,
        *,
        cause: events.FailureCause = "machines",
        output: tuple[str, ...] = (),
    ) -> Iterator[Instruction]:
        ending = events.RunFailed(reason=reason, cause=cause, output=output)
        self.state = replace(self.state, epoch=self.state.epoch + 1, ending=ending)
        yield from self._enter("failed", at_s)
        yield from self._tell_ending()

    def _tell_ending(self) -> Iterator[Instruction]:
        """The run is over: let everybody go, and say so; a root that dies leaves it to the next."""
        if self.state.ending is None:
            return
        yield from self._release()
        yield Emit(event=self.state.ending)
        self.state = replace(self.state, ending=None)
        yield WriteState(state=self.state)
        yield from self._adopt(self._drains.let_go(self.state, self.living))

    def _release(self) -> Iterator[Instruction]:
        for node in self.living:
            yield Send(to=node, order=Release(epoch=self.state.epoch))

    # -- small answers ---------------------------------------------------------------------------

    def _ask_for_nodes(self, reason: str) -> Iterator[Instruction]:
        yield from ask_for_nodes(self.state, self.living, reason)
