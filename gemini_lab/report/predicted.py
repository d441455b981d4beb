"""A run beside its prediction: the same failures in the simulator, with times from a log."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.report.measured import (
    failures_of,
    measure,
    steps_of,
    trained_s,
    trained_versions,
)
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables.spent import spent_within
from gemini_lab.simulator.interval import Interval
from gemini_lab.simulator.replay import Replay, replay
from gemini_lab.simulator.times import Times
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """One part of a run.

    Attributes:
        label: For people.
        predicted: In seconds, simulated; `None` where the simulation has no such part.
        measured_s: In the run.
    """

    label: str
    predicted: Interval | None
    measured_s: float

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured time lies in the predicted 95 %; `None` without a prediction."""
        if self.predicted is None:
            return None
        return self.predicted.low - 1e-3 <= self.measured_s <= self.predicted.high + 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A run beside its prediction, from the start of its first iteration to the end of its last.

    Attributes:
        rows: One a part; they add up to the total.
        total: All of it.
        effective: The share of it that trained, from 0 to 1, with the same interval.
        measured_effective: The same in the run.
        source: Where the simulation's times come from.
        is_own: Whether that is this very run, so that only the model is tried, not its times.
        assumed: What that source does not say, and stands at a default (`Workload.assumed`).
    """

    rows: tuple[PredictedRow, ...]
    total: PredictedRow
    effective: Interval
    measured_effective: float
    source: str
    is_own: bool
    assumed: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Of the predicted total, as a share of the measured one."""
        assert self.total.predicted is not None
        return self.total.predicted.mean / self.total.measured_s - 1


def predict(run: RunReducer, *, learned: RunReducer | None = None) -> Predicted:
    """Simulate a run's failures with the times of another run, or with its own.

    Args:
        run: What to predict, with all of its recoveries (`reducer.FOR_REPORT`).
        learned: The run to learn from; without it `run` itself.

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
    """A run's seconds by the simulator's parts: of a warm-up, an iteration's time is training."""
    starts_s, ends_s = trained_s(run)
    into = spent_within(run, starts_s, ends_s)
    iteration_s = times.iteration.mean_s + times.waited.mean_s
    warm_up_s = sum(
        steps_of(recovery, iteration_s).warm_up_s
        for recovery in run.recoveries.recoveries()
        if recovery.failed_at_s >= starts_s and recovery.resumed_at_s is not None
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
    """The table for a terminal, without a heading."""
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
