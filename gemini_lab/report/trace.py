"""A run's events in the Chrome trace format, which Perfetto (https://ui.perfetto.dev) opens.

Every node is a process and every kind of work on it a thread, a *lane*. Arrows lead from the node
that sent a replica to the node that received it.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gemini_lab.log.events import Event

_MOMENTS: Final = frozenset(
    {
        "node_joined", "node_lost", "link_cut", "root_elected", "root_lost", "injected",
        "worker_exited", "worker_hung", "recovery_started", "recovery_planned",
        "recovery_waiting", "recovery_finished", "replica_rejected", "version_rejected",
        "persist_failed", "run_started", "run_finished", "run_failed", "unprotected", "note",
    }
)  # fmt: skip


def chrome_trace(events: Iterable[Event]) -> dict[str, Any]:
    """The trace as plain values; write it with `json.dump`.

    Args:
        events: A run's log, in any order.
    """
    log = sorted(events, key=lambda event: event.at_s)
    trace = _Trace(begin_s=min(map(_begin_s, log), default=0.0))
    for event in log:
        trace.add(event)
    return {"traceEvents": [*trace.names(), *trace.records], "displayTimeUnit": "ms"}


def _begin_s(event: Event) -> float:
    """When what an event tells of began."""
    data = event.data
    return float(data.get("start_s", event.at_s - data.get("duration_s", 0.0)))


class _Trace:
    """Collects records; numbers the nodes and lanes as they turn up."""

    def __init__(self, *, begin_s: float) -> None:
        self.records: list[dict[str, Any]] = []
        self._begin_s = begin_s
        self._nodes: dict[str, int] = {}
        self._lanes: dict[tuple[str, str], int] = {}
        self._node_of_rank: dict[int, str] = {}
        self._arrows = itertools.count(1)

    def add(self, event: Event) -> None:
        """Draw one event."""
        data = event.data
        if event.kind in {"iteration", "protected"} and not data.get("restored"):
            self._node_of_rank[data["rank"]] = event.node
        match event.kind:
            case "iteration" if not data.get("restored"):
                self._slice(
                    event.node, f"training, rank {data['rank']}", f"iteration {data['iteration']}",
                    _begin_s(event), event.at_s, args=data,
                )  # fmt: skip
            case "collectives":
                self._collectives(event)
            case "transfer":
                self._transfer(event)
            case "version_complete":
                self._slice(
                    event.node, f"checkpoints, rank {data['rank']}", f"version {data['version']}",
                    _begin_s(event), event.at_s, args=data,
                )  # fmt: skip
            case "recovery_step":
                self._slice(
                    event.node, "recovery", data["step"], data["start_s"], data["end_s"], args=data
                )
            case "shard_restored":
                self._restored(event)
            case "persist_finished":
                self._slice(
                    event.node, "persistent tier", f"version {data['version']}", _begin_s(event),
                    event.at_s, args=data,
                )  # fmt: skip
            case kind if kind in _MOMENTS:
                self._moment(event)

    def names(self) -> Iterator[dict[str, Any]]:
        """The records that name processes and threads."""
        for node, pid in self._nodes.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": node}}
        for (node, lane), tid in self._lanes.items():
            pid = self._nodes[node]
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": lane}}

    def _collectives(self, event: Event) -> None:
        data = event.data
        began_s, rank = data["began_s"], data["rank"]
        for name, size_bytes, start_s, end_s in zip(
            data["names"], data["sizes_bytes"], data["starts_s"], data["ends_s"], strict=True
        ):
            args = {"rank": rank, "iteration": data["iteration"], "size_bytes": size_bytes}
            self._slice(
                event.node, f"collectives, rank {rank}", name, began_s + start_s, began_s + end_s,
                args=args,
            )  # fmt: skip

    def _transfer(self, event: Event) -> None:
        data = event.data
        peer = data["peer"]
        receiver = peer if isinstance(peer, str) else self._node_of_rank.get(peer, f"rank {peer}")
        self._sent(
            sender=event.node, receiver=receiver, rank=data["rank"],
            name=f"version {data['version']}", start_s=data["start_s"], end_s=data["end_s"],
            args=data,
        )  # fmt: skip

    def _restored(self, event: Event) -> None:
        data = event.data
        parts = [(phase, data.get(f"{phase}_s", 0.0)) for phase in ("retrieve", "verify", "load")]
        at_s = event.at_s - sum(duration_s for _, duration_s in parts)
        if data["tier"] == "peer":
            self._sent(
                sender=str(data["holder"]), receiver=event.node, rank=data["shard"],
                name=f"shard {data['shard']}, version {data['version']}",
                start_s=at_s, end_s=at_s + parts[0][1], args=data,
            )  # fmt: skip
        for phase, duration_s in parts:
            if duration_s > 0:
                name = f"{phase} shard {data['shard']}"
                self._slice(event.node, "restore", name, at_s, at_s + duration_s, args=data)
            at_s += duration_s

    def _sent(
        self, *, sender: str, receiver: str, rank: int, name: str,
        start_s: float, end_s: float, args: Any,
    ) -> None:  # fmt: skip
        """A slice at the sender, one at the receiver, and an arrow between them."""
        number = next(self._arrows)
        out, into = f"replicas out, rank {rank}", f"replicas in, from rank {rank}"
        self._slice(sender, out, name, start_s, end_s, args=args)
        self._slice(receiver, into, name, start_s, end_s, args=args)
        arrow = {"name": "replica", "cat": "replica", "id": number}
        self._put(sender, out, {**arrow, "ph": "s", "ts": self._us(start_s)})
        self._put(receiver, into, {**arrow, "ph": "f", "bp": "e", "ts": self._us(end_s)})

    def _slice(
        self, node: str, lane: str, name: str, start_s: float, end_s: float, *, args: Any
    ) -> None:
        duration_us = max(0.0, self._us(end_s) - self._us(start_s))
        record = {"ph": "X", "name": name, "cat": lane.partition(",")[0], "args": dict(args)}
        self._put(node, lane, {**record, "ts": self._us(start_s), "dur": round(duration_us, 3)})

    def _moment(self, event: Event) -> None:
        name = event.kind.replace("_", " ")
        record = {"ph": "i", "s": "p", "name": name, "cat": "moment", "args": dict(event.data)}
        self._put(event.node, "events", {**record, "ts": self._us(event.at_s)})

    def _put(self, node: str, lane: str, record: dict[str, Any]) -> None:
        pid = self._nodes.setdefault(node, len(self._nodes) + 1)
        tid = self._lanes.setdefault((node, lane), len(self._lanes) + 1)
        self.records.append({**record, "pid": pid, "tid": tid})

    def _us(self, at_s: float) -> float:
        """Microseconds since the trace's beginning."""
        return round((at_s - self._begin_s) * 1e6, 3)
