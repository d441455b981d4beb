"""A run in the simulator's terms: its durations and failures, and beside it its prediction."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from gemini_lab.errors import ConfigError
from gemini_lab.report.recovery import Injection, Recovery
from gemini_lab.report.reducer import FOR_REPORT, RunReducer
from gemini_lab.report.reducers.spans import STRIKES
from gemini_lab.report.tables.time_breakdown import GROUPS, spent_within
from gemini_lab.simulator.interval import Interval
from gemini_lab.simulator.outages import Outage
from gemini_lab.simulator.replay import Replay, replay
from gemini_lab.simulator.times import Measured, Spread, Steps, Times
from gemini_lab.simulator.workload import Workload

LABELS: Final = {
    "training": "training",
    "redo": "lost progress",
    "detect": "detection",
    "fence": "fencing and planning",
    "start": "restart",
    "retrieve": "retrieval",
    "warm_up": "warm-up, beyond an iteration",
    "reserve": "waiting",
    "other": "other",
}


def load_measured(folder: Path | str) -> Measured:
    """Return what `measure` finds in the log of a run's folder.

    Raises:
        ConfigError: There is no log, or nothing to learn from it.
    """
    return measure(RunReducer.load(folder, keep=FOR_REPORT))


def measure(run: RunReducer) -> Measured:
    """Return a run's times with their spread, and the sizes of its job.

    The parts are those of `tables.time_breakdown`: of a recovery's first iteration only what it
    takes longer than others is warm-up here, for it trains, too.

    Raises:
        ConfigError: The log has no job, or no iterations in the middle of training.
    """
    job = run.course.job
    starts_s, _, _ = run.pace.spans()
    kinds = run.pace.kinds()
    durations_s = np.concatenate([kinds[kind][1] for kind in ("with", "without")])
    waited_s = np.concatenate([kinds[kind][2] for kind in ("with", "without")])
    checkpoint_s = run.pace.checkpoint_times_s()
    if job is None or not durations_s.size or not checkpoint_s.size:
        raise ConfigError(
            f"the log of {run.name or 'this run'} has no iterations with checkpoints to learn "
            "from; learn from a run that trained for some iterations under protection"
        )
    iteration_s = float(durations_s.mean())
    times = Times(
        iteration=_spread(np.maximum(durations_s - waited_s, 1e-6).tolist()),
        waited=_spread(waited_s.tolist()),
        version=_spread(checkpoint_s.tolist()),
        first_start=_spread([max(0.0, float(starts_s.min()) - run.course.started_at_s)]),
        recoveries=_recoveries(run.recoveries.recoveries(), iteration_s),
        replacement=_spread(run.arrivals.waits_s) if run.arrivals.waits_s else None,
        source=f"the log of {run.name}",
    )
    placement = run.copies.placement
    return Measured(
        times=times,
        nodes=job.nodes,
        standbys=job.standbys,
        gpus_per_node=job.workers_per_node,
        replicas=1 if placement is None else placement.replicas,
        checkpoint_bytes=max(1, sum(run.copies.shard_bytes)),
    )


def _spread(samples_s: Iterable[float]) -> Spread:
    return Spread(samples_s=tuple(samples_s))


def _recoveries(recoveries: Iterable[Recovery], iteration_s: float) -> dict[str, tuple[Steps, ...]]:
    """Return the steps of each recovery that ended, by the failure that struck first."""
    found: dict[str, list[Steps]] = defaultdict(list)
    for recovery in recoveries:
        if recovery.resumed_at_s is None or recovery.is_planned:
            continue
        struck = [one for one in recovery.injections if one.kind in STRIKES]
        found[struck[0].kind if struck else ""].append(steps_of(recovery, iteration_s))
    return {kind: tuple(steps) for kind, steps in found.items()}


def steps_of(recovery: Recovery, iteration_s: float) -> Steps:
    """Return one recovery's steps; the sum of those of one name where it began anew."""
    sums: defaultdict[str, float] = defaultdict(float)
    for step in recovery.steps:
        sums[GROUPS.get(step.name, step.name)] += max(0.0, step.duration_s)
    return Steps(
        detect_s=sums["detect"],
        fence_s=sums["fence"],
        serialise_s=sums["serialise"],
        start_s=sums["start"],
        retrieve_s=sums["retrieve"],
        warm_up_s=max(0.0, sums["warm_up"] - iteration_s),
    )


def failures_of(run: RunReducer) -> tuple[Outage, ...]:
    """Return a run's failures, injected or not, for a simulation: one a recovery.

    Each strikes where training stood, in iterations that the run had done, the running one as a
    fraction. What struck before the first one delayed the start alone, and is left out. A standby
    sits where the machine sat whose loss made room for it.
    """
    job = run.course.job
    if job is None or not run.pace.numbers().size:
        return ()
    begun_s, _ = trained_s(run)
    seats = {f"node-{position}": position for position in range(job.nodes)}
    spares = [f"node-{job.nodes + i}" for i in range(job.standbys)]
    outages = []
    for recovery in run.recoveries.recoveries():
        struck = [one for one in recovery.injections if one.kind in STRIKES]
        places = {_position(one, seats, job.workers_per_node) for one in struck}
        places = places or {seats.get(name, 0) for name in recovery.lost_nodes} or {0}
        if recovery.lost_nodes and spares:
            seats[spares.pop(0)] = min(places)
        if recovery.failed_at_s < begun_s or recovery.is_planned:
            continue
        outages.append(
            Outage(
                at_s=recovery.failed_at_s - begun_s,
                kind="hardware" if recovery.lost_nodes else "software",
                positions=tuple(sorted(places)),
                cause=", ".join(map(str, struck)) or recovery.cause,
                iteration=_stood(run, recovery.failed_at_s),
                failure=struck[0].kind if struck else "",
            )
        )
    return tuple(outages)


def _stood(run: RunReducer, at_s: float) -> float:
    """Return how many iterations a run had done at a moment, the running one as a fraction."""
    starts_s, ends_s, _ = run.pace.spans()
    before = np.flatnonzero(ends_s <= at_s)
    if not before.size:
        return 0.0
    last = before[np.argmax(ends_s[before])]
    since_s = at_s - float(ends_s[last])
    done = int(run.pace.numbers()[last]) - trained_versions(run)[0]
    return done + min(0.999, since_s / float((ends_s - starts_s).mean()))


def _position(injection: Injection, seats: dict[str, int], per_node: int) -> int:
    if injection.rank is not None:
        return injection.rank // per_node
    return seats.get(injection.node, 0)


def trained_s(run: RunReducer) -> tuple[float, float]:
    """Return when the first iteration began, and when the last one ended."""
    starts_s, ends_s, _ = run.pace.spans()
    return float(starts_s.min()), float(ends_s.max())


def trained_versions(run: RunReducer) -> tuple[int, int]:
    """Return the version that a run began from, above 0 if it resumed, and its last."""
    starts_s, _, _ = run.pace.spans()
    numbers = run.pace.numbers()
    return int(numbers[np.argmin(starts_s)]) - 1, int(numbers.max())


# -- beside its prediction ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """One part of a run."""

    label: str
    # in seconds, simulated; `None` where the simulation has no such part
    predicted: Interval | None
    measured_s: float

    @property
    def is_inside(self) -> bool | None:
        if self.predicted is None:
            return None
        return self.predicted.low - 1e-3 <= self.measured_s <= self.predicted.high + 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A run beside its prediction, from the start of its first iteration to the end of its last."""

    rows: tuple[PredictedRow, ...]  # one a part; they add up to the total
    total: PredictedRow
    effective: Interval  # the share of it that trained, from 0 to 1, with the same interval
    measured_effective: float
    source: str  # where the simulation's times come from
    is_own: bool  # whether that is this very run, so that only the model is tried, not its times
    # what that source does not say, and stands at a default (`Workload.assumed`)
    assumed: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        assert self.total.predicted is not None
        return self.total.predicted.mean / self.total.measured_s - 1


def predict(run: RunReducer, *, learned: RunReducer | None = None) -> Predicted:
    """Simulate a run's failures with the times of another run, or with its own.

    Raises:
        ConfigError: One of the two is no run with iterations, or the times' run has no recovery.
    """
    measured = measure(run)
    known = measured if learned is None else measure(learned)
    workload = Workload.from_log(known)
    if (known.nodes, known.replicas) != (measured.nodes, measured.replicas):
        raise ConfigError(
            f"{known.times.source} is of {known.nodes} nodes with {known.replicas} replicas, but "
            f"{run.name} has {measured.nodes} with {measured.replicas}; learn from a run of the "
            "same job"
        )
    starts_s, ends_s = trained_s(run)
    begun, made = trained_versions(run)
    played = replay(workload, failures_of(run), iterations=made - begun)
    return _beside(played, _parts(run, measured.times), ends_s - starts_s, is_own=learned is None)


def _parts(run: RunReducer, times: Times) -> dict[str, float]:
    """Return a run's seconds by the simulator's parts; a warm-up trains for an iteration."""
    starts_s, ends_s = trained_s(run)
    into = spent_within(run, starts_s, ends_s)
    iteration_s = times.iteration.mean_s + times.waited.mean_s
    warm_up_s = sum(
        steps_of(recovery, iteration_s).warm_up_s
        for recovery in run.recoveries.recoveries()
        if recovery.failed_at_s >= starts_s
        and recovery.resumed_at_s is not None
        and not recovery.is_planned
    )
    return {
        "training": into.seconds("training", "exposed") + into.seconds("warm_up") - warm_up_s,
        "redo": into.seconds("redo"),
        "detect": into.seconds("detect"),
        "fence": into.seconds("fence"),
        "start": into.seconds("start"),
        "retrieve": into.seconds("retrieve"),
        "warm_up": warm_up_s,
        "reserve": into.seconds("waiting"),
    }


def _beside(played: Replay, parts: dict[str, float], total_s: float, *, is_own: bool) -> Predicted:
    rows = [
        PredictedRow(label=LABELS[part], predicted=played.parts[part], measured_s=seconds)
        for part, seconds in parts.items()
    ]
    other_s = total_s - sum(parts.values())
    rows.append(PredictedRow(label=LABELS["other"], predicted=None, measured_s=other_s))
    return Predicted(
        rows=tuple(rows),
        total=PredictedRow(label="in all", predicted=played.total, measured_s=total_s),
        effective=played.effective,
        measured_effective=parts["training"] / total_s,
        source=played.source,
        is_own=is_own,
        assumed=played.assumed,
    )


def lines(predicted: Predicted) -> Iterator[str]:
    """Give the table for a terminal, without a heading."""
    yield f"  {'':<30}{'simulated':>11}{'95 % of simulations':>26}{'measured':>11}"
    for row in (*predicted.rows, predicted.total):
        if row.predicted is None:
            yield f"  {row.label:<30}{'':>11}{'':>26}{row.measured_s:>9.2f} s"
            continue
        within = f"{row.predicted.low:.2f} to {row.predicted.high:.2f} s"
        mark = "" if row.is_inside else "  outside"
        yield (
            f"  {row.label:<30}{row.predicted.mean:>9.2f} s{within:>26}"
            f"{row.measured_s:>9.2f} s{mark}"
        )
    ratio = predicted.effective
    within = f"{ratio.low:.1%} to {ratio.high:.1%}"
    yield (
        f"  {'effective training time ratio':<30}{ratio.mean:>11.1%}{within:>26}"
        f"{predicted.measured_effective:>11.1%}"
    )
    for text in predicted.assumed:
        yield f"  assumed: {text}"
    own = ", this very run: its times are put in" if predicted.is_own else ""
    yield f"  simulated / measured {1 + predicted.error:.3f}; times from {predicted.source}{own}"
