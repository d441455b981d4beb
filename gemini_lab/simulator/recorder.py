"""A simulated run told in the events of a real one, so that every report and dashboard reads it."""

from typing import Any

from gemini_lab.log.events import Event
from gemini_lab.placement import Placement
from gemini_lab.recovery.plan import RecoveryPlan
from gemini_lab.simulator.outcome import Recovery
from gemini_lab.simulator.policy import Policy, Stream
from gemini_lab.simulator.progress import Segment
from gemini_lab.simulator.workload import Workload


class Recorder:
    """Keeps the events of one run; times are seconds since its start.

    A node's GPUs count as one worker with the node's shard. Iterations are told by rank 0, which
    speaks for all: in a simulation they are alike.
    """

    def __init__(self, workload: Workload, policy: Policy, placement: Placement) -> None:
        self.workload = workload
        self.recovery = 0
        self.events: list[Event] = []
        for position in range(workload.nodes + workload.standbys):
            standby = position >= workload.nodes
            self.say("node_joined", 0.0, {"name": f"node-{position}", "standby": standby})
        self.say(
            "run_started",
            0.0,
            {
                "name": f"simulated: {policy.name}",
                "script": None,
                "nodes": workload.nodes,
                "workers_per_node": 1,
                "placement": placement.to_json(),
                "settings": {
                    "simulated": True,
                    "policy": policy.name,
                    "source": policy.source,
                    "assumptions": policy.assumptions,
                    "replicas": policy.replicas,
                    "gpus_per_node": workload.gpus_per_node,
                },
            },
        )

    def say(self, kind: str, at_s: float, data: dict[str, Any]) -> None:
        """Keep one event; a recovery's carry its number."""
        if kind.startswith("recovery_"):
            if kind == "recovery_started":
                self.recovery += 1
            data = {"recovery": self.recovery, "epoch": self.recovery, **data}
        self.events.append(Event(kind=kind, at_s=at_s, node="lab", data=data))

    def training(self, segment: Segment, start_s: float, elapsed_s: float) -> None:
        """Tell the iterations of `segment`, and which versions became whole where."""
        before_s = 0.0
        for version in range(segment.version + 1, segment.newest_at(elapsed_s) + 1):
            reached_s = segment.reached_s(version)
            waited_s = reached_s - before_s - self.workload.iteration_s
            data = {
                "rank": 0, "epoch": self.recovery, "iteration": version, "waited_s": waited_s,
                "duration_s": reached_s - before_s, "values": {},
            }  # fmt: skip
            self.say("iteration", start_s + reached_s, data)
            before_s = reached_s
        memory, store = segment.policy.memory, segment.policy.persistent
        if memory is not None:
            sent_bytes = (segment.policy.replicas - 1) * self.workload.shard_bytes
            data = {"rank": 0, "sent_bytes": sent_bytes, "local_s": 0.0}
            self._whole("version_complete", segment, memory, (start_s, elapsed_s), data)
        if store is not None:
            data = {"url": "simulated://store", "size_bytes": self.workload.checkpoint_bytes}
            self._whole("persist_finished", segment, store, (start_s, elapsed_s), data)

    def _whole(
        self,
        kind: str,
        segment: Segment,
        stream: Stream,
        time_s: tuple[float, float],
        data: dict[str, Any],
    ) -> None:
        """Tell which versions of `stream` became whole in a segment (its start and its length)."""
        start_s, elapsed_s = time_s
        newest = segment.newest_whole(stream, elapsed_s)
        first = (segment.version // stream.every + 1) * stream.every
        duration_s = stream.stall_s + stream.delay_s
        for version in range(first, (newest or 0) + 1, stream.every):
            at_s = start_s + segment.reached_s(version) + duration_s
            self.say(kind, at_s, {"version": version, "duration_s": duration_s, **data})

    def planned(self, at_s: float, plan: RecoveryPlan) -> None:
        """Tell what will be loaded from where."""
        self.say("recovery_planned", at_s, plan.to_json())

    def retrieved(self, at_s: float, plan: RecoveryPlan, retrieval_s: float) -> None:
        """Tell which shards came over a wire; one in the node's own memory takes no time."""
        for source in plan.sources:
            if source.tier in {"local", "start"}:
                continue
            data = {
                "rank": source.shard, "shard": source.shard, "version": plan.version,
                "tier": source.tier, "holder": source.holder,
                "size_bytes": self.workload.shard_bytes, "verified": False,
                "retrieve_s": retrieval_s, "verify_s": 0.0, "load_s": 0.0,
                "recovery": self.recovery, "epoch": self.recovery,
            }  # fmt: skip
            self.say("shard_restored", at_s, data)

    def recovered(self, at_s: float, recovery: Recovery, reached: int) -> None:
        """Tell that training runs again, after iteration `reached` had been done before."""
        data = {
            "version": recovery.version,
            "iteration": recovery.version + 1,
            "duration_s": recovery.duration_s,
            "lost_iterations": max(0, reached - recovery.version),
        }
        self.say("recovery_finished", at_s, data)

    def finish(self, at_s: float, iteration: int) -> tuple[Event, ...]:
        """All events, in order of time."""
        self.say("run_finished", at_s, {"iteration": iteration})
        return tuple(sorted(self.events, key=lambda event: event.at_s))
