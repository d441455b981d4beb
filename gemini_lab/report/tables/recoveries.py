"""Tables of recoveries and of what failures cost, measured and by Eq. (1)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Final, Literal, TypeVar

from gemini_lab.report.recovery import Recovery, Step, WastedTime, blamed_for
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.iteration_pace import IterationPace
from gemini_lab.units import format_seconds

Origin = Literal["measured here", "simulated", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureMark:
    """Something that happened at an iteration."""

    iteration: int
    text: str
    is_planned: bool = False  # whether somebody had asked for it: it is no failure


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRow:
    """One recovery, or what a model says of one."""

    label: str  # for the axis; unique in its table
    origin: Origin
    cause: str  # what failed, or what the model assumes
    # In order of time, in seconds since the failure or the planned stop; the lost progress, to be
    # done again, is last.
    steps: tuple[Step, ...]
    # From the failure to the end of the first iteration; `None` while it lasts.
    down_s: float | None
    wasted_s: float | None  # lost progress and retrieval; `None` while unknown
    lost_iterations: int
    source: str
    is_planned: bool = False  # whether somebody had asked for it: nothing failed
    error: str = ""  # which worker raised what, if one did
    output: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTable:
    """Recoveries of this run, of earlier ones, and the persistent baseline."""

    # This run's newest ones first in order of time, then others, then the model.
    rows: tuple[RecoveryRow, ...]
    total: int  # recoveries of this run, planned moves among them, shown or not
    notes: tuple[str, ...]
    # The last one of this run that is over, with all that is known of it.
    newest: Recovery | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WastedRow:
    """Wasted time of one failure, in the parts of Eq. (1)."""

    label: str  # for the axis; unique in its table
    origin: Origin
    parts: tuple[tuple[str, float], ...]  # name and seconds, in order
    how: str

    @property
    def total_s(self) -> float:
        return sum(seconds for _, seconds in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class WastedTable:
    """Wasted time, measured beside Eq. (1)."""

    rows: tuple[WastedRow, ...]
    each_s: tuple[float, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The cost of a run's failures."""

    origin: Origin
    recoveries: tuple[Recovery, ...] = ()  # those that are kept, in order
    total: int = 0  # all of them
    # Eq. (1) with the run's own figures; `None` until there is something to measure.
    wasted: WastedTime | None = None
    # Eq. (1) for the persistent tier alone; `None` without two versions in it.
    persistent: WastedTime | None = None

    @property
    def wasted_s(self) -> float:
        return sum(r.wasted_s for r in self.recoveries if r.wasted_s is not None)

    @property
    def marks(self) -> tuple[FailureMark, ...]:
        """The iteration in which each failure struck: the first that some rank did not end."""
        return tuple(
            FailureMark(
                iteration=recovery.reached + 1,
                text=f"recovery {recovery.number}: {recovery.cause.replace('_', ' ')}",
                is_planned=recovery.is_planned,
            )
            for recovery in self.recoveries
        )


def losses(run: RunReducer) -> Losses:
    """Work out a run's recoveries, as its report does."""
    recoveries = run.recoveries.recoveries()
    return Losses(
        origin="simulated" if run.course.is_simulated else "measured here",
        recoveries=recoveries,
        total=run.recoveries.total,
        wasted=wasted_time(run.pace, recoveries),
        persistent=_persistent(tuple(run.persistent.written), recoveries),
    )


def _persistent(
    persisted: Sequence[tuple[float, float]], recoveries: Iterable[Recovery]
) -> WastedTime | None:
    """Return Eq. (1) for the persistent tier alone, written as often as it was in this run.

    Reading it takes what it took where a recovery did, else as long as writing.
    """
    ends_s = [at_s for at_s, _ in persisted]
    between_s = [after - before for before, after in pairwise(ends_s)]
    if not between_s:
        return None
    checkpoint_s = median(duration_s for _, duration_s in persisted)
    read_s = [r.retrieval_s for r in recoveries if r.tier == "persistent" and r.retrieval_s]
    return WastedTime(
        checkpoint_s=checkpoint_s,
        interval_s=median(between_s),
        retrieval_s=fmean(read_s) if read_s else checkpoint_s,
        measured_s=(),
    )


Row = TypeVar("Row", RecoveryRow, WastedRow)
SHOWN: Final = 12
"""Of this run's recoveries those that are shown, and of all earlier runs together."""
LOST, CHECKPOINT, HALF, RETRIEVAL = "lost progress", "t_ckpt", "1/(2f)", "t_rtvl"


# -- recoveries ------------------------------------------------------------------------------------


def recoveries(mine: Losses, earlier: Sequence[tuple[str, Losses]] = ()) -> RecoveryTable:
    """Return timelines of this run's and earlier recoveries, and of the persistent baseline."""
    rows = [_row(r, mine.origin, f"recovery {r.number}") for r in mine.recoveries[-SHOWN:]]
    notes = []
    if mine.total > len(rows):
        notes.append(f"the newest {len(rows)} of {mine.total} recoveries")
    for recovery in mine.recoveries[-SHOWN:]:
        notes += [f"recovery {recovery.number}: {late}" for late in recovery.importing]
    others = [
        _row(r, other.origin, f"{name}, recovery {r.number}")
        for name, other in earlier
        for r in other.recoveries
    ]
    baseline = _baseline(mine)
    if baseline is None and mine.total:
        notes.append("no persistent baseline: it takes two versions in the persistent tier")
    others = others[-SHOWN:]
    if baseline is not None:
        others.append(baseline)
        notes.append(f"{baseline.label}: a model, {baseline.cause}; {baseline.source}")
    done = [each for each in mine.recoveries if each.duration_s is not None and each.steps]
    return RecoveryTable(
        rows=_unique((*rows, *others)),
        total=mine.total,
        notes=tuple(notes),
        newest=done[-1] if done else None,
    )


def _unique(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows with labels that differ: a table's axis has one line for each."""
    seen: dict[str, int] = {}
    result = []
    for row in rows:
        seen[row.label] = seen.get(row.label, 0) + 1
        times = seen[row.label]
        result.append(row if times == 1 else replace(row, label=f"{row.label} ({times})"))
    return tuple(result)


def _row(recovery: Recovery, origin: Origin, label: str) -> RecoveryRow:
    begin_s = recovery.failed_at_s
    steps = [
        Step(name=step.name, start_s=step.start_s - begin_s, end_s=step.end_s - begin_s)
        for step in recovery.steps
    ]
    if recovery.duration_s is not None and recovery.lost_progress_s:
        redone_s = recovery.duration_s + recovery.lost_progress_s
        steps.append(Step(name="redo", start_s=recovery.duration_s, end_s=redone_s))
    gone = blamed_for(recovery)
    return RecoveryRow(
        label=label,
        origin=origin,
        cause=recovery.what,
        steps=tuple(steps),
        down_s=recovery.duration_s,
        wasted_s=recovery.wasted_s,
        lost_iterations=recovery.lost_iterations,
        source=recovery.source,
        is_planned=recovery.is_planned,
        error="" if gone is None else str(gone),
        output=() if gone is None or gone.is_from_outside else gone.output,
    )


def _baseline(mine: Losses) -> RecoveryRow | None:
    """Return the last recovery as it would be from the persistent tier, by Eq. (1)."""
    done = [r for r in mine.recoveries if r.duration_s is not None and r.steps and not r.is_planned]
    model = mine.persistent
    if model is None or not done:
        return None
    at_s = 0.0
    steps = []
    for step in done[-1].steps:
        took_s = model.retrieval_s if step.name == "retrieve" else step.duration_s
        steps.append(Step(name=step.name, start_s=at_s, end_s=at_s + took_s))
        at_s += took_s
    lost_s = model.predicted_s - model.retrieval_s
    steps.append(Step(name="redo", start_s=at_s, end_s=at_s + lost_s))
    return RecoveryRow(
        label="persistent tier only",
        origin="model",
        cause=f"recovery {done[-1].number}, had there been no version in memory",
        steps=tuple(steps),
        down_s=at_s,
        wasted_s=model.predicted_s,
        lost_iterations=0,
        source="Eq. (1) with one written every "
        f"{format_seconds(model.interval_s)} and read in {format_seconds(model.retrieval_s)}",
    )


# -- wasted time -----------------------------------------------------------------------------------


def wasted(mine: Losses, earlier: Sequence[tuple[str, Losses]] = ()) -> WastedTable:
    """Return the wasted time of a failure: measured, and by Eq. (1) for both tiers."""
    rows = []
    for name, run in (("this run", mine), *earlier):
        rows += _wasted_rows(name, run)
    if mine.persistent is not None:
        rows.append(
            _model(
                "persistent tier only", mine.persistent, "with this run's persistent checkpoints"
            )
        )
    notes = []
    if mine.wasted is None:
        notes.append("nothing measured: no recovery from a version in memory has ended")
    return WastedTable(
        rows=_unique(rows),
        each_s=() if mine.wasted is None else mine.wasted.measured_s,
        notes=tuple(notes),
    )


def _wasted_rows(name: str, run: Losses) -> list[WastedRow]:
    if run.wasted is None:
        return []
    done = [r for r in run.recoveries if r.wasted_s is not None]
    lost_s = fmean(r.lost_progress_s or 0.0 for r in done)
    measured = WastedRow(
        label=f"{name}, {'simulated' if run.origin == 'simulated' else 'measured'}",
        origin=run.origin,
        parts=((LOST, lost_s), (RETRIEVAL, run.wasted.retrieval_s)),
        how=f"mean of {len(done)} recover{'y' if len(done) == 1 else 'ies'}",
    )
    return [measured, _model(f"{name}, Eq. (1)", run.wasted, "with the run's own medians")]


def _model(label: str, figures: WastedTime, how: str) -> WastedRow:
    half_s = figures.predicted_s - figures.checkpoint_s - figures.retrieval_s
    parts = ((CHECKPOINT, figures.checkpoint_s), (HALF, half_s), (RETRIEVAL, figures.retrieval_s))
    return WastedRow(label=label, origin="model", parts=parts, how=how)


def wasted_time(pace: IterationPace, recoveries: Sequence[Recovery]) -> WastedTime | None:
    """Return Eq. (1) with a run's own figures; `None` until something is measured."""
    measured = [(r.wasted_s, r.retrieval_s) for r in recoveries if r.wasted_s is not None]
    checkpoint_s, interval_s = pace.checkpoint_median_s(), pace.interval_median_s()
    if not measured or checkpoint_s is None or interval_s is None:
        return None
    return WastedTime(
        checkpoint_s=checkpoint_s,
        interval_s=interval_s,
        retrieval_s=fmean(retrieval_s for _, retrieval_s in measured),
        measured_s=tuple(wasted_s for wasted_s, _ in measured),
    )
