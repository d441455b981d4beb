"""From a run's events to its report."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.log.events import Event
from gemini_lab.log.file import LOG_FILE
from gemini_lab.pipeliner.machine import Calibration
from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.profiler.profile import Profile
from gemini_lab.report.values import (
    Injection,
    Iteration,
    Outcome,
    Receipt,
    Recovery,
    RunReport,
    Step,
    Traffic,
    TrafficPlan,
    WastedTime,
)

STRIKES: Final = frozenset({"worker_crash", "worker_hang", "node_loss", "node_freeze"})
"""Injections that a recovery answers; others are met on the way, such as a flipped bit."""


def build_report(events: Iterable[Event], *, name: str = "") -> RunReport:
    """What the run with these events did.

    Args:
        events: The whole log, or as much of it as there is.
        name: What to call the run if the log does not say.

    Raises:
        ConfigError: The events are not those of a run.
    """
    log = sorted(events, key=lambda event: event.at_s)
    start = next((event for event in log if event.kind == "run_started"), None)
    if start is None:
        raise ConfigError(
            f"the log of {name or 'this run'} has no run_started among {len(log)} events; "
            f"a run's log is called {LOG_FILE}"
        )
    outcome, reason, ended_at_s = _ending(log)
    iterations = _iterations(log)
    injections = tuple(_injection(event) for event in _of(log, "injected"))
    recoveries = _recoveries(log, injections)
    nodes = int(start.data.get("nodes", 0))
    return RunReport(
        name=name or str(start.data.get("name", "")),
        simulated=bool((start.data.get("settings") or {}).get("simulated", False)),
        script=str(start.data.get("script") or ""),
        nodes=nodes,
        ranks=nodes * int(start.data.get("workers_per_node", 1)),
        started_at_s=start.at_s,
        ended_at_s=ended_at_s,
        outcome=outcome,
        reason=reason,
        iterations=iterations,
        recoveries=recoveries,
        injections=injections,
        wasted=_wasted(log, iterations, recoveries),
        traffic=_traffic(log),
        roots=tuple(str(event.data.get("name", event.node)) for event in _of(log, "root_elected")),
        notes=tuple(f"{event.node}: {event.data['text']}" for event in _of(log, "note")),
        plans=tuple(_plan(event) for event in _of(log, "profiled")),
    )


def _of(log: Sequence[Event], *kinds: str) -> list[Event]:
    return [event for event in log if event.kind in kinds]


def _ending(log: Sequence[Event]) -> tuple[Outcome, str, float]:
    for event in reversed(log):
        if event.kind == "run_finished":
            return "finished", "", event.at_s
        if event.kind == "run_failed":
            return "failed", str(event.data.get("reason", "")), event.at_s
    return "unfinished", "", log[-1].at_s


# -- iterations ----------------------------------------------------------------------------------


def _iterations(log: Sequence[Event]) -> tuple[Iteration, ...]:
    """The iterations that count: a later epoch's replace an earlier one's, lost ones go."""
    kept: dict[tuple[int, int], tuple[int, Event]] = {}
    for event in log:
        data = event.data
        if event.kind == "recovery_planned":
            kept = _without_lost(kept, version=data["version"] or 0, epoch=data["epoch"])
        elif event.kind == "iteration":
            key, epoch = (data["iteration"], data["rank"]), data.get("epoch", 0)
            is_known = data.get("restored", False) and key in kept
            if not is_known and (key not in kept or epoch >= kept[key][0]):
                kept[key] = (epoch, event)
    return tuple(_iteration(event) for _, (_, event) in sorted(kept.items(), key=lambda i: i[0]))


def _without_lost(
    kept: dict[tuple[int, int], tuple[int, Event]], *, version: int, epoch: int
) -> dict[tuple[int, int], tuple[int, Event]]:
    """What is left of `kept` when an `epoch` starts from `version`."""
    return {
        (number, rank): (earlier, event)
        for (number, rank), (earlier, event) in kept.items()
        if number <= version or earlier >= epoch
    }


def _iteration(event: Event) -> Iteration:
    data = event.data
    loss = (data.get("values") or {}).get("loss")
    return Iteration(
        rank=data["rank"],
        number=data["iteration"],
        node=event.node,
        ended_at_s=event.at_s,
        duration_s=data.get("duration_s", 0.0),
        waited_s=data.get("waited_s", 0.0),
        loss=None if loss is None else float(loss),
    )


# -- recoveries ----------------------------------------------------------------------------------


def _injection(event: Event) -> Injection:
    data = event.data
    failure = data["failure"]
    target = data.get("target") or {}
    return Injection(
        at_s=event.at_s,
        kind=str(failure["kind"]),
        node=str(target.get("name", event.node)),
        rank=target.get("rank"),
    )


def _recoveries(log: Sequence[Event], injections: Sequence[Injection]) -> tuple[Recovery, ...]:
    by_number: dict[int, list[Event]] = defaultdict(list)
    for event in log:
        if number := event.data.get("recovery"):
            by_number[number].append(event)
    receipts = _of(log, "shard_restored")
    recoveries = []
    over_s = float("-inf")
    for number, events in sorted(by_number.items()):
        epochs = {event.data.get("epoch") for event in events}
        restored = [event for event in receipts if event.data.get("epoch") in epochs]
        recovery = _recovery(number, events, restored)
        recovery = _caused(recovery, injections, after_s=over_s)
        lost_s = _lost_progress_s(log, recovery)
        recoveries.append(replace(recovery, lost_progress_s=lost_s))
        over_s = recovery.resumed_at_s or over_s
    return tuple(recoveries)


def _recovery(number: int, events: Sequence[Event], restored: Sequence[Event]) -> Recovery:
    """What the events of one recovery say, without its cause."""
    first = next((e for e in events if e.kind == "recovery_started"), events[0])
    plan = next((e for e in reversed(events) if e.kind == "recovery_planned"), None)
    done = next((e for e in events if e.kind == "recovery_finished"), None)
    newest = {event.data.get("shard", event.data.get("rank")): event for event in restored}
    return Recovery(
        number=number,
        cause=str(first.data.get("cause", "unknown")),
        injections=(),
        lost_nodes=tuple(first.data.get("lost", ())),
        failed_at_s=float(first.data.get("failed_at_s", first.at_s)),
        resumed_at_s=None if done is None else done.at_s,
        version=None if plan is None else plan.data["version"] or 0,
        tier=None if plan is None else plan.data["tier"],
        reason="" if plan is None else str(plan.data.get("reason", "")),
        steps=tuple(
            Step(name=e.data["step"], start_s=e.data["start_s"], end_s=e.data["end_s"])
            for e in events
            if e.kind == "recovery_step"
        ),
        receipts=tuple(_receipt(shard, newest[shard]) for shard in sorted(newest)),
        rejected=tuple(_rejection(e) for e in events if e.kind.endswith("_rejected")),
        lost_iterations=0 if done is None else done.data.get("lost_iterations", 0),
        lost_progress_s=None,
    )


def _receipt(shard: int, event: Event) -> Receipt:
    data = event.data
    return Receipt(
        shard=shard,
        version=data["version"],
        tier=data["tier"],
        holder=data.get("holder"),
        size_bytes=data.get("size_bytes", 0),
        verified=data.get("verified", False),
        retrieve_s=data.get("retrieve_s", 0.0),
        verify_s=data.get("verify_s", 0.0),
        load_s=data.get("load_s", 0.0),
    )


def _rejection(event: Event) -> str:
    data = event.data
    if event.kind == "version_rejected":
        return f"version {data['version']}: {data.get('reason', 'rejected')}"
    why = data.get("reason", f"chunk {data.get('chunk')} failed its checksum")
    where = data.get("holder") or "the persistent tier"
    return f"shard {data['shard']} of version {data['version']} on {where}: {why}"


def _caused(recovery: Recovery, injections: Sequence[Injection], *, after_s: float) -> Recovery:
    """The recovery with what the injector did to cause it, and the detection as a first step."""
    until_s = recovery.resumed_at_s or float("inf")
    causes = tuple(
        injection
        for injection in injections
        if after_s < injection.at_s < until_s and injection.kind in STRIKES
    )
    noticed_s = recovery.failed_at_s
    before = [injection.at_s for injection in causes if injection.at_s <= noticed_s]
    if not before:
        return replace(recovery, injections=causes)
    detect = Step(name="detect", start_s=before[0], end_s=noticed_s)
    return replace(
        recovery, injections=causes, failed_at_s=before[0], steps=(detect, *recovery.steps)
    )


def _lost_progress_s(log: Sequence[Event], recovery: Recovery) -> float | None:
    """How long before the failure the version that was loaded had been reached, by all ranks."""
    if recovery.version is None or recovery.resumed_at_s is None:
        return None
    reached = [
        event.at_s
        for event in _of(log, "iteration")
        if event.data["iteration"] == recovery.version
        and not event.data.get("restored")
        and event.at_s <= recovery.failed_at_s
    ]
    if not reached:
        reached = [event.at_s for event in _of(log, "run_started")]
    return recovery.failed_at_s - max(reached)


# -- traffic -------------------------------------------------------------------------------------


def _plan(event: Event) -> TrafficPlan:
    return TrafficPlan(
        at_s=event.at_s,
        profile=Profile.from_json(json.dumps(event.data["profile"])),
        schedule=ChunkSchedule.from_json(json.dumps(event.data["schedule"])),
        calibration=Calibration.from_json(event.data["calibration"]),
    )


# -- sums ----------------------------------------------------------------------------------------


def _wasted(
    log: Sequence[Event], iterations: Sequence[Iteration], recoveries: Sequence[Recovery]
) -> WastedTime | None:
    complete_s = [event.data["duration_s"] for event in _of(log, "version_complete")]
    measured = [(r.wasted_s, r.retrieval_s) for r in recoveries if r.wasted_s is not None]
    if not (complete_s and measured and iterations):
        return None
    return WastedTime(
        checkpoint_s=median(complete_s),
        interval_s=median(iteration.duration_s for iteration in iterations),
        retrieval_s=fmean(retrieval_s for _, retrieval_s in measured),
        measured_s=tuple(wasted_s for wasted_s, _ in measured if wasted_s is not None),
    )


def _traffic(log: Sequence[Event]) -> Traffic:
    complete = _of(log, "version_complete")
    persisted = _of(log, "persist_finished")
    return Traffic(
        checkpoint_bytes=sum(event.data["sent_bytes"] for event in complete),
        versions=len({event.data["version"] for event in complete}),
        recovery_bytes=sum(
            event.data.get("size_bytes", 0)
            for event in _of(log, "shard_restored")
            if event.data["tier"] == "peer"
        ),
        persistent_bytes=sum(event.data.get("size_bytes", 0) for event in persisted),
        persistent_versions=tuple(sorted({event.data["version"] for event in persisted})),
        persistent_failures=tuple(
            f"version {event.data.get('version')}: {event.data.get('reason', '')}"
            for event in _of(log, "persist_failed")
        ),
    )
