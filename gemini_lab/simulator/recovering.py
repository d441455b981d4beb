"""Recoveries of a simulated run: from a failure, or a new machine, until training can go on."""

from collections.abc import Generator
from dataclasses import replace

import simpy

from gemini_lab.log.events import NodeJoined, NodeRequested
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.simulator.machines import ClusterPart
from gemini_lab.simulator.outages import Outage
from gemini_lab.simulator.outcome import SimulatedRecovery
from gemini_lab.simulator.policy import select
from gemini_lab.simulator.run_state import RunState, Waits, Word
from gemini_lab.simulator.segments import TrainingSegment


class Recovering:
    """Brings a run back."""

    def __init__(self, run: RunState) -> None:
        self._run = run

    def recover(
        self, outage: Outage, segment: TrainingSegment, elapsed_s: float
    ) -> Generator[simpy.Event, None, int]:
        """Recover from a failure; return the version to go on from."""
        run, failed_s = self._run, self._run.env.now
        reached = segment.newest_at(elapsed_s)
        if run.recorder:
            lost = sorted(run.cluster.dead)
            run.recorder.failed(
                failed_s, cause=outage.cause or f"{outage.kind} failure", lost=lost, reached=reached
            )
        plan, retrieval_s = yield from self._attempts(outage)
        version = plan.version or 0
        lost_s = run.redo_s(segment, elapsed_s, version)
        run.lost_s += lost_s
        recovery = SimulatedRecovery(
            at_s=failed_s,
            failures=run.struck["failures"],
            lost_nodes=run.struck["nodes"],
            tier=plan.tier,
            version=version,
            lost_s=lost_s,
            retrieval_s=retrieval_s,
            duration_s=run.env.now - failed_s,
        )
        run.struck.clear()
        run.recoveries.append(recovery)
        self._follow()
        if run.recorder:
            run.recorder.recovered(run.env.now, recovery, reached)
        return version

    def rejoin(
        self, segment: TrainingSegment, elapsed_s: float
    ) -> Generator[simpy.Event, None, int]:
        """Grow a shrunk job by new machines; the running iteration is repeated."""
        run = self._run
        version = segment.newest_at(elapsed_s)
        run.lost_s += run.redo_s(segment, elapsed_s, version)
        run.cluster.fill()
        run.cluster.memory_version = version
        segment = replace(segment, version=version)
        run.stopped = (segment, 0.0)
        try:
            rejoin_s = run.workload.warm_up_s if run.way is None else run.way.rejoin_s
            yield from run.step("rejoin", rejoin_s)
            run.cluster.blank = set(run.cluster.vacant)
        except simpy.Interrupt as interrupt:
            version = yield from self.recover(interrupt.cause, segment, 0.0)
        return version

    def _attempts(self, outage: Outage) -> Generator[simpy.Event, None, tuple[RecoveryPlan, float]]:
        """Try until nothing fails meanwhile; return the plan and the retrieval's seconds."""
        while True:
            try:
                return (yield from self._attempt(outage))
            except simpy.Interrupt as interrupt:
                outage = interrupt.cause

    def _attempt(self, outage: Outage) -> Generator[simpy.Event, None, tuple[RecoveryPlan, float]]:
        """Try a recovery once, in the order of the paper's Fig. 14."""
        run = self._run
        steps = run.durations.steps(outage)
        yield from run.step("detect", steps.detect_s)
        if steps.fence_s:
            yield from run.step("fence", steps.fence_s)
        yield from run.step("serialise", steps.serialise_s)
        for _ in range(run.unordered):
            run.env.process(self._deliver())
        run.unordered = 0
        part, plan = yield from self._planned()
        moved = run.cluster.moved()
        run.cluster.take(part, plan)
        if run.recorder:
            run.recorder.planned(run.env.now, plan)
        if steps.start_s:
            yield from run.step("start", steps.start_s)
        retrieval_s = run.durations.retrieval_s(plan, steps, moved=len(moved))
        yield from run.step("retrieve", retrieval_s)
        if run.recorder:
            run.recorder.retrieved(run.env.now, plan, retrieval_s)
        run.cluster.loaded(plan)
        yield from run.step("warm_up", steps.warm_up_s if run.way is None else run.way.restart_s)
        return plan, retrieval_s

    def _planned(self) -> Generator[simpy.Event, None, tuple[ClusterPart, RecoveryPlan]]:
        """Wait for enough machines, and return what is loaded from where."""
        run = self._run
        run.way = None
        part, plan = self._plan()
        while plan.missing and not self._can_shrink(part, plan):
            if run.recorder:
                run.recorder.waiting(run.env.now, plan.missing, run.cluster.standbys)
            yield from run.step("reserve", run.arrival)
            part, plan = self._plan()
        return part, plan

    def _plan(self) -> tuple[ClusterPart, RecoveryPlan]:
        cluster = self._run.cluster
        part = cluster.everything if self._run.recorder else cluster.concerned()
        return part, cluster.plan(part)

    def _can_shrink(self, part: ClusterPart, plan: RecoveryPlan) -> bool:
        run = self._run
        missing = {part.positions[place] for place in plan.missing}
        if run.policy.ways:
            run.way = select(
                run.policy.ways,
                missing | run.cluster.vacant,
                run.workload.nodes,
                wait_s=run.durations.mean_replacement_s,
                restart_s=run.workload.warm_up_s,
            )
            return run.way is not None
        return run.policy.shrinks and len(missing) < run.workload.nodes

    def _deliver(self) -> Waits:
        run = self._run
        run.say(NodeRequested(reason="a machine was lost"))
        yield run.env.timeout(run.durations.replacement_s(run.draw))
        run.say(NodeJoined(name=run.cluster.arrive()))
        run.arrival.succeed()
        run.arrival = run.env.event()
        if run.segment is not None and run.cluster.vacant:
            run.interrupt(Word.MACHINE)

    def _follow(self) -> None:
        """Move copies to where the risk is, after a restart."""
        run = self._run
        if run.followed is None or run.cluster.vacant:
            return
        other = run.followed.next_placement(run.cluster.placement, run.env.now)
        if other is not None:
            run.cluster.place(other)
