"""A run's events in the Chrome trace format, which Perfetto (https://ui.perfetto.dev) opens.

Every node is a process and every kind of work on it a thread, a *lane*. Arrows lead from the node
that sent a replica to the node that received it.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gemini_lab.log import events
from gemini_lab.log.entry import Entry, to_record
from gemini_lab.report.reducers.nodes import Nodes

UNDRAWN: Final = (
    events.LogOpened,
    events.Protected,
    events.IterationBegun,
    events.Iteration,
    events.SumsVerified,
    events.Profiled,
    events.StacksTaken,
)
"""Events without a length that are no moments: each iteration has them, or they are long texts."""
Record = dict[str, Any]
"""JSON values, as the format has them."""


def chrome_trace(entries: Iterable[Entry]) -> Record:
    """Return the trace as plain values; write it with `json.dump`."""
    trace = Trace()
    for entry in entries:
        trace.take(entry)
    return trace.to_json()


class Trace:
    """Collects records, with times on the log's clock; numbers nodes and lanes as they turn up."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._pids: dict[str, int] = {}
        self._tids: dict[tuple[str, str], int] = {}
        self._nodes = Nodes()
        self._arrows = itertools.count(1)

    def to_json(self) -> Record:
        """Return the trace of what was taken in, its times in microseconds since its beginning."""
        begin_s = min((record["ts"] for record in self._records), default=0.0)
        records = [
            {**record, "ts": round((record["ts"] - begin_s) * 1e6, 3)} for record in self._records
        ]
        return {"traceEvents": [*self.names(), *records], "displayTimeUnit": "ms"}

    def take(self, entry: Entry) -> None:
        self._nodes.take(entry)
        at_s, node, event = entry.at_s, entry.node, entry.event
        match event:
            case events.Iteration(restored=False):
                lane, name = f"training, rank {event.rank}", f"iteration {event.iteration}"
                self._slice(node, lane, name, at_s - event.duration_s, at_s, args=_args(event))
            case events.Collectives():
                self._collectives(node, event)
            case events.Transfer():
                receiver = self._nodes.node_of(event.peer) or f"rank {event.peer}"
                times_s, name = (event.start_s, event.end_s), f"version {event.version}"
                self._sent(node, receiver, event.rank, name, times_s=times_s, args=_args(event))
            case events.VersionComplete():
                lane, name = f"checkpoints, rank {event.rank}", f"version {event.version}"
                self._slice(node, lane, name, at_s - event.duration_s, at_s, args=_args(event))
            case events.RecoveryStep(step=step, start_s=start_s, end_s=end_s):
                self._slice(node, "recovery", step, start_s, end_s, args=_args(event))
            case events.ShardRestored():
                self._restored(at_s, node, event)
            case events.PersistFinished():
                start_s, name = at_s - event.duration_s, f"version {event.version}"
                self._slice(node, "persistent tier", name, start_s, at_s, args=_args(event))
            case _ if not isinstance(event, UNDRAWN):
                self._moment(at_s, node, event)

    def names(self) -> Iterator[Record]:
        """Give the records that name processes and threads."""
        for node, pid in self._pids.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": node}}
        for (node, lane), tid in self._tids.items():
            pid = self._pids[node]
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": lane}}

    def _collectives(self, node: str, event: events.Collectives) -> None:
        lane = f"collectives, rank {event.rank}"
        said = {"rank": event.rank, "iteration": event.iteration}
        for call in event.calls():
            start_s, end_s = event.began_s + call.start_s, event.began_s + call.end_s
            args = {**said, "size_bytes": call.size_bytes}
            self._slice(node, lane, call.name, start_s, end_s, args=args)

    def _restored(self, at_s: float, node: str, event: events.ShardRestored) -> None:
        parts = (("retrieve", event.retrieve_s), ("verify", event.verify_s), ("load", event.load_s))
        at_s -= sum(duration_s for _, duration_s in parts)
        if event.tier == "peer":
            name = f"shard {event.shard}, version {event.version}"
            times_s = (at_s, at_s + event.retrieve_s)
            self._sent(
                str(event.holder), node, event.shard, name, times_s=times_s, args=_args(event)
            )
        for phase, duration_s in parts:
            if duration_s > 0:
                name = f"{phase} shard {event.shard}"
                self._slice(node, "restore", name, at_s, at_s + duration_s, args=_args(event))
            at_s += duration_s

    def _sent(
        self,
        sender: str,
        receiver: str,
        rank: int,
        name: str,
        *,
        times_s: tuple[float, float],
        args: Record,
    ) -> None:
        """Add a slice at the sender, one at the receiver, and an arrow between them."""
        number, (start_s, end_s) = next(self._arrows), times_s
        out, into = f"replicas out, rank {rank}", f"replicas in, from rank {rank}"
        self._slice(sender, out, name, start_s, end_s, args=args)
        self._slice(receiver, into, name, start_s, end_s, args=args)
        arrow = {"name": "replica", "cat": "replica", "id": number}
        self._put(sender, out, {**arrow, "ph": "s", "ts": start_s})
        self._put(receiver, into, {**arrow, "ph": "f", "bp": "e", "ts": end_s})

    def _slice(
        self, node: str, lane: str, name: str, start_s: float, end_s: float, *, args: Record
    ) -> None:
        duration_us = round(max(0.0, end_s - start_s) * 1e6, 3)
        record = {"ph": "X", "name": name, "cat": lane.partition(",")[0], "args": args}
        self._put(node, lane, {**record, "ts": start_s, "dur": duration_us})

    def _moment(self, at_s: float, node: str, event: events.Event) -> None:
        name = event.kind.replace("_", " ")
        record = {"ph": "i", "s": "p", "name": name, "cat": "moment", "args": _args(event)}
        self._put(node, "events", {**record, "ts": at_s})

    def _put(self, node: str, lane: str, record: Record) -> None:
        pid = self._pids.setdefault(node, len(self._pids) + 1)
        tid = self._tids.setdefault((node, lane), len(self._tids) + 1)
        self._records.append({**record, "pid": pid, "tid": tid})


def _args(event: Any) -> Record:
    """Return an event's fields for the trace viewer's details."""
    record = to_record(event)
    del record["kind"]
    return record
