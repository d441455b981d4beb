"""What happened, when, on which node: one schema, and the log that keeps it.

Every part of a run (workers, agents, the root agent, the lab) and the simulator speaks in `Event`s.
A run's log is one file of JSON lines; dashboards, reports and exports read it and nothing else.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

KINDS: Final[dict[str, str]] = {
    # the lab and its nodes
    "lab_started": "the lab's nodes are up: nodes, standbys, names, root, etcd",
    "node_joined": "an agent registered: address, standby",
    "node_ready": "its warm parent has imported what workers need: name, import_s",
    "node_lost": "a node is gone: cause",
    "node_requested": "the operator was asked for a machine: reason",
    "link_cut": "a connection between root agent and agent broke but came back: peer",
    "root_elected": "this node's agent is the root agent now: term",
    "root_lost": "the root agent is gone",
    "lab_closed": "all processes of the lab ended",
    # a run
    "run_started": "a job was submitted: name, script, nodes, workers_per_node, settings",
    "run_finished": "every worker finished its script: iteration",
    "run_failed": "the run was given up: reason, output",
    "protected": "workers called protect: rank, shard_bytes, params, settings",
    "unprotected": "the script ran without calling protect",
    # training; rank stands in every one
    "iteration": "one optimizer step ended: rank, iteration, duration_s, waited_s, values",
    "version_complete": "this rank's shard and the replicas it receives are whole: rank, version, "
    "sent_bytes, local_s, duration_s, next_version",
    "transfer": "checkpoint chunks that left for a peer, in one idle span or in the background: "
    "rank, version, span, peer, sent_bytes, start_s, end_s",
    "profiled": "the ranks agreed on a profile and on the chunks to follow it: rank, profile, "
    "schedule, calibration",
    "collectives": "the training collectives of one iteration: rank, iteration, began_s, and lists "
    "of equal length: names, sizes_bytes, starts_s, ends_s (since began_s)",
    # failures
    "injected": "the injector acted: failure, target",
    "worker_exited": "a worker ended before its script did: rank, pid, signal, exit_code, output",
    "worker_hung": "a worker made no progress: rank, silent_s, deadline_s",
    # recovery; recovery (its number) and epoch stand in every one
    "recovery_started": "a failure was detected: cause, lost, failed_at_s",
    "recovery_step": "one step ended: step, start_s, end_s",
    "replica_rejected": "a copy failed its checksums: shard, version, holder, chunk",
    "version_rejected": "a version will not be tried again: version, reason",
    "recovery_planned": "what will be loaded from where: version, tier, members, sources, reason",
    "shard_restored": "receipt of one shard: rank, shard, version, tier, holder, size_bytes, "
    "verified, retrieve_s, verify_s, load_s",
    "recovery_waiting": "no machine is left for a position: missing, standbys",
    "recovery_finished": "the first iteration after the failure ended: version, iteration, "
    "duration_s, lost_iterations",
    # persistent tier
    "persist_started": "a version is being written: version, url",
    "persist_finished": "a version is whole in the persistent tier: version, url, size_bytes, "
    "duration_s",
    "persist_failed": "writing a version failed, training goes on: version, url, reason",
    # anything else worth a line
    "note": "a remark: text",
}
"""Each kind of event, what it says, and the names in its `data`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: One of `KINDS`.
        at_s: When: seconds since the epoch (Unix time) in real runs, on the lab's clock;
            seconds since the start in simulated ones.
        node: Name of the node that says it, or `"lab"`.
        data: What `KINDS` lists for this kind; plain JSON values only.
    """

    kind: str
    at_s: float
    node: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no event is called {self.kind!r}; events.KINDS lists all kinds")

    def to_json(self) -> str:
        """The event as one line of JSON, without the line break."""
        record = {"kind": self.kind, "at_s": self.at_s, "node": self.node, "data": dict(self.data)}
        return json.dumps(record, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "Event":
        """The event that `to_json` wrote as `line`."""
        return cls(**json.loads(line))
