"""One simulated run: training, failures, recoveries and machines that arrive, as processes.

Only these are events; what training does between two of them is computed (`TrainingSegment`), and
a recovery looks at the groups that lost something (`SimulatedCluster`). So 30 days of 10,000
machines take seconds. How a run comes back is in `recovering`.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace

import simpy

from gemini_lab.log.events import NodeLost
from gemini_lab.placement import Placement
from gemini_lab.simulator.durations import ANNOUNCED
from gemini_lab.simulator.outages import Outage
from gemini_lab.simulator.outcome import Outcome
from gemini_lab.simulator.policy import Policy
from gemini_lab.simulator.recorder import RunRecorder
from gemini_lab.simulator.recovering import Recovering
from gemini_lab.simulator.run_state import RunState, Waits, Word
from gemini_lab.simulator.segments import TrainingSegment
from gemini_lab.simulator.workload import Workload

Cause = Outage | Word


class Training:
    """A run under way."""

    def __init__(
        self,
        workload: Workload,  # the job and its cluster
        policy: Policy,  # who protects it
        placement: Placement,  # who keeps whose replica
        *,
        seed: int,  # of all that is drawn
        recorder: RunRecorder | None,  # is told what happens
        iterations: int | None,  # where training ends; `None`: it goes on
    ) -> None:
        self.run = RunState(workload, policy, placement, seed=seed, recorder=recorder)
        self._iterations = iterations
        self._recovering = Recovering(self.run)
        self._by_iteration: list[Outage] = []

    def outcome(self, outages: Sequence[Outage], *, longest_s: float) -> Outcome:
        """Run until `longest_s`, or until all iterations are done, and add it all up."""
        run = self.run
        self._by_iteration = sorted(
            (outage for outage in outages if outage.iteration is not None),
            key=lambda outage: outage.iteration or 0.0,
        )
        run.trainer = run.env.process(self._run())
        run.env.process(self._strike_all([o for o in outages if o.iteration is None]))
        run.env.run(until=run.env.any_of([run.trainer, run.env.timeout(longest_s)]))
        versions = self._close()
        return Outcome(
            policy=run.policy,
            wall_s=run.env.now,
            versions=versions,
            productive_s=versions * run.workload.iteration_s,
            lost_s=run.lost_s,
            down_s=dict(run.down_s),
            failures=run.failures,
            recoveries=tuple(run.recoveries),
            nodes=run.workload.nodes,
            standbys=run.workload.standbys,
            events=run.recorder.finish(run.env.now, int(versions)) if run.recorder else (),
        )

    def _close(self) -> float:
        """Close the books at the end of the run; return the versions that count."""
        run = self.run
        if run.segment is not None:
            elapsed_s = run.elapsed_s
            self._note(run.segment, elapsed_s)
            return run.segment.progress_at(elapsed_s)
        version = run.cluster.plan(run.cluster.concerned()).version or 0
        if run.stopped is not None:
            run.lost_s += run.redo_s(*run.stopped, version)
        name, start_s = run.under_way
        run.down_s[name] += run.env.now - start_s
        return float(version)

    def _run(self) -> Waits:
        """Train to the end, recovering from each interruption."""
        run = self.run
        if run.policy.times is not None:
            yield from run.step("first_start", run.durations.first_start_s)
        version = 0
        while True:
            segment = TrainingSegment(
                version=version, iteration_s=run.iteration_s(), policy=run.policy
            )
            if run.cluster.vacant and run.cluster.standbys:  # came while training stood still
                version = yield from self._recovering.rejoin(segment, 0.0)
                continue
            cause = yield from self._train(segment)
            if cause is Word.DONE:
                return
            elapsed_s = run.elapsed_s
            run.segment, run.stopped = None, (segment, elapsed_s)
            self._note(segment, elapsed_s)
            if isinstance(cause, Outage):
                if cause.failure == ANNOUNCED:  # everything was sent before it went
                    run.cluster.memory_version = segment.newest_at(elapsed_s)
                version = yield from self._recovering.recover(cause, segment, elapsed_s)
            else:
                version = yield from self._recovering.rejoin(segment, elapsed_s)

    def _train(self, segment: TrainingSegment) -> Generator[simpy.Event, None, Cause]:
        run = self.run
        run.segment, run.segment_start_s = segment, run.env.now
        while True:
            stop, cause = self._next_stop()
            try:
                if cause is None:
                    yield run.env.event()  # nothing triggers it
                yield run.env.timeout(max(0.0, segment.stands_at_s(stop) - run.elapsed_s))
            except simpy.Interrupt as interrupt:
                came: Cause = interrupt.cause
                return came
            if isinstance(cause, Outage):
                self._by_iteration.remove(cause)
                cause = self._strike(cause)
            if cause is not None:
                return cause

    def _next_stop(self) -> tuple[float, Cause | None]:
        """Return the iteration after which training fails or ends, if it is known, and why."""
        stops: list[tuple[float, Cause]] = [
            (o.iteration, o) for o in self._by_iteration[:1] if o.iteration is not None
        ]
        stops += [] if self._iterations is None else [(float(self._iterations), Word.DONE)]
        return min(stops, key=lambda stop: stop[0], default=(0.0, None))

    def _note(self, segment: TrainingSegment, elapsed_s: float) -> None:
        """Keep in mind which versions a segment made whole."""
        run = self.run
        if run.policy.memory is not None:
            kept = segment.newest_whole(run.durations.memory(run.policy.memory), elapsed_s)
            if kept is not None:
                run.cluster.memory_version = kept
        if run.policy.persistent is not None:
            stored = segment.newest_whole(run.policy.persistent, elapsed_s)
            if stored is not None:
                run.cluster.persisted = stored
        if run.recorder:
            run.recorder.training(segment, run.env.now - elapsed_s, elapsed_s)

    # -- failures --------------------------------------------------------------------------------

    def _strike_all(self, outages: Sequence[Outage]) -> Waits:
        """Strike each at its time, as a process; they are in order of it."""
        env, began_s = self.run.env, self.run.durations.first_start_s
        for outage in outages:
            yield env.timeout(max(0.0, began_s + outage.at_s - env.now))
            if (struck := self._strike(outage)) is not None:
                self.run.interrupt(struck)

    def _strike(self, outage: Outage) -> Outage | None:
        """Break what the outage names, as far as it is there; return what training stops for."""
        run = self.run
        struck = [p for p in outage.positions if run.cluster.is_up(p)]
        if not struck:
            return None
        can_move = run.segment is not None and outage.kind in {"gpu", "hardware"}
        if can_move and run.durations.is_announced():
            outage = replace(outage, kind="gpu", failure=ANNOUNCED)
        run.failures += 1
        run.struck["failures"] += 1
        if run.followed is not None:
            for position in struck:
                run.followed.failed(position, run.env.now)
        if outage.kind != "software":
            run.struck["nodes"] += len(struck)
            run.unordered += len(struck)
            for position in struck:
                name = run.cluster.lose(position, memory=outage.kind != "gpu")
                run.say(NodeLost(name=name, cause=outage.cause))
        return outage
