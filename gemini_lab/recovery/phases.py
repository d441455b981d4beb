"""The way of a run through its phases, as the root agent takes it.

    idle -> fencing -> inventory <-> (waiting) -> rendezvous -> starting -> running
                ^___________________________________________________________|   any failure
    running -> finishing -> done;   anything -> failed

A failure in any phase begins again at fencing, with the next epoch; every step can be repeated. A
run waits for machines, and for memory that may come back rather than throw progress away.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from gemini_lab.limits import split_names
from gemini_lab.log import events
from gemini_lab.recovery.drains import moving
from gemini_lab.recovery.ending import EndingRun
from gemini_lab.recovery.faults import has_got_further, pause_s, rejected_version
from gemini_lab.recovery.log_events import (
    beginning,
    finished_event,
    planned_event,
    rejected_copy,
)
from gemini_lab.recovery.messages import (
    Fence,
    Fenced,
    HoldPort,
    Inventory,
    PortHeld,
    Preload,
    StartWorkers,
    TakeInventory,
)
from gemini_lab.recovery.plan import RecoveryPlan, VersionId
from gemini_lab.recovery.planning import hopes, rack_notes, stored_versions
from gemini_lab.recovery.protocol import (
    Emit,
    Instruction,
    RootState,
    Send,
    Trouble,
    WriteState,
)
from gemini_lab.recovery.replicas import Placed
from gemini_lab.recovery.resizes import if_none_comes, seat_anew
from gemini_lab.recovery.rewinds import skipped_again
from gemini_lab.recovery.stakes import reason_to_wait
from gemini_lab.recovery.steps import FIRST_RETRY_S
from gemini_lab.seats import in_order, listed
from gemini_lab.settings import Settings

NO_FAILURES: Final = frozenset(
    {"start", "not_kept", "resize_refused", "restore_failed", *events.PLANNED}
)
"""Causes of a fence that say nothing of how the run gets on, or have pauses of their own: all
others count."""


class PhasedRun(EndingRun):
    """A run, from each phase to the next."""

    def _begin(
        self, at_s: float, *, cause: str, lost: Sequence[str], ends: Sequence[int] = ()
    ) -> Iterator[Instruction]:
        """Fence: the next epoch begins, all workers of older ones end, or stand still."""
        self._keeping.begin(self.state, cause, lost, ends=ends)
        state = replace(moving(self.state), is_replacing=False)
        if has_got_further(state):
            state = replace(state, barren=(), fruitless=0)
        if cause not in NO_FAILURES:
            state = replace(state, fruitless=state.fruitless + 1)
        wait_s = pause_s(state)
        self._cause, self.resumes_s = cause, at_s + wait_s if wait_s else -math.inf
        self._stop.restart()
        self._roll_call.restart()
        is_start = cause == "start"
        trouble = state.trouble
        is_new = trouble is None and not is_start
        if trouble is not None:
            trouble = replace(trouble, lost=(*trouble.lost, *lost))
        elif is_new:
            reached = max(state.iteration, state.newest, state.saved)
            trouble = Trouble(
                cause=cause, lost=tuple(lost), at_s=at_s, since_s=at_s, reached=reached
            )
            state = replace(state, recoveries=state.recoveries + 1, none_come=False)
            state = replace(state, has_given_up=False, let_go=-1)
        self.state = replace(state, epoch=state.epoch + 1, trouble=trouble)
        if is_new and trouble is not None:
            self.state = beginning(self.state, trouble)
        yield from self._enter("fencing", at_s)
        self._waits_for, self._has_run_short = "", False
        if is_new:  # said when it is written: a root that was deposed begins no recovery
            yield Emit(event=self.state.said[-1])
        self._plan = None
        self._protected, self._restored, self._finished = set(), set(), set()
        self._saver.cancel()
        for node in self.living:
            yield self._question(node)
        yield from self._tell_tier()
        yield from self._advance(at_s)

    def _question(self, node: str) -> Send:
        """What every living agent is asked in this phase, latecomers too."""
        if self.state.phase == "fencing":
            keeps = self._keeping.asks(node)
            ends = self._keeping.ends
            return Send(to=node, order=Fence(epoch=self.state.epoch, keeps=keeps, ends=ends))
        return Send(to=node, order=self._inventory_order())

    def _inventory_order(self, *, persistent_url: str | None = None) -> TakeInventory:
        return TakeInventory(
            epoch=self.state.epoch,
            run=self.state.job.run,
            persistent_url=persistent_url,
            asks_settings=self.state.settings is None,
        )

    def _on_answer(
        self, at_s: float, node: str, answer: Fenced | Inventory | PortHeld
    ) -> Iterator[Instruction]:
        """An answer to this phase's question; to an earlier one's it comes too late."""
        match answer, self.state.phase:
            case Fenced(), "fencing":
                self._answered.add(node)
                self._keeping.hear(node, answer)
                yield from self._advance(at_s)
            case Inventory(), "inventory":
                self._answered.add(node)
                self._inventory[node] = answer
                self._note_stored()
                silent = tuple(one for one in self.state.silent if one != node)
                self.state = replace(self.state, silent=silent)
                self._repeats.learn(answer.iterations, answer.left)
                self._leave_behind(answer.left)
                self._learn_code(answer.code)
                if self.state.settings is None and answer.protected is not None:
                    self._learn_settings(answer.protected)
                yield from self._advance(at_s)
            case PortHeld(), "rendezvous":
                yield from self._start(at_s, answer.address)
            case PortHeld(), "running":
                yield from self._ahead.start(self.state, node, answer)

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

        A tier that is slow to answer holds up no recovery that can do without it. Memory of none
        but nodes that stood by does not suffice: the tier may have what was made since.
        """
        if self.state.read_settings().persistent_url is None:
            return False
        is_known = any(
            said.persistent is not None or said.unread for said in self._inventory.values()
        )
        if is_known:
            return False
        is_witnessed = hopes(self.state, self._inventory).is_witnessed
        plan = self._make_plan()
        is_enough = plan.tier == "memory" and (plan.version or 0) >= self.state.saved
        return not is_enough or not is_witnessed

    def _note_stored(self) -> None:
        """Keep in mind what the tier shows: what was there once is not gone if it shows less."""
        there = [
            one.version
            for one in stored_versions(self.state, self._inventory)
            if VersionId(version=one.version, lineage=one.lineage) not in self.state.rejected
        ]
        if (newest := max(there, default=0)) > self.state.saved:
            self._saver.note_stored(newest)
            self.state = replace(self.state, saved=newest)
            if (trouble := self.state.trouble) is not None:
                trouble = replace(trouble, reached=max(trouble.reached, newest))
                self.state = replace(self.state, trouble=trouble)

    def _ask_storage(self) -> Send:
        """Have one agent answer again, with the versions that the persistent tier has.

        They take turns while the run waits: one may see what another does not.
        """
        agents = in_order(self.living.keys() - self.state.avoided) or in_order(self.living)
        node = agents[self._looks % len(agents)]
        self._answered.discard(node)
        self._tier_asked = node
        url = self.state.read_settings().persistent_url
        return Send(to=node, order=self._inventory_order(persistent_url=url))

    def _decide(self, at_s: float) -> Iterator[Instruction]:
        """Plan; then hold a port for the rendezvous, or wait for machines or for memory."""
        if self.state.parting is not None:
            yield from self._save_and_part(at_s)
            return
        if self.state.phase == "inventory":
            yield from self._report_bad_copies()
        yield from self._let_go_of_tier_version(at_s)
        before = self.state
        self.state = seat_anew(at_s, before, self.living, self._inventory)
        self._plan = plan = self._make_plan()
        reason = self._reason_to_wait(plan, at_s)
        if reason and self.state.has_given_up:  # this is what the person's word was about
            self.state, before = (
                replace(one, has_given_up=False, let_go=plan.version or 0)
                for one in (self.state, before)
            )
            reason = self._reason_to_wait(plan, at_s)
        reason = reason or self._reason_to_pause(at_s)
        if reason or plan.missing:
            self.state = before
            yield from self._wait(at_s, plan, reason)
            return
        placed = self._replicas.place(at_s, self.state, plan, self.living, self._plan_of)
        if not self._keeping.fits(placed.plan, before, placed.state):
            self.state = before
            yield from self._begin(at_s, cause="not_kept", lost=[])
            return
        yield from self._carry_out(at_s, before, placed)

    def _give_up(
        self, at_s: float, ending: events.RunFailed, *, cause: str
    ) -> Iterator[Instruction]:
        """End the run, but save first what memory alone has: it goes with the run."""
        if not self._saver.lacks(self.state):
            yield from self._end(at_s, ending)
            return
        self.state = replace(self.state, parting=ending)
        yield from self._begin(at_s, cause=cause, lost=[])

    def _save_and_part(self, at_s: float) -> Iterator[Instruction]:
        """All workers have ended: whoever has the newest version writes it."""
        self._plan = plan = self._make_plan()
        if self.state.phase != "waiting":
            yield from self._enter("waiting", at_s)
        yield from self._saver.begin_from_memory(at_s, plan, state=self.state)
        yield from self._part_if_saved(at_s)

    def _part_if_saved(self, at_s: float) -> Iterator[Instruction]:
        """End the run that was given up, once its newest version is there, or will not be."""
        if (ending := self.state.parting) is not None and self._saver.version is None:
            reason = "; ".join([ending.reason, *self._saver.way_on()])
            yield from self._end(at_s, msgspec.structs.replace(ending, reason=reason))

    def _report_bad_copies(self) -> Iterator[Instruction]:
        for node, said in self._inventory.items():
            for copy in said.damaged:
                yield rejected_copy(copy, node, self.state)

    def _carry_out(self, at_s: float, before: RootState, placed: Placed) -> Iterator[Instruction]:
        """Tell of the plan, and have workers meet who begin with it; `before`: as they sat."""
        self.state, self._plan = placed.state, placed.plan
        plan, lineage = placed.plan, placed.plan.lineage
        self._repeats.restart(plan.version, epoch=lineage.epoch, rewinds=lineage.rewinds)
        # What is newer than the plan's version is lost or given up: not to be waited for again.
        self.state = replace(
            self.state,
            placed=self.state.seats.seated(plan.members),
            newest=plan.version or 0,
            begun=plan.version or 0,
            saved=min(self.state.saved, plan.version or 0),
            has_given_up=False,
        )
        self._saver.let_go(self.state.saved)
        is_standby_used = len(self._spares()) < self.state.seats.standbys
        self._retry_s, self._waits_for = FIRST_RETRY_S, ""
        yield from self._enter("rendezvous", at_s)
        yield Emit(event=planned_event(plan, recovery=self.state.recovery, epoch=self.state.epoch))
        yield from (*rack_notes(before, plan), *self._skips_lost(plan), *placed.told)
        if self._keeping.address:
            yield from self._start(at_s, self._keeping.address)
        else:
            yield self._ask_for_port(plan, before.members)
        if is_standby_used:
            yield from self._ask_for_nodes("a standby was used")

    def _skips_lost(self, plan: RecoveryPlan) -> Iterator[Emit]:
        """Say where batches come again that a person wanted skipped."""
        told = (one for said in self._inventory.values() for one in said.disowned)
        if text := skipped_again(plan, (*self.state.left, *told)):
            yield Emit(event=events.Note(text=text))

    def _ask_for_port(self, plan: RecoveryPlan, members: Sequence[str | None]) -> Send:
        """Have a node hold a port for the rendezvous: one of `members`, for new ones may import."""
        hosts = self._keeping.hosts(plan, self.state)
        ready = [node for node in hosts if node in members] or [*hosts]
        host = str(min(ready, key=lambda node: node in self._portless))  # of equals the first
        keeper = self._keeping.server(host, self.state)
        self._port = Send(to=host, order=HoldPort(epoch=self.state.epoch, keeper=keeper))
        return self._port

    def _reason_to_wait(self, plan: RecoveryPlan, at_s: float) -> str:
        """Return why this plan is not carried out; empty if it loses nothing, or is allowed to.

        A person's word holds for what it was said of: a plan that goes back further needs another.
        """
        if pause := self._tier_pause and self._tier_pause.reason_to_wait(plan, at_s):
            return pause
        if self._has_waited(at_s) or 0 <= self.state.let_go <= (plan.version or 0):
            return ""
        return reason_to_wait(plan, hopes(self.state, self._inventory)) or ""

    def _has_waited(self, at_s: float) -> bool:
        """Return whether a setting lets progress go that was waited for this long."""
        patience_s = self.state.read_settings().give_up_progress_after_s
        trouble = self.state.trouble
        waited_s = 0.0 if trouble is None else at_s - trouble.since_s
        return patience_s is not None and waited_s >= patience_s

    def _let_go_of_tier_version(self, at_s: float) -> Iterator[Instruction]:
        """Give up a version in the tier that does not load, if a person or a setting says so."""
        pause = self._tier_pause
        if pause is None or not pause.concerns(self._make_plan()):
            return
        if self.state.has_given_up or self._has_waited(at_s):
            yield rejected_version(
                self.state, pause.version.version, f"it was given up: {pause.reason}"
            )
            rejected = (*self.state.rejected, pause.version)
            self.state = replace(self.state, rejected=rejected, has_given_up=False)
            self._tier_pause = None

    def _reason_to_pause(self, at_s: float) -> str:
        """Why workers do not start yet, though they could; empty if they may."""
        if at_s >= self.resumes_s:
            return ""
        return (
            f"{self.state.fruitless} recoveries in a row came to nothing, the last of them begun "
            f"for {self._cause}: workers start again after a pause of "
            f"{pause_s(self.state):.0f} s"
        )

    def _wait(self, at_s: float, plan: RecoveryPlan, reason: str) -> Iterator[Instruction]:
        """Nothing starts yet. Positions stay empty: whose memory comes back finds its own."""
        if self.state.phase != "waiting":
            yield from self._enter("waiting", at_s)
        if plan.missing:
            machines = (
                f"no machine for position{'s'[: len(plan.missing) > 1]} {listed(plan.missing)}"
            )
            machines += if_none_comes(self.state, at_s, self.living)
            reason = f"{reason}; {machines}" if reason else machines
            yield from self._ask_for_nodes(machines)
        if reason == self._waits_for:
            return
        self._waits_for = reason
        yield self._waiting_event(reason, missing=plan.missing)

    def _waiting_event(self, reason: str, *, missing: tuple[int, ...] = ()) -> Emit:
        return Emit(
            event=events.RecoveryWaiting(
                recovery=self.state.recovery,
                epoch=self.state.epoch,
                missing=missing,
                standbys=tuple(self._spares()),
                reason=reason,
            )
        )

    def _start(self, at_s: float, address: str) -> Iterator[Instruction]:
        assert self._plan is not None
        epoch = self.state.epoch
        self.state = replace(self.state, is_unsure=False, trained=epoch, rendezvous=address)
        yield from self._enter("starting", at_s)
        if kept := self._keeping.trained:
            recovery = self.state.recovery
            yield Emit(event=events.ProcessesKept(recovery=recovery, epoch=epoch, ranks=kept))
        self._progress.restart(self.state.ranks, iteration=self._plan.version or 0)
        self._pulses.restart()
        self._ends.restart(self.state.ranks, iteration=self._plan.version or 0)
        for node, part in self._plan.parts().items():
            order = StartWorkers(
                epoch=self.state.epoch,
                order=self.state.job,
                seats=self.state.seats_to_tell,
                plan=part,
                rendezvous=address,
                fingerprint=self.state.fingerprint,
                kept=[*self._keeping.ranks],
                code=self.state.digests,
            )
            yield Send(to=node, order=order)

    def _resumed(self, at_s: float, iteration: int) -> Iterator[Instruction]:
        assert self._plan is not None
        self._tier_pause = None
        yield self._step("warm_up", at_s)
        before = self.state
        self.state = replace(
            before, phase="running", trouble=None, iteration=iteration, attempts=0, offences=()
        )
        if before.trouble is not None:
            answers = self._inventory.values()
            over = finished_event(before, self._plan, answers, iteration=iteration, at_s=at_s)
            self.state = replace(self.state, said=(over,))
        yield WriteState(state=self.state)
        if before.trouble is not None:
            yield Emit(event=self.state.said[-1])
        was_drain = before.trouble is not None and before.trouble.cause == events.DRAIN
        yield from self._adopt(self._drains.end(self.state, was_drain=was_drain))
        ended = self._resizes.end(at_s, self.state, self.living)
        yield from self._adopt(ended)
        yield from self._let_leave(at_s)
        yield from self._preload(self.living)

    def _preload(self, nodes: Collection[str]) -> Iterator[Send]:
        """Have nodes, standbys too, import for the next start what the launcher has named."""
        job = self.state.order
        assert job is not None
        if told := Settings.layered(job.defaults, job.settings).preload:
            modules, environment = split_names(told), dict(job.job.env)
            order = Preload(epoch=self.state.epoch, modules=modules, environment=environment)
            yield from (Send(to=node, order=order) for node in in_order(nodes))

    def _finish_if_all_did(self, at_s: float) -> Iterator[Instruction]:
        if self.state.phase not in {"starting", "running"}:
            return
        if len(self._finished) < len(self.state.ranks):
            return
        if self.state.phase == "starting" and self._plan is not None:
            yield from self._resumed(at_s, self.state.iteration)
        yield from self._enter("finishing", at_s)
        self._retry_s = FIRST_RETRY_S
        yield from self._save_last(at_s)
