"""One simulated run: training, failures, recoveries and machines that arrive, as processes.

Only these are events; what training does between two of them is computed (`progress.Segment`), and
a recovery looks at the groups that lost something (`cluster.Cluster`). So 30 days of 10,000
machines take seconds.
"""

import random
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import simpy

from gemini_lab.log.events import AnyEvent, NodeJoined, NodeLost, NodeRequested
from gemini_lab.placement import Placement
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.simulator.ailing import Stragglers, Trust, Wrong
from gemini_lab.simulator.cluster import Cluster, Part
from gemini_lab.simulator.durations import ANNOUNCED, FOUND, Durations
from gemini_lab.simulator.failures import Outage
from gemini_lab.simulator.following import Followed
from gemini_lab.simulator.outcome import Outcome, Recovery
from gemini_lab.simulator.policy import Policy
from gemini_lab.simulator.progress import Segment
from gemini_lab.simulator.recorder import Recorder
from gemini_lab.simulator.selecting import Way, select
from gemini_lab.simulator.workload import Workload

Waits = Generator[simpy.Event, None, None]


@dataclass(frozen=True, slots=True)
class _Machine:
    """Why training is interrupted: a machine came for an empty position."""


@dataclass(frozen=True, slots=True)
class _Done:
    """Why training is interrupted: all iterations are done."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """Why training looks at the clock anew: machines became slower or faster."""


MACHINE: Final = _Machine()
DONE: Final = _Done()
PACE: Final = _Pace()
Cause = Outage | _Machine | _Done


class Training:
    """A run under way.

    Args:
        workload: The job and its cluster.
        policy: Who protects it.
        placement: Who keeps whose replica.
        seed: Of all that is drawn.
        recorder: Is told what happens.
        iterations: Where training ends; `None`: it goes on.
    """

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        placement: Placement,
        *,
        seed: int,
        recorder: Recorder | None,
        iterations: int | None,
    ) -> None:
        self.workload, self.policy = workload, policy
        self.recorder = recorder
        self.iterations = iterations
        self.draw = random.Random(seed)
        self.durations = Durations(workload, policy, seed=seed)
        self.env = simpy.Environment()
        self.cluster = Cluster(placement, standbys=workload.standbys)
        self.stragglers = Stragglers()
        self.trust = Trust(policy)
        following = policy.following
        self.followed = None if following is None else Followed(following, workload.nodes)
        self.way: Way | None = None  # in which it trains without machines, if ways were given
        self.by_iteration: list[Outage] = []
        self.segment: Segment | None = None  # while training runs
        self.segment_start_s = 0.0
        self.usual_s = workload.iteration_s  # an iteration, if no machine were slow
        self.under_way = ("", 0.0)
        self.arrival = self.env.event()
        self.stopped: tuple[Segment, float] | None = None  # where training stood, while it does not
        self.unordered = 0  # lost machines for which no replacement is ordered yet
        self.failures = 0
        self.struck: Counter[str] = Counter()  # failures and lost nodes since the last recovery
        self.lost_s = 0.0
        self.down_s: Counter[str] = Counter()
        self.recoveries: list[Recovery] = []

    def outcome(self, outages: Sequence[Outage], *, longest_s: float) -> Outcome:
        """Run until `longest_s`, or until all iterations are done, and add it all up.

        Args:
            outages: In order of time.
            longest_s: When the run ends at the latest.
        """
        self.by_iteration = sorted(
            (outage for outage in outages if outage.iteration is not None),
            key=lambda outage: outage.iteration or 0.0,
        )
        self.trainer = self.env.process(self._run())
        self.env.process(self._fail([o for o in outages if o.iteration is None]))
        self.env.run(until=self.env.any_of([self.trainer, self.env.timeout(longest_s)]))
        versions = self._close()
        return Outcome(
            policy=self.policy,
            wall_s=self.env.now,
            versions=versions,
            productive_s=versions * self.workload.iteration_s,
            lost_s=self.lost_s,
            down_s=dict(self.down_s),
            failures=self.failures,
            recoveries=tuple(self.recoveries),
            nodes=self.workload.nodes,
            standbys=self.workload.standbys,
            events=self.recorder.finish(self.env.now, int(versions)) if self.recorder else (),
        )

    def _close(self) -> float:
        """Books at the end of the run; gives the versions that count."""
        if self.segment is not None:
            elapsed_s = self.env.now - self.segment_start_s
            self._note_training(self.segment, elapsed_s)
            reached = self.segment.progress_at(elapsed_s)
            sound = self.trust.first_bad - 1
            if reached > sound:  # what holds wrong sums has to be repeated
                self.lost_s += self._redo_s(self.segment, elapsed_s, int(sound))
            return min(reached, sound)
        version = self.cluster.plan(self.cluster.concerned()).version or 0
        version = int(min(version, self.trust.first_bad - 1))
        if self.stopped is not None:
            self.lost_s += self._redo_s(*self.stopped, version)
        name, start_s = self.under_way
        self.down_s[name] += self.env.now - start_s
        return float(version)

    # -- what fails ------------------------------------------------------------------------------

    def _fail(self, outages: Sequence[Outage]) -> Waits:
        began_s = self.durations.first_start_s
        for outage in outages:
            yield self.env.timeout(max(0.0, began_s + outage.at_s - self.env.now))
            struck = self._strike(outage)
            if struck is not None and self.trainer.is_alive:
                self.trainer.interrupt(struck)

    def _strike(self, outage: Outage) -> Outage | None:
        """Break what the outage names, as far as it is there; `None`: nothing was."""
        struck = [p for p in outage.positions if self.cluster.is_up(p)]
        if not struck:
            return None
        if outage.kind in {"straggler", "wrong_sums"}:
            self.failures += 1
            (self._slow_down if outage.kind == "straggler" else self._spoil)(outage)
            return None
        can_move = self.segment is not None and outage.kind in {"gpu", "hardware"}
        if can_move and self.durations.is_announced():
            outage = replace(outage, kind="gpu", failure=ANNOUNCED)
        self.failures += 1
        self._take_out(struck, outage)
        return outage

    def _take_out(self, positions: Sequence[int], outage: Outage) -> None:
        self.struck["failures"] += 1
        if self.followed is not None:
            for position in positions:
                self.followed.failed(position, self.env.now)
        if outage.kind != "software":
            self._lose(positions, outage)

    def _lose(self, positions: Sequence[int], outage: Outage) -> None:
        self.struck["nodes"] += len(positions)
        self.unordered += len(positions)
        for position in positions:
            name = self.cluster.lose(position, memory=outage.kind != "gpu")
            self.stragglers.leave(position)
            self.trust.leave(position)
            self._say(NodeLost(name=name, cause=outage.cause))

    def _slow_down(self, outage: Outage) -> None:
        self.stragglers.slow.append(outage)
        self._change_pace()
        if outage.lasts_s is not None:
            self.env.process(self._speed_up(outage, outage.lasts_s))
        if self.policy.drains_slow_s is not None:
            self.env.process(self._drain(outage, self.policy.drains_slow_s))

    def _speed_up(self, outage: Outage, after_s: float) -> Waits:
        yield self.env.timeout(after_s)
        if self.stragglers.end(outage):
            self._change_pace()

    def _drain(self, outage: Outage, after_s: float) -> Waits:
        """Exchange a machine that is still slow then, once training runs."""
        yield self.env.timeout(after_s)
        while outage in self.stragglers.slow:
            if self.segment is not None:
                gone = replace(outage, kind="gpu", failure=ANNOUNCED, factor=1.0, lasts_s=None)
                self._take_out(gone.positions, gone)
                self._interrupt(gone)
                return
            yield self.env.timeout(after_s)

    def _change_pace(self) -> None:
        if self.segment is not None:
            elapsed_s = self.env.now - self.segment_start_s
            self.segment = self.segment.at_pace(self._iteration_s(), elapsed_s)
            self._interrupt(PACE)

    def _interrupt(self, cause: Cause | _Pace) -> None:
        if self.trainer.is_alive and self.env.active_process is not self.trainer:
            self.trainer.interrupt(cause)

    def _spoil(self, outage: Outage) -> None:
        newest = None
        if self.segment is not None:
            newest = self.segment.newest_at(self.env.now - self.segment_start_s)
            self._interrupt(PACE)  # there may be an iteration now after which it is found
        wrong = self.trust.spoil(outage, newest=newest)
        if outage.lasts_s is not None:
            self.env.process(self._notice(wrong, outage.lasts_s))

    def _notice(self, wrong: Wrong, after_s: float) -> Waits:
        """People find what a machine spoils, unless that was found, or left behind, before."""
        yield self.env.timeout(after_s)
        if wrong in self.trust.wrong:
            self._interrupt(self._find(wrong))

    def _find(self, wrong: Wrong) -> Outage:
        """A machine is known to compute wrong: it is taken out, if it is still there."""
        found = replace(
            wrong.outage, kind="hardware" if wrong.is_there else "software", failure=FOUND
        )
        self._take_out(found.positions, found)
        return found

    # -- training --------------------------------------------------------------------------------

    def _run(self) -> Waits:
        """Train to the end, recovering from each interruption."""
        if self.policy.times is not None:
            yield from self._step("first_start", self.durations.first_start_s)
        version = 0
        while True:
            segment = self._segment(version)
            if self.cluster.vacant and self.cluster.standbys:  # came while training stood still
                version = yield from self._rejoin(segment, 0.0)
                continue
            cause = yield from self._train(segment)
            if isinstance(cause, _Done):
                return
            elapsed_s = self.env.now - self.segment_start_s
            segment = self.segment or segment  # its pace may have changed
            self.segment, self.stopped = None, (segment, elapsed_s)
            self._note_training(segment, elapsed_s)
            if isinstance(cause, _Machine):
                version = yield from self._rejoin(segment, elapsed_s)
            else:
                if cause.failure == ANNOUNCED:  # everything was sent before it went
                    self.cluster.memory_version = segment.newest_at(elapsed_s)
                version = yield from self._recover(cause, segment, elapsed_s)

    def _segment(self, version: int) -> Segment:
        """Training from `version` on, as fast as the machines that are there can."""
        self.trust.begin(version)
        self.usual_s = self._iteration_s(slowest=1.0)
        return Segment(version=version, iteration_s=self._iteration_s(), policy=self.policy)

    def _iteration_s(self, *, slowest: float | None = None) -> float:
        nodes = self.workload.nodes
        if self.way is None:
            factor = nodes / max(1, nodes - self._idle_nodes(self.cluster.vacant))
        else:
            factor = self.way.factor(self.cluster.vacant, nodes)
        factor *= self.stragglers.factor if slowest is None else slowest
        return factor * self.workload.iteration_s + self.policy.slowdown_s

    def _idle_nodes(self, vacant: Collection[int]) -> int:
        """Nodes that do not train: on empty positions, and all that can only train with them."""
        unit = self.policy.shrink_unit
        return len({position // unit for position in vacant}) * unit

    def _train(self, segment: Segment) -> Generator[simpy.Event, None, Cause]:
        """Train until something stops it; gives what."""
        self.segment, self.segment_start_s = segment, self.env.now
        while True:
            stop, cause = self._next_stop(self.segment)
            elapsed_s = self.env.now - self.segment_start_s
            try:
                if cause is None:
                    yield self.env.event()  # nothing triggers it
                yield self.env.timeout(max(0.0, self.segment.stands_at_s(stop) - elapsed_s))
            except simpy.Interrupt as interrupt:
                if interrupt.cause is PACE:
                    continue
                came: Cause = interrupt.cause
                return came
            if isinstance(cause, Outage):
                self.by_iteration.remove(cause)
                cause = self._strike(cause)
            elif isinstance(cause, Wrong):
                cause = self._find(cause)
            if cause is not None:
                return cause

    def _next_stop(self, segment: Segment) -> tuple[float, Cause | Wrong | None]:
        """The iteration after which training fails or ends, if it is known, and why."""
        stops: list[tuple[float, Cause | Wrong]] = [
            (o.iteration, o) for o in self.by_iteration[:1] if o.iteration is not None
        ]
        if (found := self.trust.next_found(segment.version)) is not None:
            stops.append(found)
        stops += [] if self.iterations is None else [(float(self.iterations), DONE)]
        return min(stops, key=lambda stop: stop[0], default=(0.0, None))

    def _note_training(self, segment: Segment, elapsed_s: float) -> None:
        """Keep in mind which versions a segment made whole."""
        kept = stored = None
        if self.policy.memory is not None:
            kept = segment.newest_whole(self.durations.memory(self.policy.memory), elapsed_s)
            if kept is not None:
                self.cluster.memory_version = kept
        if self.policy.persistent is not None:
            stored = segment.newest_whole(self.policy.persistent, elapsed_s)
            if stored is not None:
                self.cluster.persisted = stored
        self.trust.note(segment.version, memory=kept, stored=stored)
        if self.recorder:
            self.recorder.training(segment, self.env.now - elapsed_s, elapsed_s)

    # -- recovery --------------------------------------------------------------------------------

    def _recover(
        self, outage: Outage, segment: Segment, elapsed_s: float
    ) -> Generator[simpy.Event, None, int]:
        """From a failure until training can go on; gives the version to go on from."""
        failed_s = self.env.now
        if self.recorder:
            reached = segment.newest_at(elapsed_s)
            self.recorder.failed(
                failed_s, cause=outage.cause, lost=sorted(self.cluster.dead), reached=reached
            )
        while True:
            if outage.failure == FOUND:
                self.cluster.memory_version, self.cluster.persisted = self.trust.go_back()
            try:
                plan, retrieval_s = yield from self._attempt(outage)
                break
            except simpy.Interrupt as interrupt:
                outage = interrupt.cause
        version = plan.version or 0
        lost_s = self._redo_s(segment, elapsed_s, version)
        self.lost_s += lost_s
        recovery = Recovery(
            at_s=failed_s,
            failures=self.struck["failures"],
            lost_nodes=self.struck["nodes"],
            tier=plan.tier,
            version=version,
            lost_s=lost_s,
            retrieval_s=retrieval_s,
            duration_s=self.env.now - failed_s,
        )
        self.struck.clear()
        self.recoveries.append(recovery)
        self._follow()
        if self.recorder:
            self.recorder.recovered(self.env.now, recovery, segment.newest_at(elapsed_s))
        return version

    def _follow(self) -> None:
        """All start anew, and every holder has its copies: these go where the risk is."""
        if self.followed is None or self.cluster.vacant:
            return
        other = self.followed.next_placement(self.cluster.placement, self.env.now)
        if other is not None:
            self.cluster.place(other)

    def _attempt(self, outage: Outage) -> Generator[simpy.Event, None, tuple[RecoveryPlan, float]]:
        """One try at a recovery, in the order of the paper's Fig. 14."""
        steps = self.durations.steps(outage)
        yield from self._step("detect", steps.detect_s)
        if steps.fence_s:
            yield from self._step("fence", steps.fence_s)
        yield from self._step("serialise", steps.serialise_s)
        for _ in range(self.unordered):
            self.env.process(self._deliver())
        self.unordered = 0
        self.way = None
        part, plan = self._plan()
        while plan.missing and not self._can_shrink(part, plan):
            if self.recorder:
                self.recorder.waiting(self.env.now, plan.missing, self.cluster.standbys)
            yield from self._step("reserve", self.arrival)
            part, plan = self._plan()
        moved = self.cluster.moved()
        self.cluster.take(part, plan)
        if self.recorder:
            self.recorder.planned(self.env.now, plan)
        if steps.start_s:
            yield from self._step("start", steps.start_s)
        retrieval_s = self.durations.retrieval_s(plan, steps, moved=len(moved))
        yield from self._step("retrieve", retrieval_s)
        if self.recorder:
            self.recorder.retrieved(self.env.now, plan, retrieval_s)
        self.cluster.loaded(plan)
        yield from self._step(
            "warm_up", steps.warm_up_s if self.way is None else self.way.restart_s
        )
        return plan, retrieval_s

    def _plan(self) -> tuple[Part, RecoveryPlan]:
        """What is loaded from where; a recorder is told of every shard."""
        part = self.cluster.everything if self.recorder else self.cluster.concerned()
        return part, self.cluster.plan(part)

    def _step(self, name: str, wait: float | simpy.Event) -> Waits:
        """Let time pass, also in the books when it is interrupted."""
        start_s = self.env.now
        self.under_way = (name, start_s)
        try:
            yield self.env.timeout(wait) if isinstance(wait, float | int) else wait
        finally:
            self.down_s[name] += self.env.now - start_s
            if self.recorder:
                self.recorder.step(name, start_s, self.env.now)

    def _can_shrink(self, part: Part, plan: RecoveryPlan) -> bool:
        missing = {part.positions[place] for place in plan.missing}
        if self.policy.ways:
            self.way = select(
                self.policy.ways,
                missing | self.cluster.vacant,
                self.workload.nodes,
                wait_s=self.durations.mean_replacement_s,
                restart_s=self.durations.restart_s,
            )
            return self.way is not None
        return self.policy.shrinks and self._idle_nodes(missing) < self.workload.nodes

    def _deliver(self) -> Waits:
        """A machine is ordered and comes."""
        self._say(NodeRequested(reason="a machine was lost"))
        yield self.env.timeout(self.durations.replacement_s(self.draw))
        self._say(NodeJoined(name=self.cluster.arrive()))
        self.arrival.succeed()
        self.arrival = self.env.event()
        if self.segment is not None and self.cluster.vacant and self.trainer.is_alive:
            self.trainer.interrupt(MACHINE)

    def _rejoin(self, segment: Segment, elapsed_s: float) -> Generator[simpy.Event, None, int]:
        """A shrunk job takes new machines in; the running iteration is repeated."""
        version = segment.newest_at(elapsed_s)
        self.lost_s += self._redo_s(segment, elapsed_s, version)
        self.cluster.fill()
        self.cluster.memory_version = version
        segment = replace(segment, version=version, leg=None)
        self.stopped = (segment, 0.0)
        try:
            rejoin_s = self.durations.rejoin_s if self.way is None else self.way.rejoin_s
            yield from self._step("rejoin", rejoin_s)
            self.cluster.blank = set(self.cluster.vacant)
        except simpy.Interrupt as interrupt:
            version = yield from self._recover(interrupt.cause, segment, 0.0)
        return version

    def _redo_s(self, segment: Segment, elapsed_s: float, version: int) -> float:
        """How long training took from `version` to where it stood in `segment`.

        What was done before the segment counts as if no machine had been slow then.
        """
        if version >= segment.version:
            return elapsed_s - segment.reached_s(version)
        before = Segment(version=version, iteration_s=self.usual_s, policy=self.policy)
        return elapsed_s + before.reached_s(segment.version)

    def _say(self, event: AnyEvent) -> None:
        if self.recorder:
            self.recorder.say(self.env.now, event)
