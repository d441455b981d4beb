"""The workers of a run, while they start and train: reports, failures and hangs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace

from gemini_lab.log import events
from gemini_lab.recovery.discarded_versions import disown, left_of
from gemini_lab.recovery.ends import Apart, Places
from gemini_lab.recovery.faults import (
    is_of_apart,
    judge_apart,
    judge_exit,
    judge_hang,
    judge_machine,
    rejections,
    without_copy,
)
from gemini_lab.recovery.hangs import UNPROTECTED_S, Limits
from gemini_lab.recovery.kept_ranks import HUNG, SEVERED
from gemini_lab.recovery.log_events import (
    divergence_reason,
    loss_event,
    not_finite_reason,
)
from gemini_lab.recovery.messages import (
    AllLive,
    EndReached,
    RankProtected,
    RestoreFailed,
    ScriptFinished,
    Severed,
    WorkerEnded,
)
from gemini_lab.recovery.plan import VersionId
from gemini_lab.recovery.planning import good_copies
from gemini_lab.recovery.progress_at_risk import TierPause
from gemini_lab.recovery.protocol import AgentJoined, Emit, HeardEvent, Instruction, WriteState
from gemini_lab.recovery.root.ending import Ending
from gemini_lab.recovery.root.known_run import KnownRun, PartOfRoot
from gemini_lab.recovery.root.lifecycle import Lifecycle
from gemini_lab.recovery.root_state import ACTIVE, RootState
from gemini_lab.recovery.wrong_sums import left_by
from gemini_lab.shard.lineage import NO_LINEAGE


class Workers(PartOfRoot):
    """The workers of a run: what they report, how they fail, which of them hang."""

    def __init__(self, run: KnownRun, lifecycle: Lifecycle, ending: Ending) -> None:
        super().__init__(run)
        self.lifecycle, self.ending = lifecycle, ending
        self._drained_for: set[int] = set()  # ranks that were slow

    # -- what they say -------------------------------------------------------------------------

    def on_words(self, at_s: float, words: Iterable[events.AnyEvent]) -> Iterator[Instruction]:
        """Act on what workers of this epoch say; one of these words may end the epoch."""
        for word in words:
            if isinstance(word, HeardEvent) and word.epoch == self.state.epoch:
                yield from self._on_event(at_s, word)

    def _on_event(self, at_s: float, event: HeardEvent) -> Iterator[Instruction]:
        match event:
            case events.Protected() | events.CodeSeen():
                yield from self._on_protect(at_s, event)
            # Else it is said again, maybe to a root agent that has made no plan.
            case events.ShardRestored() if (
                self.run.plan and event.rank not in self.run.watch.restored
            ):
                self.run.watch.restored.add(event.rank)
                if len(self.run.watch.restored) == len(self.state.ranks):
                    self.run.saver.note_restored(self.state.ranks, self.run.plan)
                    yield self.run.step("retrieve", at_s)
                    self.run.entered_s = at_s
                    if self.run.saver.is_behind:  # nothing there counts before this is saved
                        yield from self.run.saver.begin_if_due(at_s, state=self.state)
            case events.IterationBegun():
                self.run.watch.ends.begin(event.rank, event.iteration)
                yield from self._compare(at_s, event)
            case events.Iteration():
                yield from self._compare(at_s, event)
                yield from self._watch_loss(at_s, event)
                if not event.restored and self.state.phase in ACTIVE:
                    yield from self._on_iteration(at_s, event)
                    yield from self._watch_pace(at_s, event)
            case events.Rewound():
                yield from self._on_rewound(at_s, event)
            case events.WrongSums():
                yield from self._on_wrong_sums(at_s, event)
            case events.RewindFailed(cause="guard"):
                if self.state.phase in ACTIVE:
                    yield from self.ending.fail(at_s, event.reason, cause="not_finite")
            case events.VersionComplete():
                yield from self._on_version(at_s, event)

    def _on_protect(
        self, at_s: float, event: events.Protected | events.CodeSeen
    ) -> Iterator[Instruction]:
        """Learn the settings and the placement, or the files that workers execute."""
        if isinstance(event, events.CodeSeen):
            self.run.learn_code({name: (event.epoch, one) for name, one in event.files.items()})
            yield WriteState(state=self.state)
            return
        # Of a placement that a user gave, agents send no copy: the root agent has it.
        is_placed = event.placement is not None or self.state.seats.placement is not None
        if self.state.setup.settings is None and is_placed:
            is_elsewhere = self.state.job.resumes_elsewhere(event.settings)
            self.run.learn_settings(event)
            yield WriteState(state=self.state)
            if is_elsewhere:
                yield from self.lifecycle.restart(at_s, cause="start", lost=[])
                return
        yield from self._note_protected(at_s, event)

    def _note_protected(
        self, at_s: float, said: events.Protected | RankProtected
    ) -> Iterator[Instruction]:
        """Note that a rank has called `protect`; the phase ends when all have."""
        if said.rank in self.run.watch.protected:  # it is said again after a connection broke
            return
        self.run.watch.protected.add(said.rank)
        if self.state.setup.fingerprint == "":  # of another number of ranks
            self.run.change(replace(self.state.setup, fingerprint=said.fingerprint))
        if (
            len(self.run.watch.protected) == len(self.state.ranks)
            and self.state.phase == "starting"
        ):
            yield self.run.step("start", at_s)
            self.run.entered_s = at_s

    def _on_version(self, at_s: float, said: events.VersionComplete) -> Iterator[Instruction]:
        """Note that a rank's version is whole; with the last rank's the job's version is."""
        self.run.saver.note_complete(said.rank, said.version, next_version=said.next_version)
        newest = max(self.state.reached.newest, self.run.saver.newest_whole(self.state.ranks))
        is_new = newest > self.state.reached.newest
        if is_new:
            yield from self.run.adopt(self.run.resizes.settle(self.state, self.run.living))
        self.run.change(replace(self.state.reached, newest=newest))
        if (
            is_new and self.state.nodes.silent
        ):  # who fell silent before this start has nothing like it
            self.run.change(replace(self.state.nodes, silent=()))
            yield WriteState(state=self.state)
        if self.state.phase == "running":  # a fast job makes several versions a tick
            yield from self.run.saver.begin_if_due(at_s, state=self.state)

    def _on_iteration(self, at_s: float, event: events.Iteration) -> Iterator[Instruction]:
        self.run.watch.progress.note(event.rank, event.iteration, duration_s=event.duration_s)
        self.run.watch.pulses.note_iteration(event.rank, event.iteration)
        self.run.watch.ends.end(event.rank, event.iteration)
        done = self.run.watch.progress.done
        started_from = (self.run.plan.version or 0) if self.run.plan else 0
        if self.state.phase == "starting" and done > started_from:
            yield from self.lifecycle.resume(at_s, done)
        elif self.state.phase == "running" and done > self.state.reached.iteration:
            self.run.change(
                replace(self.state.reached, iteration=done),
                replace(self.state.faults, attempts=0, offences=()),
            )

    def _watch_pace(self, at_s: float, said: events.Iteration) -> Iterator[Instruction]:
        """Name ranks that became slow; move their nodes' ranks if the settings ask for it."""
        slow = self.run.watch.slow
        told = slow.take(said.rank, said.iteration, work_s=said.work_s, duration_s=said.duration_s)
        for one in told:
            node = self.state.seats.node_of(one.rank)
            yield Emit(event=events.RankSlow(epoch=self.state.epoch, name=node, **asdict(one)))
            # A rank that is slow on another machine, too, has more work: that machine is well.
            is_first = one.rank not in self._drained_for
            wants_drain = self.state.read_settings().on_slow == "drain"
            if wants_drain and is_first and not one.is_over:
                self._drained_for.add(one.rank)
                yield from self.run.adopt(self.run.drains.ask(self.state, self.run.living, node))
                yield from self.run.let_leave(at_s)

    def _compare(
        self, at_s: float, said: events.IterationBegun | events.Iteration
    ) -> Iterator[Instruction]:
        """Emit a divergence if an iteration that is done again differs from before."""
        diverged = self.run.repeats.take(said)
        if diverged is None:
            return
        yield Emit(event=diverged)
        if self.state.phase in ACTIVE and self.state.read_settings().on_divergence == "stop":
            yield from self.ending.fail(at_s, divergence_reason(diverged), cause="divergence")

    def _watch_loss(self, at_s: float, said: events.Iteration) -> Iterator[Instruction]:
        """Save no states whose losses are not finite, because the tier has good ones."""
        if said.restored or self.state.phase not in ACTIVE:
            return
        if not self.run.watch.losses.take(said):
            return
        since = self.run.watch.losses.since
        self.run.change(replace(self.state.tier, not_finite_since=since))
        yield WriteState(state=self.state)
        told = loss_event(said, self.state, is_finite=since is None)
        yield Emit(event=told)
        if isinstance(told, events.LossFinite):
            self.run.saver.is_held = False
        elif told.is_held:
            # The version before holds the weights of which this loss was made.
            reason = f"given up, as {told}"
            yield from self.run.saver.hold(reason, since=said.iteration - 1, state=self.state)
            if self.state.read_settings().on_not_finite == "stop":
                yield from self.ending.fail(at_s, not_finite_reason(told), cause="not_finite")

    def _on_rewound(self, at_s: float, said: events.Rewound) -> Iterator[Instruction]:
        """Act on a rank that went back, as all do: what came since is left behind."""
        rank, version = said.rank, said.version
        self.run.saver.note_rewound(rank, version)
        self.run.watch.progress.go_back(rank, version)
        self.run.watch.pulses.note_iteration(rank, version)
        self.run.watch.ends.end(rank, version)
        self.run.repeats.go_back(said)
        yield from self._leave([left_of(said, run=self.state.job.run)])
        if self.state.phase == "running":
            yield from self.run.saver.begin_if_due(at_s, state=self.state)

    def learn_left(self, agents: Iterable[AgentJoined]) -> Iterator[Instruction]:
        """Act on rewinds that agents know of and this root agent does not."""
        run = self.state.job.run
        told = [one for agent in agents for one in agent.left if one.lineage.run == run]
        self.run.repeats.learn((), told)
        yield from self._leave(told)

    def _leave(self, told: Sequence[VersionId]) -> Iterator[Instruction]:
        """Save nothing that rewinds left behind, and tell the tier."""
        before = self.state.discarded.left
        if (version := self.run.leave_behind(told)) is not None:
            yield from self.run.saver.forget_left(version, state=self.state)
        if self.state.discarded.left != before:
            yield WriteState(state=self.state)
            yield from disown(self.state, self.run.living)

    def on_unheard(
        self, at_s: float, agents: Iterable[AgentJoined], *, lost: Sequence[str] = ()
    ) -> Iterator[Instruction]:
        """Act on wrong sums that agents know of and this root agent does not."""
        if (said := _unheard(self.state, agents)) is not None:
            yield from self._on_wrong_sums(at_s, said, lost=lost)

    def _on_wrong_sums(
        self, at_s: float, said: events.WrongSums, *, lost: Sequence[str] = ()
    ) -> Iterator[Instruction]:
        """Go on from a verified version without a machine that computes wrong, or end the run."""
        if self.state.phase not in ACTIVE or self.state.read_settings().on_wrong_sums == "warn":
            return
        left = left_by(said, run=self.state.job.run)
        self.run.repeats.learn((), [left])
        self.run.leave_behind([left])
        yield from self.run.saver.forget_left(said.version, state=self.state)
        if reason := _reason_to_end(said, self.state):
            yield from self.ending.fail(at_s, reason, cause="wrong_sums")
            return
        self.run.state = _without(self.state, said.nodes)
        for node in said.nodes:
            yield Emit(event=events.NodeExcluded(name=node, reason=str(said)))
        yield from self.lifecycle.restart(at_s, cause="wrong_sums", lost=(*said.nodes, *lost))
        yield from disown(self.state, self.run.living)

    def on_word(
        self, at_s: float, said: RankProtected | EndReached | ScriptFinished
    ) -> Iterator[Instruction]:
        """Note that a rank is protected, or is at an end; with all scripts the run ends."""
        if isinstance(said, RankProtected):
            yield from self._note_protected(at_s, said)
            return
        if isinstance(said, EndReached):
            self.run.watch.ends.hear(said)
            return
        self.run.watch.ends.finish(said.rank)
        self.run.watch.finished.add(said.rank)
        yield from self.lifecycle.finish_if_all_did(at_s)

    # -- how they fail -------------------------------------------------------------------------

    def on_exit(self, at_s: float, node: str, exited: WorkerEnded) -> Iterator[Instruction]:
        if (
            self.state.phase not in {"starting", "running"}
            or exited.rank in self.run.watch.finished
        ):
            return
        if refused := list(self.run.adopt(self.run.resizes.refuse(self.state, exited))):
            yield from refused
            yield from self.lifecycle.restart(at_s, cause="resize_refused", lost=[])
            return
        if apart := self._apart_at(at_s, exited):
            yield from self._on_apart(at_s, apart)
            return
        verdict = judge_exit(self.state, exited, node=node, spares=self.run.spares())
        output = tuple(exited.output.splitlines())
        yield from self.lifecycle.act_on(at_s, verdict, cause="worker_exited", output=output)

    def on_trouble(
        self, at_s: float, node: str, said: Severed | AllLive | RestoreFailed
    ) -> Iterator[Instruction]:
        """Act on a copy that could not be used, or a broken connection between workers.

        While they start, a connection's error ends the script: one that comes each time is counted
        there.
        """
        match said:
            case RestoreFailed():
                yield from self._on_failed_restore(at_s, node, said)
            case AllLive() if self.run.roll_call.hear(node) and self.state.phase == "running":
                yield from self.lifecycle.restart(at_s, cause=SEVERED, lost=[])
            case Severed() if (
                self.state.phase == "running" and said.rank not in self.run.watch.finished
            ):
                yield from self.run.roll_call.begin(at_s, self.state, self.run.living)

    def _on_failed_restore(
        self, at_s: float, node: str, said: RestoreFailed
    ) -> Iterator[Instruction]:
        """Plan again: without a copy in memory that is bad; with the tier's version, but later.

        A saved version is never rejected without a user's word, damaged or not: another machine may
        read it right, and the user may have another copy of it.
        """
        before = self.state
        lineage = NO_LINEAGE if self.run.plan is None else self.run.plan.lineage
        if said.is_unread and self.run.watch.restored:
            reason = f"rank {said.rank} on {node}, where others read: {said.reason}"
            verdict = judge_machine(before, node, reason=reason, spares=self.run.spares())
            self._pause_tier(at_s, said.reason)
            yield from self.lifecycle.act_on(at_s, verdict, cause="restore_failed")
            return
        known = [
            copy
            for copy in good_copies(before, self.run.inventory)
            if (copy.shard, copy.version, copy.lineage) == (said.shard, said.version, lineage)
        ]
        if said.holder is None:
            self._pause_tier(at_s, said.reason)
        else:
            self.run.state = without_copy(before, said, lineage, known)
        if not said.is_unread:
            yield from rejections(before, self.state, said, known)
        yield from self.lifecycle.restart(at_s, cause="restore_failed", lost=[])

    def _pause_tier(self, at_s: float, reason: str) -> None:
        """Try the version that the plan loads from the persistent tier again after a pause."""
        if (plan := self.run.plan) is not None:
            tried = VersionId(version=plan.version or 0, lineage=plan.lineage)
            self.lifecycle.tier_pause = TierPause.after(
                self.lifecycle.tier_pause, tried, reason, at_s=at_s
            )

    def _say_if_unprotected(self, at_s: float) -> Iterator[Instruction]:
        """Emit once that nothing is kept of a script that calls `protect` late, or never."""
        has_begun = self.state.setup.settings is not None or self.run.watch.protected
        is_late = self.state.phase == "starting" and at_s - self.run.entered_s >= UNPROTECTED_S
        if (
            has_begun
            or not is_late
            or self.run.watch.is_unprotected_told
            or self.run.watch.pulses.is_any_in_protect
        ):
            return
        self.run.watch.is_unprotected_told = True
        text = (
            f"no rank has called gemini_lab.protect within {UNPROTECTED_S:.0f} s of its start: "
            "until they do, the script runs unprotected, and nothing is kept of what it computes"
        )
        yield Emit(event=events.Note(text=text))

    def check_progress(self, at_s: float) -> Iterator[Instruction]:
        """End hung workers (SIGSTOP, deadlock) and start again.

        Those that wait for them in a collective may go on in their processes: it can be ended.
        """
        limits = self._limits
        ranks, finished = self.state.ranks, self.run.watch.finished
        for told in (self.run.watch.pulses.late, self.run.watch.pulses.standing):
            if text := told(at_s, limits, ranks=ranks, finished=finished):
                yield Emit(event=events.Note(text=text))
        yield from self._say_if_unprotected(at_s)
        hung = self.run.watch.pulses.hung(at_s, limits, ranks=ranks, finished=finished)
        if self.run.watch.ends.are_any and (apart := self.run.watch.ends.apart(self._places(at_s))):
            does_nothing = self.run.watch.pulses.stand(at_s, limits, ranks=apart.behind)
            if hung or (apart.is_certain and does_nothing):
                yield from self._on_apart(at_s, apart)
                return
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
            spares=self.run.spares(),
            is_past=hung[0].is_past,
        )
        if verdict.left is None and self.run.watch.pulses.read_tier([one.rank for one in hung]):
            self._pause_tier(at_s, hung[0].seen)  # a store that hangs is no fault of the script
            yield from self.lifecycle.restart(at_s, cause=HUNG, lost=[])
            return
        waiting = self.run.watch.pulses.waiting
        ends = [rank for rank in ranks if rank not in waiting]
        yield from self.lifecycle.act_on(at_s, verdict, cause=HUNG, ends=ends)

    def _apart_at(self, at_s: float, exited: WorkerEnded) -> Apart | None:
        """Return the rank that ended earlier and may have made this worker end."""
        if not is_of_apart(exited):
            return None
        places = self._places(at_s)
        if exited.code == 0:
            return self.run.watch.ends.gone(exited.rank, places)
        apart = self.run.watch.ends.apart(places)
        is_meant = exited.code < 0 or self.state.faults.attempts > 0
        return apart if apart is not None and (apart.is_certain or is_meant) else None

    def _on_apart(self, at_s: float, apart: Apart) -> Iterator[Instruction]:
        """Name a rank that ended while others train on, and start all again, once."""
        first = apart.ended[0]
        yield Emit(
            event=events.RanksApart(
                rank=first, epoch=self.state.epoch, iteration=apart.iteration, seen=apart.seen
            )
        )
        verdict = judge_apart(self.state, apart, spares=self.run.spares())
        yield from self.lifecycle.act_on(at_s, verdict, cause="ranks_apart")

    @property
    def _limits(self) -> Limits:
        """Limits on how long a worker may stand still now."""
        settings = self.state.read_settings()
        is_running = self.state.phase == "running"  # the first step after a start has no pace
        return Limits(
            stopped_s=settings.min_progress_s,
            step_s=self.run.watch.progress.step_limit_s(settings) if is_running else None,
            idle_s=settings.idle_s,
        )

    def _places(self, at_s: float) -> Places:
        return self.run.watch.pulses.places(at_s, self._limits, node_of=self.state.seats.node_of)


def _unheard(state: RootState, agents: Iterable[AgentJoined]) -> events.WrongSums | None:
    """Return wrong sums that these agents know of and no root agent has acted on.

    Workers say it once, and stand still: a root agent that was lost just then, or a connection,
    took it along.
    """
    for agent in agents:
        said = agent.wrong_sums
        if said is None or said.epoch != state.reached.trained:
            continue
        if not said.nodes or {*said.nodes} - {*state.nodes.wrong}:
            return said
    return None


def _without(state: RootState, nodes: tuple[str, ...]) -> RootState:
    """Return the state in which these nodes are never used again."""
    return state.with_parts(
        replace(
            state.nodes,
            wrong=tuple(dict.fromkeys((*state.nodes.wrong, *nodes))),
            excluded=tuple(dict.fromkeys((*state.nodes.excluded, *nodes))),
        ),
        replace(state.faults, attempts=0, offences=(), barren=()),
    )


def _reason_to_end(said: events.WrongSums, state: RootState) -> str:
    """Return why the run ends because of it; empty if it does not."""
    if state.read_settings().on_wrong_sums == "stop":
        return f'{said} (the run ends here as "on_wrong_sums": "stop" says)'
    if said.goes_back:
        return ""
    return f"{said}; train on three machines or more, so that two can outvote the third"
