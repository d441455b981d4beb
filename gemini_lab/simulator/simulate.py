"""A cluster that trains, fails and recovers, event by event, with the real planners.

Only failures, recoveries and machines that arrive are events; what training does between two of
them is computed (`progress.Segment`), so that 30 days of 1,000 machines take seconds.
"""

import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import simpy

from gemini_lab.errors import ConfigError
from gemini_lab.log.events import AnyEvent, NodeJoined, NodeLost, NodeRequested
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.recovery.plan import Copy, RecoveryPlan, Stored, plan_recovery
from gemini_lab.simulator.failures import DAY_S, Outage
from gemini_lab.simulator.outcome import Outcome, Recovery
from gemini_lab.simulator.policy import POLICIES, Policy
from gemini_lab.simulator.progress import Segment
from gemini_lab.simulator.recorder import Recorder
from gemini_lab.simulator.workload import Workload

Steps = Generator[simpy.Event, None, None]


def simulate(
    workload: Workload,
    policy: Policy,
    outages: Sequence[Outage],
    *,
    days: float,
    placement: Placement | None = None,
    seed: int = 0,
    record: bool = False,
) -> Outcome:
    """Run one policy through a history of failures.

    Machines are fail-stop. A failure during a recovery starts that recovery anew. A write to the
    store that a failure interrupts is lost. Waiting standbys do not fail. Without a standby, a
    machine is ordered after serialisation, as in the paper's Fig. 14. A new machine's own shard is
    there after retrieval, and so are the copies it keeps for others: they take a link seconds, and
    the paper does not count them.

    Args:
        workload: The job and its cluster.
        policy: Who protects it.
        outages: What fails when.
        days: Length of the run.
        placement: Who keeps whose replica; without it, Algorithm 1's for the policy's m.
        seed: Of the replacement times; the same seed and inputs give the same outcome.
        record: Keep the run's events (`Outcome.events`).

    Raises:
        ConfigError: The placement or a failure does not fit the number of nodes.
    """
    if placement is None:
        placement = plan_placement(nodes=workload.nodes, replicas=policy.replicas)
    for outage in outages:
        if not all(0 <= position < workload.nodes for position in outage.positions):
            raise ConfigError(
                f"a failure at {outage.at_s:g} s strikes {outage.positions}, but positions are 0 "
                f"to {workload.nodes - 1}"
            )
    if placement.nodes != workload.nodes or not days > 0:
        raise ConfigError(
            f"a run needs days above 0 and a placement of its {workload.nodes} nodes (got "
            f"days={days}, a placement of {placement.nodes})"
        )
    recorder = Recorder(workload, policy, placement) if record else None
    return _Run(workload, policy, placement, seed=seed, recorder=recorder).outcome(
        sorted(outages, key=lambda outage: outage.at_s), wall_s=days * DAY_S
    )


def compare(
    workload: Workload,
    outages: Sequence[Outage],
    *,
    days: float,
    policies: Sequence[Policy | Callable[[Workload], Policy]] = POLICIES,
    seed: int = 0,
) -> tuple[Outcome, ...]:
    """Each policy in turn on the same failures."""
    made = [policy if isinstance(policy, Policy) else policy(workload) for policy in policies]
    return tuple(simulate(workload, policy, outages, days=days, seed=seed) for policy in made)


class _Run:
    """One run: who sits where, which copies exist, and the processes that change it."""

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        placement: Placement,
        *,
        seed: int,
        recorder: Recorder | None,
    ) -> None:
        self.workload, self.policy, self.placement = workload, policy, placement
        self.recorder = recorder
        self.draw = random.Random(seed)
        self.env = simpy.Environment()
        self.members: list[str | None] = [f"node-{i}" for i in range(workload.nodes)]
        self.standbys = [f"node-{workload.nodes + i}" for i in range(workload.standbys)]
        self.named = workload.nodes + workload.standbys
        self.dead: set[str] = set()
        self.blank: set[int] = set()  # positions whose memory holds no copies
        self.memory_version: int | None = None
        self.persisted: int | None = None
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

    def outcome(self, outages: Sequence[Outage], *, wall_s: float) -> Outcome:
        """Run until `wall_s` and add it all up."""
        self.trainer = self.env.process(self._train(0))
        self.env.process(self._fail(outages))
        self.env.run(until=wall_s)
        versions = self._close()
        return Outcome(
            policy=self.policy,
            wall_s=wall_s,
            versions=versions,
            productive_s=versions * self.workload.iteration_s,
            lost_s=self.lost_s,
            down_s=dict(self.down_s),
            failures=self.failures,
            recoveries=tuple(self.recoveries),
            events=self.recorder.finish(wall_s, int(versions)) if self.recorder else (),
        )

    def _close(self) -> float:
        """Books at the end of the run; gives the versions that count."""
        if self.segment is not None:
            elapsed_s = self.env.now - self.segment_start_s
            self._note_training(self.segment, elapsed_s)
            return self.segment.progress_at(elapsed_s)
        version = self._plan().version or 0
        assert self.stopped is not None
        self.lost_s += self._redo_s(*self.stopped, version)
        name, start_s = self.under_way
        self.down_s[name] += self.env.now - start_s
        return float(version)

    def _fail(self, outages: Sequence[Outage]) -> Steps:
        for outage in outages:
            yield self.env.timeout(max(0.0, outage.at_s - self.env.now))
            struck = [p for p in outage.positions if self._alive(self.members[p])]
            if not struck:
                continue
            self.failures += 1
            self.struck["failures"] += 1
            if outage.kind != "software":
                self._lose(struck, outage.cause)
            self.trainer.interrupt(outage)

    def _lose(self, positions: Sequence[int], cause: str) -> None:
        self.struck["nodes"] += len(positions)
        self.unordered += len(positions)
        self.blank.update(positions)
        for position in positions:
            name = self.members[position]
            assert name is not None
            self.dead.add(name)
            self._say(NodeLost(name=name, cause=cause))

    def _alive(self, name: str | None) -> bool:
        return name is not None and name not in self.dead

    def _train(self, version: int) -> Steps:
        """Train for ever, recovering from each interruption."""
        while True:
            missing = self.members.count(None)
            factor = self.workload.nodes / max(1, self.workload.nodes - missing)
            segment = Segment(
                version=version,
                iteration_s=factor * self.workload.iteration_s + self.policy.slowdown_s,
                policy=self.policy,
            )
            if missing and self.standbys:  # they came while training stood still
                version = yield from self._rejoin(segment, 0.0)
                continue
            self.segment, self.segment_start_s = segment, self.env.now
            try:
                yield self.env.event()
            except simpy.Interrupt as interrupt:
                elapsed_s = self.env.now - self.segment_start_s
                self.segment, self.stopped = None, (segment, elapsed_s)
                self._note_training(segment, elapsed_s)
                if interrupt.cause is None:
                    version = yield from self._rejoin(segment, elapsed_s)
                else:
                    version = yield from self._recover(interrupt.cause, segment, elapsed_s)

    def _note_training(self, segment: Segment, elapsed_s: float) -> None:
        """Keep in mind which versions a segment made whole."""
        if self.policy.memory is not None:
            whole = segment.newest_whole(self.policy.memory, elapsed_s)
            self.memory_version = self.memory_version if whole is None else whole
        if self.policy.persistent is not None:
            whole = segment.newest_whole(self.policy.persistent, elapsed_s)
            self.persisted = self.persisted if whole is None else whole
        if self.recorder:
            self.recorder.training(segment, self.env.now - elapsed_s, elapsed_s)

    def _recover(
        self, outage: Outage, segment: Segment, elapsed_s: float
    ) -> Generator[simpy.Event, None, int]:
        """From a failure until training can go on; gives the version to go on from."""
        failed_s = self.env.now
        if self.recorder:
            reached = segment.newest_at(elapsed_s)
            self.recorder.failed(
                failed_s, cause=outage.cause, lost=sorted(self.dead), reached=reached
            )
        while True:
            try:
                plan, retrieval_s = yield from self._attempt()
                break
            except simpy.Interrupt:
                continue
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
        if self.recorder:
            self.recorder.recovered(self.env.now, recovery, segment.newest_at(elapsed_s))
        return version

    def _attempt(self) -> Generator[simpy.Event, None, tuple[RecoveryPlan, float]]:
        """One try at a recovery, in the order of the paper's Fig. 14."""
        yield from self._step("detect", self.workload.detection_s)
        yield from self._step("serialise", self.policy.serialise_s)
        plan = self._plan()
        for _ in range(self.unordered):
            self.env.process(self._deliver())
        self.unordered = 0
        while plan.missing and not self._can_shrink(plan):
            if self.recorder:
                self.recorder.waiting(self.env.now, plan.missing, self.standbys)
            yield from self._step("reserve", self.arrival)
            plan = self._plan()
        self.members = list(plan.members)
        self.standbys = [name for name in self.standbys if name not in plan.members]
        self.dead.clear()
        if self.recorder:
            self.recorder.planned(self.env.now, plan)
        retrieval_s = self._retrieval_s(plan)
        yield from self._step("retrieve", retrieval_s)
        if self.recorder:
            self.recorder.retrieved(self.env.now, plan, retrieval_s)
        self.blank = set(plan.missing)
        self.memory_version = plan.version if plan.tier == "memory" else None
        yield from self._step("warm_up", self.workload.warm_up_s)
        return plan, retrieval_s

    def _step(self, name: str, wait: float | simpy.Event) -> Steps:
        """Let time pass, also in the books when it is interrupted."""
        start_s = self.env.now
        self.under_way = (name, start_s)
        try:
            yield self.env.timeout(wait) if isinstance(wait, float | int) else wait
        finally:
            self.down_s[name] += self.env.now - start_s
            if self.recorder:
                self.recorder.step(name, start_s, self.env.now)

    def _plan(self) -> RecoveryPlan:
        """What the real recovery planner makes of the copies that are left."""
        copies: list[Copy] = []
        if self.memory_version is not None:
            names = self.members
            copies = [
                Copy(shard=shard, version=self.memory_version, node=name)
                for shard, holders in enumerate(self.placement.holders)
                for holder in holders
                if holder not in self.blank and (name := names[holder]) is not None
            ]
        living = {name for name in self.members if name is not None} | set(self.standbys)
        return plan_recovery(
            placement=self.placement,
            members=self.members,
            copies=copies,
            living=living - self.dead,
            standbys=self.standbys,
            persistent=() if self.persisted is None else (Stored(version=self.persisted),),
        )

    def _can_shrink(self, plan: RecoveryPlan) -> bool:
        return self.policy.shrinks and len(plan.missing) < self.workload.nodes

    def _retrieval_s(self, plan: RecoveryPlan) -> float:
        """The busiest sender's time; its sends follow one another."""
        if plan.tier == "persistent":
            return self.policy.persistent_s
        sends = Counter(s.holder for s in plan.sources if s.tier == "peer" and s.holder)
        return max(sends.values(), default=0) * self.policy.peer_s

    def _deliver(self) -> Steps:
        """A machine is ordered and comes."""
        self._say(NodeRequested(reason="a machine was lost"))
        yield self.env.timeout(self.draw.uniform(*self.workload.replacement_s))
        name = f"node-{self.named}"
        self.named += 1
        self.standbys.append(name)
        self._say(NodeJoined(name=name))
        self.arrival.succeed()
        self.arrival = self.env.event()
        if self.segment is not None and None in self.members:
            self.trainer.interrupt()

    def _rejoin(self, segment: Segment, elapsed_s: float) -> Generator[simpy.Event, None, int]:
        """A shrunk job takes new machines in; the running iteration is repeated."""
        version = segment.newest_at(elapsed_s)
        self.lost_s += self._redo_s(segment, elapsed_s, version)
        spares = iter(self.standbys)
        self.members = [name or next(spares, None) for name in self.members]
        self.standbys = list(spares)
        self.memory_version = version
        self.stopped = (replace(segment, version=version), 0.0)
        try:
            yield from self._step("rejoin", self.workload.warm_up_s)
            self.blank = {p for p, name in enumerate(self.members) if name is None}
        except simpy.Interrupt as interrupt:
            version = yield from self._recover(
                interrupt.cause, replace(segment, version=version), 0.0
            )
        return version

    def _redo_s(self, segment: Segment, elapsed_s: float, version: int) -> float:
        """How long training took from `version` to where it stood in `segment`."""
        if version >= segment.version:
            return elapsed_s - segment.reached_s(version)
        return elapsed_s + replace(segment, version=version).reached_s(segment.version)

    def _say(self, event: AnyEvent) -> None:
        if self.recorder:
            self.recorder.say(self.env.now, event)
