"""A simulated run told in the events of a real one, so that every report and dashboard reads it."""

from collections.abc import Callable, Sequence
from typing import Final

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.placement import Placement
from gemini_lab.recovery.log_events import planned_event
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.simulator.outcome import SimulatedRecovery
from gemini_lab.simulator.policy import Policy, Stream
from gemini_lab.simulator.segments import TrainingSegment
from gemini_lab.simulator.workload import Workload

STORE: Final = "simulated://store"


class RunRecorder:
    """Keeps the entries of one run; times are seconds since its start.

    A node's GPUs count as one worker with the node's shard. Iterations are told by rank 0, which
    speaks for all: in a simulation they are alike. A recovery's number is its workers' epoch too.
    """

    def __init__(self, workload: Workload, policy: Policy, placement: Placement) -> None:
        self.workload = workload
        self.recovery = 0
        self.entries: list[Entry] = []
        for position in range(workload.nodes + workload.standbys):
            self.say(0.0, events.NodeJoined(name=f"node-{position}"))
        started = events.RunStarted(
            name=f"simulated: {policy.name}",
            script=None,
            nodes=workload.nodes,
            standbys=workload.standbys,
            settings={"replicas": policy.replicas},
            placement=placement,
            simulated=events.Simulated(
                policy=policy.name,
                source=policy.source,
                assumptions=policy.assumptions,
                gpus_per_node=workload.gpus_per_node,
            ),
        )
        self.say(0.0, started)

    def say(self, at_s: float, event: events.AnyEvent) -> None:
        self.entries.append(Entry(at_s=at_s, node="lab", event=event))

    def training(self, segment: TrainingSegment, start_s: float, elapsed_s: float) -> None:
        """Tell the iterations of `segment`, and which versions became whole where."""
        before_s = 0.0
        for version in range(segment.version + 1, segment.newest_at(elapsed_s) + 1):
            reached_s = segment.reached_s(version)
            iteration = events.Iteration(
                rank=0,
                epoch=self.recovery,
                iteration=version,
                duration_s=reached_s - before_s,
                waited_s=segment.waited_s(version),
            )
            self.say(start_s + reached_s, iteration)
            before_s = reached_s
        memory, store = segment.policy.memory, segment.policy.persistent
        if memory is not None:
            self._whole(segment, memory, (start_s, elapsed_s), self._complete)
        if store is not None:
            self._whole(segment, store, (start_s, elapsed_s), self._persisted)

    def _whole(
        self,
        segment: TrainingSegment,
        stream: Stream,
        time_s: tuple[float, float],
        tell: Callable[[int, TrainingSegment, Stream], events.AnyEvent],
    ) -> None:
        """Tell which versions of `stream` became whole in a segment (its start and its length)."""
        start_s, elapsed_s = time_s
        newest = segment.newest_whole(stream, elapsed_s)
        first = (segment.version // stream.every + 1) * stream.every
        for version in range(first, (newest or 0) + 1, stream.every):
            at_s = start_s + segment.reached_s(version) + _length_s(stream)
            self.say(at_s, tell(version, segment, stream))

    def _complete(self, version: int, segment: TrainingSegment, stream: Stream) -> events.AnyEvent:
        return events.VersionComplete(
            rank=0,
            epoch=self.recovery,
            version=version,
            sent_bytes=(segment.policy.replicas - 1) * self.workload.shard_bytes,
            local_s=0.0,
            duration_s=_length_s(stream),
            next_version=version + stream.every,
        )

    def _persisted(self, version: int, _: TrainingSegment, stream: Stream) -> events.AnyEvent:
        return events.PersistFinished(
            version=version,
            url=STORE,
            size_bytes=self.workload.checkpoint_bytes,
            duration_s=_length_s(stream),
        )

    def failed(self, at_s: float, *, cause: str, lost: Sequence[str], reached: int) -> None:
        """Tell that a recovery begins, after iteration `reached`."""
        self.recovery += 1
        started = events.RecoveryStarted(
            recovery=self.recovery,
            epoch=self.recovery,
            cause=cause,
            lost=tuple(lost),
            failed_at_s=at_s,
            iteration=reached,
        )
        self.say(at_s, started)

    def step(self, name: str, start_s: float, end_s: float) -> None:
        """Tell that a step of a recovery ended, or was interrupted."""
        step = events.RecoveryStep(
            recovery=self.recovery, epoch=self.recovery, step=name, start_s=start_s, end_s=end_s
        )
        self.say(end_s, step)

    def waiting(self, at_s: float, missing: Sequence[int], standbys: Sequence[str]) -> None:
        waiting = events.RecoveryWaiting(
            recovery=self.recovery,
            epoch=self.recovery,
            missing=tuple(missing),
            standbys=tuple(standbys),
        )
        self.say(at_s, waiting)

    def planned(self, at_s: float, plan: RecoveryPlan) -> None:
        self.say(at_s, planned_event(plan, recovery=self.recovery, epoch=self.recovery))

    def retrieved(self, at_s: float, plan: RecoveryPlan, retrieval_s: float) -> None:
        """Tell which shards came over a wire; one in the node's own memory takes no time."""
        for source in plan.sources:
            if source.tier in {"local", "start"} or plan.version is None:
                continue
            restored = events.ShardRestored(
                rank=source.shard,
                epoch=self.recovery,
                shard=source.shard,
                version=plan.version,
                tier="peer" if source.tier == "peer" else "persistent",
                holder=source.holder,
                size_bytes=self.workload.shard_bytes,
                verified=False,
                retrieve_s=retrieval_s,
                verify_s=0.0,
                load_s=0.0,
            )
            self.say(at_s, restored)

    def recovered(self, at_s: float, recovery: SimulatedRecovery, reached: int) -> None:
        """Tell that training runs again, after iteration `reached` had been done before."""
        finished = events.RecoveryFinished(
            recovery=self.recovery,
            epoch=self.recovery,
            version=recovery.version,
            iteration=recovery.version + 1,
            duration_s=recovery.duration_s,
            lost_iterations=max(0, reached - recovery.version),
        )
        self.say(at_s, finished)

    def finish(self, at_s: float, iteration: int) -> tuple[Entry, ...]:
        self.say(at_s, events.RunFinished(iteration=iteration))
        return tuple(sorted(self.entries, key=lambda entry: entry.at_s))


def _length_s(stream: Stream) -> float:
    return stream.stall_s + stream.delay_s
