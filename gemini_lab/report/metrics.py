"""A run's reducer as metrics in the words of Prometheus and OpenMetrics.

A name ends with its unit, a counter with `_total`; seconds and bytes, never other units. All come
from the run's log, so they are the numbers of report and dashboard.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
import numpy.typing as npt
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.samples import Sample

from gemini_lab.log import events
from gemini_lab.report.follower import LogFollower
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.copies import NONE
from gemini_lab.report.reducers.course import Phase
from gemini_lab.report.tables.replica_map import memory
from gemini_lab.report.tables.status import seated, standbys
from gemini_lab.report.tables.time_breakdown import PARTS, SHOWN, spent

PREFIX: Final = "gemini_lab"
APART_S: Final = 1.0
MOMENTS: Final = 2000
"""Of a run at most, about, of which there are snapshots."""
STEP_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
RECOVERY_BUCKETS_S: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run's metrics at a moment."""

    metrics: Sequence[Metric]  # all of them; none before the run has begun
    iteration: int  # newest one that every rank has finished
    started_s: float  # when the run began, on the log's clock
    at_s: float
    is_over: bool
    is_newest: bool  # whether the log has no more by now


def snapshot_of(run: RunReducer, *, now_s: float, is_newest: bool = True) -> Snapshot:
    """Return a run's metrics at the moment `now_s` of the log's clock."""
    return Snapshot(
        metrics=tuple(metrics_of(run, now_s=now_s)),
        iteration=run.reached.done(),
        started_s=run.course.started_at_s,
        at_s=now_s if run.course.ended_at_s is None else run.course.ended_at_s,
        is_over=run.course.is_over,
        is_newest=is_newest,
    )


def snapshots(follower: LogFollower) -> Iterator[Snapshot]:
    """Give the metrics after each iteration that the log told since, and as they are now.

    The moments are `APART_S` apart or more, and further apart the older the run is: a snapshot
    costs time in proportion to the iterations until then. A follower that reads no log itself has
    only the newest moment.
    """
    next_s = 0.0
    for entry in follower.entries():
        if isinstance(entry.event, events.Iteration) and entry.at_s >= next_s:
            then = snapshot_of(follower.run, now_s=entry.at_s, is_newest=False)
            next_s = then.at_s + max(APART_S, (then.at_s - then.started_s) / MOMENTS)
            yield then
    yield follower.ask(lambda run, now_s: snapshot_of(run, now_s=now_s))


def metrics_of(run: RunReducer, *, now_s: float) -> Iterator[Metric]:
    """Give all metrics of a run at the moment `now_s` of the log's clock."""
    if run.course.job is None:
        return
    if run.course.ended_at_s is not None:
        now_s = run.course.ended_at_s
    yield from _course(run, now_s)
    yield from _pace(run)
    yield from _versions(run, now_s)
    yield from _time(run, now_s)
    yield from _recoveries(run)
    yield from _bytes(run)
    yield from _nodes(run)


def _course(run: RunReducer, now_s: float) -> Iterator[Metric]:
    job = run.course.job
    assert job is not None
    told = {
        "run": run.name,
        "script": job.script or "",
        "nodes": str(job.nodes),
        "workers_per_node": str(job.workers_per_node),
        "standbys": str(job.standbys),
        "scheme": str(run.course.settings.get("scheme", "")),
        "replicas": str(run.course.settings.get("replicas", "")),
    }
    yield InfoMetricFamily(f"{PREFIX}_run", "The run, and what it runs", value=told)
    phases: dict[str, bool] = {phase: phase == run.course.phase for phase in PHASES}
    yield StateSetMetricFamily(f"{PREFIX}_phase", "What the run does now", value=phases)
    silent_s = None if run.newest_s is None else max(0.0, now_s - run.newest_s)
    yield _gauge("silent_seconds", "Time since anything was told of the run", silent_s)
    yield _gauge("iteration", "Newest iteration that every rank has finished", run.reached.done())
    logged = GaugeMetricFamily(
        f"{PREFIX}_logged", "Newest value that the script logged, mean over ranks", labels=["name"]
    )
    for name in run.logged.names:
        means = run.logged.told(name, until=run.reached.done()).means
        if means.size:
            logged.add_metric([name], float(means[-1]))
    yield logged
    yield _counter("divergences", "Iterations that came out otherwise", len(run.divergences.found))


def _pace(run: RunReducer) -> Iterator[Metric]:
    starts_s, ends_s, waited_s = run.pace.spans()
    durations_s = ends_s - starts_s
    text = "Time of an iteration on its slowest rank"
    yield _histogram("step_seconds", text, durations_s, STEP_BUCKETS_S)
    text = "Of that, how long the update waited for the version on its way"
    yield _histogram("checkpoint_wait_seconds", text, waited_s, STEP_BUCKETS_S)
    text = "Time from an update until its version was whole, by rank"
    yield _histogram("checkpoint_seconds", text, run.pace.checkpoint_times_s(), STEP_BUCKETS_S)


def _versions(run: RunReducer, now_s: float) -> Iterator[Metric]:
    copies = run.copies
    version, survivable = copies.newest(), copies.survivable()
    whole_at_s = copies.whole_at_s(version)
    yield _gauge("version", "Newest version that is whole in memory", version)
    age_s = None if whole_at_s is None else max(0.0, now_s - whole_at_s)
    yield _gauge("version_age_seconds", "Time since it became whole", age_s)
    kept = None if copies.persistent == NONE else copies.persistent
    yield _gauge("persistent_version", "Newest version in the persistent tier", kept)
    written = run.persistent.written
    age_s = max(0.0, now_s - written[-1][0]) if written else None
    yield _gauge("persistent_version_age_seconds", "Time since it was whole there", age_s)
    text = "Any so many nodes may be lost now; -1: memory has no whole version"
    yield _gauge("survivable_nodes", text, None if survivable is None else survivable[0])


def _time(run: RunReducer, now_s: float) -> Iterator[Metric]:
    table = spent(run, now_s=now_s)
    parts = GaugeMetricFamily(
        f"{PREFIX}_time_seconds",
        "Wall time of the run by what it went into; the parts sum to all of it",
        labels=["part", "kind"],
    )
    seconds = {row.part: row.seconds for row in table.rows}
    for part in SHOWN:
        kind = "goodput" if part == "training" else "badput"
        parts.add_metric([PARTS[part][0], kind], seconds.get(part, 0.0))
    yield parts
    share = seconds.get("training", 0.0) / table.wall_s if table.wall_s else None
    yield _gauge("goodput_ratio", "Share of the wall time that trained", share)


def _recoveries(run: RunReducer) -> Iterator[Metric]:
    outages = run.spans.outages()
    yield _counter("recoveries", "Recoveries that began", run.recoveries.total)
    took_s = [one.resumed_s - one.failed_s for one in outages if np.isfinite(one.resumed_s)]
    text = "Time from a failure to the end of the first iteration after it"
    yield _histogram("recovery_seconds", text, took_s, RECOVERY_BUCKETS_S)
    steps = CounterMetricFamily(
        f"{PREFIX}_recovery_step_seconds", "Time that each step of recoveries took", labels=["step"]
    )
    total: defaultdict[str, float] = defaultdict(float)
    for number, step, (start_s, end_s) in run.spans.steps:
        if number:
            total[step] += end_s - start_s
    for step, seconds in sorted(total.items()):
        steps.add_metric([step], seconds)
    yield steps
    restored = CounterMetricFamily(
        f"{PREFIX}_restored_bytes", "Shards that were loaded, by where they were", labels=["tier"]
    )
    for tier in ("local", "peer", "persistent"):
        restored.add_metric([tier], run.sums.restored_bytes[tier])
    yield restored


def _bytes(run: RunReducer) -> Iterator[Metric]:
    text = "Replicas sent to other nodes while training"
    yield _counter("replica_bytes", text, run.sums.checkpoint_bytes)
    yield _counter("persistent_bytes", "Written to the persistent tier", run.persistent.size_bytes)
    text = "Versions that did not get to the persistent tier"
    yield _counter("persistent_failures", text, run.persistent.failed)
    taken = GaugeMetricFamily(
        f"{PREFIX}_memory_bytes", "CPU memory for checkpoints", labels=["node", "what"]
    )
    for row in memory(run).rows:
        taken.add_metric([row.node, "own"], row.own_bytes)
        taken.add_metric([row.node, "peers"], row.peers_bytes)
        taken.add_metric([row.node, "writing"], row.writing_bytes)
        taken.add_metric([row.node, "free"], row.free_bytes)
    yield taken


def _nodes(run: RunReducer) -> Iterator[Metric]:
    states = GaugeMetricFamily(f"{PREFIX}_nodes", "Nodes by what they do", labels=["health"])
    found = Counter(row.health for row in (*seated(run), *standbys(run.nodes)))
    for health in ("training", "starting", "recovering", "failed", "lost", "standby"):
        states.add_metric([health], found[health])
    yield states
    yield _counter("nodes_lost", "Nodes that were lost, all told", run.nodes.lost_count)
    slow = GaugeMetricFamily(
        f"{PREFIX}_slow_rank",
        "Work of a rank that is slow, in that of the others",
        labels=["rank", "node"],
    )
    for one in run.ailments.slow.values():
        ratio = one.work_s / one.others_s if one.others_s else float("inf")
        slow.add_metric([str(one.rank), one.name], ratio)
    yield slow
    ailing = GaugeMetricFamily(
        f"{PREFIX}_node_ailing", "Faults that a machine tells of now", labels=["node", "fault"]
    )
    for name, fault in run.ailments.ailing:
        ailing.add_metric([name, fault], 1)
    yield ailing


def _gauge(name: str, text: str, value: float | None) -> Metric:
    """Return a gauge; it is left out while nothing is known."""
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text)
    if value is not None:
        family.add_metric([], value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _histogram(
    name: str,
    text: str,
    values: Sequence[float] | npt.NDArray[np.float64],
    buckets_s: Iterable[float],
) -> Metric:
    ordered = np.sort(np.asarray(values, np.float64))
    edges = tuple(buckets_s)
    counts = np.searchsorted(ordered, edges, side="right").tolist()
    buckets = [*zip(map(str, edges), counts, strict=True), ("+Inf", int(ordered.size))]
    return HistogramMetricFamily(
        f"{PREFIX}_{name}", text, buckets=buckets, sum_value=float(ordered.sum())
    )


WORDS: Final = ("info", "stateset")
"""Kinds of metrics whose values are words; no curve has those."""


class Scalars:
    """Makes numbers of one snapshot after the other.

    A name is the metric's, with slashes where loggers group: `gemini_lab_time_seconds{part="redo"}`
    is `gemini_lab/time_seconds/redo`. Of a histogram it is the mean of what came since the snapshot
    before, under the histogram's name: where each iteration has a snapshot, its own value.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}  # count and sum so far

    def of(self, metrics: Iterable[Metric]) -> dict[str, float]:
        found: dict[str, float] = {}
        for metric in metrics:
            if metric.type == "histogram":
                found.update(self._mean(metric))
            elif metric.type not in WORDS:
                found.update((scalar_name(one), one.value) for one in metric.samples)
        return found

    def _mean(self, metric: Metric) -> Iterator[tuple[str, float]]:
        told = {one.name.removeprefix(metric.name): one.value for one in metric.samples}
        count, total = told["_count"], told["_sum"]
        count_before, total_before = self._sums.get(metric.name, (0.0, 0.0))
        self._sums[metric.name] = count, total
        if count > count_before:
            mean = (total - total_before) / (count - count_before)
            yield scalar_name(Sample(metric.name, {}, mean)), mean


def scalar_name(sample: Sample) -> str:
    """Return a sample's name and labels as a path; `kind` says no more than the label beside it."""
    labels = [text for name, text in sample.labels.items() if name != "kind"]
    return "/".join([PREFIX, sample.name.removeprefix(f"{PREFIX}_"), *labels])
