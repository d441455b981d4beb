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
from gemini_lab.simulator.cluster import Cluster, Part
from gemini_lab.simulator.durations import ANNOUNCED, Durations
from gemini_lab.simulator.failures import Outage
from gemini_lab.simulator.following import Followed
from gemini_lab.simulator.outcome import Outcome, Recovery
from gemini_lab.simulator.policy import Policy
from gemini_lab.simulator.progress import Segment
from gemini_lab.simulator.recorder import Recorder
from gemini_lab.simulator.workload import Workload

Waits = Generator[simpy.Event, None, None]


@dataclass(frozen=True, slots=True)
class _Machine:
    """Why training is interrupted: a machine came for an empty position."""


@dataclass(frozen=True, slots=True)
class _Done:
    """Why training is interrupted: all iterations are done."""


MACHINE: Final = _Machine()
DONE: Final = _Done()
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
        following = policy.following
        self.followed = None if following is None else Followed(following, workload.nodes)
        self.by_iteration: list[Outage] = []
        self.segment: Segment | None = None  # while training runs
        self.segment_start_s = 0.0
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
            return self.segment.progress_at(elapsed_s)
        version = self.cluster.plan(self.cluster.concerned()).version or 0
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
        can_move = self.segment is not None and outage.kind in {"gpu", "hardware"}
        if can_move and self.durations.is_announced():
            outage = replace(outage, kind="gpu", failure=ANNOUNCED)
        self.failures += 1
        self.struck["failures"] += 1
        if self.followed is not None:
            for position in struck:
                self.followed.failed(position, self.env.now)
        if outage.kind != "software":
            self._lose(struck, outage)
        return outage

    def _lose(self, positions: Sequence[int], outage: Outage) -> None:
        self.struck["nodes"] += len(positions)
        self.unordered += len(positions)
        for position in positions:
            name = self.cluster.lose(position, memory=outage.kind != "gpu")
            self._say(NodeLost(name=name, cause=outage.cause))

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
        nodes = self.workload.nodes
        factor = nodes / max(1, nodes - self._idle_nodes(self.cluster.vacant))
        return Segment(
            version=version,
            iteration_s=factor * self.workload.iteration_s + self.policy.slowdown_s,
            policy=self.policy,
        )

    def _idle_nodes(self, vacant: Collection[int]) -> int:
        """Nodes that do not train: on empty positions, and all that can only train with them."""
        unit = self.policy.shrink_unit
        return len({position // unit for position in vacant}) * unit

    def _train(self, segment: Segment) -> Generator[simpy.Event, None, Cause]:
        """Train until something stops it; gives what."""
        self.segment, self.segment_start_s = segment, self.env.now
        try:
            while (stop := self._next_stop()) is not None:
                elapsed_s = self.env.now - self.segment_start_s
                yield self.env.timeout(max(0.0, segment.stands_at_s(stop) - elapsed_s))
                if not self.by_iteration or stop != self.by_iteration[0].iteration:
                    return DONE
                struck = self._strike(self.by_iteration.pop(0))
                if struck is not None:
                    return struck
            yield self.env.event()
        except simpy.Interrupt as interrupt:
            cause: Cause = interrupt.cause
            return cause
        return DONE  # never: nothing triggers that event

    def _next_stop(self) -> float | None:
        """The iteration after which training fails or ends, if it is known."""
        stops = [o.iteration for o in self.by_iteration[:1] if o.iteration is not None]
        stops += [] if self.iterations is None else [float(self.iterations)]
        return min(stops, default=None)

    def _note_training(self, segment: Segment, elapsed_s: float) -> None:
        """Keep in mind which versions a segment made whole."""
        if self.policy.memory is not None:
            whole = segment.newest_whole(self.durations.memory(self.policy.memory), elapsed_s)
            if whole is not None:
                self.cluster.memory_version = whole
        if self.policy.persistent is not None:
            whole = segment.newest_whole(self.policy.persistent, elapsed_s)
            if whole is not None:
                self.cluster.persisted = whole
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
        yield from self._step("warm_up", steps.warm_up_s)
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
        return self.policy.shrinks and self._idle_nodes(missing) < self.workload.nodes

    def _deliver(self) -> Waits:
        """A machine is ordered and comes."""
        self._say(NodeRequested(reason="a machine was lost"))
        yield self.env.timeout(self.draw.uniform(*self.workload.replacement_s))
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
        segment = replace(segment, version=version)
        self.stopped = (segment, 0.0)
        try:
            yield from self._step("rejoin", self.durations.rejoin_s)
            self.cluster.blank = set(self.cluster.vacant)
        except simpy.Interrupt as interrupt:
            version = yield from self._recover(interrupt.cause, segment, 0.0)
        return version

    def _redo_s(self, segment: Segment, elapsed_s: float, version: int) -> float:
        """How long training took from `version` to where it stood in `segment`."""
        if version >= segment.version:
            return elapsed_s - segment.reached_s(version)
        return elapsed_s + replace(segment, version=version).reached_s(segment.version)

    def _say(self, event: AnyEvent) -> None:
        if self.recorder:
            self.recorder.say(self.env.now, event)
