"""The phases of a run, from a failure to training.

    idle -> fencing -> inventory <-> (waiting) -> starting -> running
                ^_______________________________________________|   any failure
    running -> finishing -> done;   anything -> failed

A failure in any phase starts again at fencing, with the next epoch; every step can be repeated. A
run waits for machines, and for memory that may come back, rather than throw progress away.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from gemini_lab.limits import split_names
from gemini_lab.log import events
from gemini_lab.placement import Risk
from gemini_lab.recovery.discarded_versions import giving_up, skipped_again
from gemini_lab.recovery.drains import moving
from gemini_lab.recovery.faults import (
    FailureVerdict,
    has_got_further,
    judge_machine,
    leave,
    pause_s,
    rejected_version,
)
from gemini_lab.recovery.log_events import (
    beginning,
    finished_event,
    planned_event,
    rejected_copy,
    used_again,
)
from gemini_lab.recovery.messages import (
    Fence,
    Fenced,
    Inventory,
    Preload,
    StartWorkers,
    TakeInventory,
)
from gemini_lab.recovery.plan import RecoveryPlan, VersionId
from gemini_lab.recovery.planning import hopes, rack_notes, stored_versions, unclear_versions
from gemini_lab.recovery.progress_at_risk import TierPause, reason_to_wait
from gemini_lab.recovery.protocol import Emit, Instruction, Send, WriteState
from gemini_lab.recovery.replicas import RestartPlacement
from gemini_lab.recovery.resizes import if_none_comes, seat_anew
from gemini_lab.recovery.root.ending import Ending
from gemini_lab.recovery.root.known_run import FIRST_RETRY_S, KnownRun, PartOfRoot
from gemini_lab.recovery.root_state import RootState, Trouble
from gemini_lab.recovery.told_seats import ToldSeats, told_ranks
from gemini_lab.seats import in_order, listed
from gemini_lab.settings import Settings

NO_FAILURES: Final = frozenset(
    {"start", "not_kept", "resize_refused", "restore_failed", *events.PLANNED}
)
"""Causes of a fence that say nothing of how the run gets on, or have pauses of their own: all
others count."""
BEFORE_START: Final = frozenset({"fencing", "inventory", "waiting"})
"""Phases in which no workers run, so that the loss of an agent ends no start."""


class Lifecycle(PartOfRoot):
    """The way of a run from each phase to the next.

    Attributes:
        resumes_s: When workers of a run that keeps failing may start again.
        tier_pause: A version in the persistent tier that did not load.
        looks: How often the tier was asked again while the run waits.
        is_pausing: Whether the run waits although it has all that it needs.
        has_run_short: Whether fewer machines were planned with since the fence.
    """

    def __init__(self, run: KnownRun, ending: Ending) -> None:
        super().__init__(run)
        self.ending = ending
        self.tier_pause: TierPause | None = None
        self.looks, self.is_pausing = 0, False
        self.has_run_short = False
        self._waits_for = ""  # the reason that was emitted last
        self._cause, self.resumes_s = "", -math.inf

    def restart(
        self, at_s: float, *, cause: str, lost: Sequence[str], ends: Sequence[int] = ()
    ) -> Iterator[Instruction]:
        """Start a recovery: fence all agents, so that older workers end or stand still."""
        self.run.keeping.begin(self.state, cause, lost, ends=ends)
        state = moving(self.state)
        state = state.with_parts(replace(state.copies, is_replacing=False))
        if has_got_further(state):
            state = state.with_parts(
                replace(state.faults, barren=(), fruitless=0), replace(state.nodes, again=())
            )
        ends_no_start = cause in {"node_lost", "root_lost"} and state.phase in BEFORE_START
        if cause not in NO_FAILURES and not ends_no_start:
            state = state.with_parts(replace(state.faults, fruitless=state.faults.fruitless + 1))
        wait_s = pause_s(state)
        self._cause, self.resumes_s = cause, at_s + wait_s if wait_s else -math.inf
        self.run.stop.restart()
        self.run.roll_call.restart()
        is_start = cause == "start"
        trouble = state.story.trouble
        is_new = trouble is None and not is_start
        if trouble is not None:
            trouble = replace(trouble, lost=(*trouble.lost, *lost))
        elif is_new:
            reached = max(state.reached.iteration, state.reached.newest, state.tier.saved)
            trouble = Trouble(
                cause=cause, lost=tuple(lost), at_s=at_s, since_s=at_s, reached=reached
            )
            state = state.with_parts(
                replace(state.story, recoveries=state.story.recoveries + 1),
                replace(state.resize, none_come=False),
            )
            state = state.with_parts(replace(state.discarded, has_given_up=False, let_go=-1))
        self.run.state = replace(
            state, epoch=state.epoch + 1, story=replace(state.story, trouble=trouble)
        )
        if is_new and trouble is not None:
            self.run.state = beginning(self.state, trouble)
        self.run.ports = {}
        yield from self.run.enter("fencing", at_s)
        self._waits_for, self.has_run_short = "", False
        if is_new:  # said when it is written: a root that was deposed begins no recovery
            yield Emit(event=self.state.story.said[-1])
        self.run.plan = None
        self.run.watch.on_fence()
        self.run.saver.cancel()
        for node in self.run.living:
            yield self.question(node)
        yield from self.run.tell_tier()
        yield from self.advance(at_s)

    def question(self, node: str) -> Send:
        """Return the question of this phase for an agent, also one that joins late."""
        if self.state.phase == "fencing":
            keeps = self.run.keeping.asks(node)
            ends = self.run.keeping.ends
            return Send(to=node, order=Fence(epoch=self.state.epoch, keeps=keeps, ends=ends))
        return Send(to=node, order=self._inventory_order())

    def _inventory_order(self, *, persistent_url: str | None = None) -> TakeInventory:
        return TakeInventory(
            epoch=self.state.epoch,
            run=self.state.job.run,
            persistent_url=persistent_url,
            asks_settings=self.state.setup.settings is None,
            words_after=self.run.heard_until,
        )

    def on_answer(
        self, at_s: float, node: str, answer: Fenced | Inventory
    ) -> Iterator[Instruction]:
        """Act on an answer to this phase's question; of one to an earlier phase's keep the port."""
        if isinstance(answer, Fenced):
            self.run.ports[node] = answer.address
            if answer.no_port:
                yield Emit(event=events.Note(text=f"{node}: {answer.no_port}"))
        match answer, self.state.phase:
            case Fenced(), "fencing":
                self.run.answered.add(node)
                self.run.keeping.hear(node, answer)
                yield from self.advance(at_s)
            case Inventory(), "inventory":
                self.run.answered.add(node)
                self.run.inventory[node] = answer
                self._note_stored(node, answer)
                silent = tuple(one for one in self.state.nodes.silent if one != node)
                self.run.change(replace(self.state.nodes, silent=silent))
                self.run.repeats.learn(answer.iterations, answer.left)
                self.run.leave_behind(answer.left)
                self.run.learn_code(answer.code)
                if self.state.setup.settings is None and answer.protected is not None:
                    self.run.learn_settings(answer.protected)
                yield from self.advance(at_s)
            case Fenced(), "running":
                yield from self.run.ahead.start(self.state, node, answer)

    def advance(self, at_s: float) -> Iterator[Instruction]:
        """Enter the next phase when all agents have answered."""
        if not self.run.living or len(self.run.answered) < len(self.run.living):
            return  # without any agent there is nobody to ask: the first that joins goes on
        if not self.run.answered >= self.run.living.keys():
            return
        if self.state.phase == "fencing":
            yield from self.take_inventory(at_s)
        elif self.state.phase == "inventory":
            plan = self._make_plan()
            if self._needs_tier(plan):
                yield self._ask_tier()
            else:
                yield from self.decide(at_s, plan)

    def take_inventory(self, at_s: float) -> Iterator[Instruction]:
        """Ask all agents which copies are whole in memory."""
        self.run.inventory = {}
        yield from self.run.enter("inventory", at_s)
        for node in self.run.living:
            yield self.question(node)
        yield from self.advance(at_s)

    def _needs_tier(self, plan: RecoveryPlan) -> bool:
        """Return whether memory does not suffice and no agent has read the persistent tier yet.

        A tier that is slow to answer holds up no recovery that can do without it. Memory of none
        but nodes that stood by does not suffice: the tier may have what was made since.
        """
        if self.state.read_settings().persistent_url is None:
            return False
        is_known = any(
            said.persistent is not None or said.unread for said in self.run.inventory.values()
        )
        if is_known:
            return False
        is_witnessed = hopes(self.state, self.run.inventory).is_witnessed
        is_enough = plan.tier == "memory" and (plan.version or 0) >= self.state.tier.saved
        return not is_enough or not is_witnessed

    def _note_stored(self, node: str, answer: Inventory) -> None:
        """Remember the newest version that the tier shows a node; it may show fewer later."""
        there = [
            one.version
            for one in stored_versions(self.state, {node: answer})
            if VersionId(version=one.version, lineage=one.lineage)
            not in self.state.discarded.rejected
        ]
        if (newest := max(there, default=0)) > self.state.tier.saved:
            self.run.saver.note_stored(newest)
            self.run.change(replace(self.state.tier, saved=newest))
            if (trouble := self.state.story.trouble) is not None:
                trouble = replace(trouble, reached=max(trouble.reached, newest))
                self.run.change(replace(self.state.story, trouble=trouble))

    def _ask_tier(self) -> Send:
        """Ask one agent again, for the versions that the persistent tier has.

        They take turns while the run waits: one may see what another does not.
        """
        agents = in_order(self.run.living.keys() - self.state.avoided) or in_order(self.run.living)
        node = agents[self.looks % len(agents)]
        self.run.answered.discard(node)
        self.run.tier_asked = node
        url = self.state.read_settings().persistent_url
        return Send(to=node, order=self._inventory_order(persistent_url=url))

    def decide(self, at_s: float, plan: RecoveryPlan | None = None) -> Iterator[Instruction]:
        """Plan; then start the workers, or wait for machines or for memory.

        Args:
            at_s: Now.
            plan: The plan for what is known, if it was made just now.
        """
        planned_for = self.state
        if self.state.story.parting is not None:
            yield from self._save_and_end(at_s)
            return
        if self.state.phase == "inventory":
            yield from self._report_bad_copies()
        yield from self._give_up_tier_version(at_s)
        before = self.state
        self.run.state = seat_anew(at_s, before, self.run.living, self.run.inventory)
        if plan is None or self.state is not planned_for:
            plan = self._make_plan()
        self.run.plan = plan
        reason = self._reason_to_wait(plan, at_s)
        if reason and self.state.discarded.has_given_up:  # which the user said of this plan
            to = plan.version or 0
            self.run.state, before = (
                one.with_parts(replace(one.discarded, has_given_up=False, let_go=to))
                for one in (self.state, before)
            )
            reason = self._reason_to_wait(plan, at_s)
        pause = "" if reason else self._reason_to_pause(at_s)
        self.is_pausing = bool(pause) and not plan.missing
        gives_up = reason_to_wait(plan, hopes(self.state, self.run.inventory)) is not None
        if reason or pause or plan.missing:
            self.run.state = before
            yield from self.wait(at_s, plan, reason or pause)
            return
        placed = self.run.replicas.place(at_s, self.state, plan, self.run.living, self.run.plan_of)
        if not self.run.keeping.fits(placed.plan, before, placed.state):
            self.run.state = before
            yield from self.restart(at_s, cause="not_kept", lost=[])
            return
        address = self._meeting_port(placed, before.members)
        if not address:
            self.run.state = before
            yield from self._without_port(at_s, placed)
            return
        if gives_up:
            unclear = unclear_versions(placed.state, self.run.inventory)
            placed = replace(placed, state=giving_up(placed.state, placed.plan, unclear))
        yield from self._carry_out(at_s, before, placed, address)

    def _hosts(self, placed: RestartPlacement) -> list[str]:
        return self.run.keeping.hosts(placed.state.seats.seated(placed.plan.members))

    def _meeting_port(self, placed: RestartPlacement, before: Sequence[str | None]) -> str:
        """Return a port that the agent of a node holds which starts ranks; empty for none.

        Nodes that had ranks before come first, because others may still import.
        """
        hosts = sorted(self._hosts(placed), key=lambda node: node not in before)
        ports = (self.run.ports.get(node, "") for node in hosts)
        return self.run.keeping.address or next(filter(None, ports), "")

    def _without_port(self, at_s: float, placed: RestartPlacement) -> Iterator[Instruction]:
        """Leave a machine without a port if a standby has one; else try again later."""
        if any(map(self.run.ports.get, self.run.spares())):
            node = self._hosts(placed)[0]
            reason = f"{node} holds no port in which the ranks could meet"
            yield from self.on_machine(at_s, node, reason, cause="order_failed", is_told=True)
        else:
            yield from self.restart(at_s, cause="order_failed", lost=[])

    def give_up(
        self, at_s: float, ending: events.RunFailed, *, cause: str
    ) -> Iterator[Instruction]:
        """End the run, but save first what only memory has."""
        if not self.run.saver.lacks(self.state):
            yield from self.ending.end(at_s, ending)
            return
        self.run.change(replace(self.state.story, parting=ending))
        yield from self.restart(at_s, cause=cause, lost=[])

    def _save_and_end(self, at_s: float) -> Iterator[Instruction]:
        """Save the newest version from memory, after all workers have ended."""
        self.run.plan = plan = self._make_plan()
        if self.state.phase != "waiting":
            yield from self.run.enter("waiting", at_s)
        yield from self.run.saver.begin_from_memory(at_s, plan, state=self.state)
        yield from self.end_if_saved(at_s)

    def end_if_saved(self, at_s: float) -> Iterator[Instruction]:
        """End the run that was given up, once its newest version is saved or cannot be."""
        if (ending := self.state.story.parting) is not None and self.run.saver.version is None:
            reason = "; ".join([ending.reason, *self.run.saver.way_on()])
            yield from self.ending.end(at_s, msgspec.structs.replace(ending, reason=reason))

    def _report_bad_copies(self) -> Iterator[Instruction]:
        for node, said in self.run.inventory.items():
            for copy in said.damaged:
                yield rejected_copy(copy, node, self.state)

    def _carry_out(
        self, at_s: float, before: RootState, placed: RestartPlacement, address: str
    ) -> Iterator[Instruction]:
        """Emit the plan and start the workers, which meet at `address`.

        Args:
            at_s: Now.
            before: The state with the old seats.
            placed: The plan, and the state that it is for.
            address: The port that an agent holds.
        """
        self.run.state, self.run.plan = placed.state, placed.plan
        plan, lineage = placed.plan, placed.plan.lineage
        self.run.repeats.restart(plan.version, epoch=lineage.epoch, rewinds=lineage.rewinds)
        # What is newer than the plan's version is lost or given up: not to be waited for again.
        self.run.change(
            replace(self.state.setup, placed=self.state.seats.seated(plan.members)),
            replace(
                self.state.reached,
                newest=plan.version or 0,
                begun=plan.version or 0,
                is_unsure=False,
                trained=self.state.epoch,
                rendezvous=address,
            ),
            replace(self.state.tier, saved=min(self.state.tier.saved, plan.version or 0)),
            replace(self.state.discarded, has_given_up=False),
        )
        self.run.saver.let_go(self.state.tier.saved)
        if plan.version is None:  # no rank restores, so none would tell
            self.run.saver.note_restored(self.state.ranks, plan)
        noted = [*self._use_again(plan)]
        is_standby_used = len(self.run.spares()) < self.state.seats.standbys
        self.run.retry_s, self._waits_for = FIRST_RETRY_S, ""
        yield from self.run.enter("starting", at_s)
        yield Emit(event=planned_event(plan, recovery=self.state.recovery, epoch=self.state.epoch))
        yield from (*rack_notes(before, plan), *self._skips_lost(plan), *noted, *placed.told)
        yield from self._start_workers(plan)
        self.run.has_all_words = True
        if is_standby_used:
            yield from self.run.ask_for_nodes("a standby was used")

    def _use_again(self, plan: RecoveryPlan) -> Iterator[Emit]:
        """Use excluded nodes again that the plan cannot do without, once until training gets on.

        One that fails again stays excluded on its position, so that its failures have an end.
        """
        aside = self.state.nodes
        back = [n for n in plan.members if n in aside.excluded and n not in aside.again]
        nodes = aside.used_again([str(node) for node in back])
        self.run.state = replace(self.state, nodes=nodes)
        for node in back:
            why = "no other machine is there, or has what its memory has"
            yield Emit(event=used_again(str(node), why))

    def _skips_lost(self, plan: RecoveryPlan) -> Iterator[Emit]:
        """Emit a note if batches come again that a user wanted skipped."""
        told = (one for said in self.run.inventory.values() for one in said.disowned)
        if text := skipped_again(plan, (*self.state.discarded.left, *told)):
            yield Emit(event=events.Note(text=text))

    def _make_plan(self) -> RecoveryPlan:
        return self.run.plan_of(self.state)

    def _reason_to_wait(self, plan: RecoveryPlan, at_s: float) -> str:
        """Return why this plan is not carried out; empty if it loses nothing, or is allowed to.

        A user's request holds for one plan: a plan that goes back further needs another request.
        """
        if pause := self.tier_pause and self.tier_pause.reason_to_wait(plan, at_s):
            return pause
        if self._has_waited(at_s) or 0 <= self.state.discarded.let_go <= (plan.version or 0):
            return ""
        return reason_to_wait(plan, hopes(self.state, self.run.inventory)) or ""

    def _has_waited(self, at_s: float) -> bool:
        """Return whether a setting gives up progress after this long a wait."""
        patience_s = self.state.read_settings().give_up_progress_after_s
        trouble = self.state.story.trouble
        waited_s = 0.0 if trouble is None else at_s - trouble.since_s
        return patience_s is not None and waited_s >= patience_s

    def _give_up_tier_version(self, at_s: float) -> Iterator[Instruction]:
        """Give up a version in the tier that does not load, if a user or a setting says so."""
        pause = self.tier_pause
        if pause is None or not pause.concerns(self._make_plan()):
            return
        if self.state.discarded.has_given_up or self._has_waited(at_s):
            yield rejected_version(
                self.state, pause.version.version, f"it was given up: {pause.reason}"
            )
            rejected = (*self.state.discarded.rejected, pause.version)
            self.run.change(replace(self.state.discarded, rejected=rejected, has_given_up=False))
            self.tier_pause = None

    def _reason_to_pause(self, at_s: float) -> str:
        """Return why workers do not start yet, although they could; empty if they may."""
        if at_s >= self.resumes_s:
            return ""
        return (
            f"{self.state.faults.fruitless} recoveries in a row failed, the last of "
            f"them begun for {self._cause}: workers start again after a pause of "
            f"{pause_s(self.state):.0f} s"
        )

    def wait(self, at_s: float, plan: RecoveryPlan, reason: str) -> Iterator[Instruction]:
        """Wait; lost positions stay open, so that a returning node gets its own back."""
        if self.state.phase != "waiting":
            yield from self.run.enter("waiting", at_s)
        if plan.missing:
            machines = (
                f"no machine for position{'s'[: len(plan.missing) > 1]} {listed(plan.missing)}"
            )
            machines += if_none_comes(self.state, at_s, self.run.living)
            reason = f"{reason}; {machines}" if reason else machines
            yield from self.run.ask_for_nodes(machines)
        if reason == self._waits_for:
            return
        self._waits_for = reason
        yield self.waiting_event(reason, missing=plan.missing)

    def waiting_event(self, reason: str, *, missing: tuple[int, ...] = ()) -> Emit:
        return Emit(
            event=events.RecoveryWaiting(
                recovery=self.state.recovery,
                epoch=self.state.epoch,
                missing=missing,
                standbys=tuple(self.run.spares()),
                reason=reason,
            )
        )

    def _start_workers(self, plan: RecoveryPlan) -> Iterator[Instruction]:
        state, address = self.state, self.state.reached.rendezvous
        if kept := self.run.keeping.trained:
            told = events.ProcessesKept(recovery=state.recovery, epoch=state.epoch, ranks=kept)
            yield Emit(event=told)
        self.run.watch.on_start(state.ranks, iteration=plan.version or 0)
        to_rank_0 = ToldSeats.of(state.seats_to_tell)
        to_others = msgspec.structs.replace(to_rank_0, risk=Risk())
        go_on = told_ranks(self.run.keeping.ranks)
        for node, part in plan.parts().items():
            order = StartWorkers(
                epoch=state.epoch,
                order=state.job,
                seats=to_rank_0 if node == state.members[0] else to_others,
                plan=part,
                rendezvous=address,
                fingerprint=state.setup.fingerprint,
                kept=go_on,
                code=state.digests,
            )
            yield Send(to=node, order=order)

    def resume(self, at_s: float, iteration: int) -> Iterator[Instruction]:
        assert self.run.plan is not None
        self.tier_pause = None
        yield self.run.step("warm_up", at_s)
        before = self.state
        self.run.state = replace(
            before,
            phase="running",
            story=replace(before.story, trouble=None),
            reached=replace(before.reached, iteration=iteration),
            faults=replace(before.faults, attempts=0, offences=()),
        )
        if before.story.trouble is not None:
            answers = self.run.inventory.values()
            over = finished_event(before, self.run.plan, answers, iteration=iteration, at_s=at_s)
            self.run.change(replace(self.state.story, said=(over,)))
        yield WriteState(state=self.state)
        if before.story.trouble is not None:
            yield Emit(event=self.state.story.said[-1])
        was_drain = before.story.trouble is not None and before.story.trouble.cause == events.DRAIN
        yield from self.run.adopt(self.run.drains.end(self.state, was_drain=was_drain))
        ended = self.run.resizes.end(at_s, self.state, self.run.living)
        yield from self.run.adopt(ended)
        yield from self.run.let_leave(at_s)
        yield from self.preload(self.run.living)

    def preload(self, nodes: Collection[str]) -> Iterator[Send]:
        """Order nodes, standbys too, to import what `preload` names for the next start."""
        job = self.state.setup.order
        assert job is not None
        if told := Settings.layered(job.defaults, job.settings).preload:
            modules, environment = split_names(told), dict(job.job.env)
            order = Preload(epoch=self.state.epoch, modules=modules, environment=environment)
            yield from (Send(to=node, order=order) for node in in_order(nodes))

    # -- starts that fail ----------------------------------------------------------------------

    def on_machine(
        self, at_s: float, node: str, reason: str, *, cause: str, is_told: bool = False
    ) -> Iterator[Instruction]:
        """Start the recovery again after it failed at one machine; without that one if possible."""
        spares = self.run.spares()
        verdict = judge_machine(self.state, node, reason=reason, spares=spares, is_told=is_told)
        yield from self.act_on(at_s, verdict, cause=cause)

    def act_on(
        self,
        at_s: float,
        verdict: FailureVerdict,
        *,
        cause: str,
        output: tuple[str, ...] = (),
        ends: Sequence[int] = (),
    ) -> Iterator[Instruction]:
        """Start again, leave the node that is to blame, or give the run up."""
        self.run.state = verdict.state
        if not verdict.reason:
            yield from self.restart(at_s, cause=cause, lost=[], ends=ends)
        elif verdict.left is not None:
            left = verdict.left
            yield Emit(event=events.NodeExcluded(name=left, reason=verdict.reason))
            self.run.state, back = leave(self.state, left, self.run.spares())
            if back:
                yield Emit(event=used_again(back, f"no other machine can take {left}'s place"))
            yield from self.restart(at_s, cause="node_excluded", lost=[left])
        else:
            ending = events.RunFailed(reason=verdict.reason, cause=verdict.cause, output=output)
            yield from self.give_up(at_s, ending, cause=cause)

    def finish_if_all_did(self, at_s: float) -> Iterator[Instruction]:
        if self.state.phase not in {"starting", "running"}:
            return
        if len(self.run.watch.finished) < len(self.state.ranks):
            return
        if self.state.phase == "starting" and self.run.plan is not None:
            yield from self.resume(at_s, self.state.reached.iteration)
        yield from self.run.enter("finishing", at_s)
        self.run.retry_s = FIRST_RETRY_S
        yield from self.ending.save_last(at_s)
