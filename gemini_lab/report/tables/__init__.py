"""Tables for views, made from a run's reducer and those of earlier runs beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables.headline import answers
from gemini_lab.report.tables.iterations import (
    Baseline,
    CurveTable,
    IterationTable,
    curves,
    iterations,
)
from gemini_lab.report.tables.recoveries import (
    Losses,
    RecoveryTable,
    WastedTable,
    recoveries,
    wasted,
)
from gemini_lab.report.tables.recoveries import losses as losses_of
from gemini_lab.report.tables.replica_map import (
    MemoryTable,
    ReplicaTable,
    memory,
    replicas,
)
from gemini_lab.report.tables.status import Status, status
from gemini_lab.report.tables.time_breakdown import TimeShares, spent
from gemini_lab.report.values import HeadlineAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """One snapshot; each view draws one part of it."""

    status: Status
    answers: tuple[HeadlineAnswer, ...]
    curves: CurveTable
    spent: TimeShares
    replicas: ReplicaTable
    memory: MemoryTable
    recoveries: RecoveryTable
    iterations: IterationTable
    wasted: WastedTable


def tables_of(
    run: RunReducer,  # what its log comes to
    *,
    losses: Losses | None = None,  # what it lost, if that has been worked out before
    # Runs to be shown beside it, with what they lost.
    earlier: Sequence[tuple[RunReducer, Losses]] = (),
    # The moment on the log's clock, so that ages grow while a live run is silent; by default that
    # of the newest entry.
    now_s: float | None = None,
    is_past: bool = False,  # whether that is a moment that somebody looks back at
) -> Tables:
    """Return a snapshot of a run."""
    mine = losses or losses_of(run)
    others = [(one.name, lost) for one, lost in earlier]
    paces = iterations(
        run.pace, marks=mine.marks, baselines=[_baseline(one, run) for one, _ in earlier]
    )
    logged = curves(run, marks=mine.marks, earlier=[one for one, _ in earlier])
    parts = spent(run, now_s=now_s)
    return Tables(
        answers=answers(run, mine, curves=logged, iterations=paces, spent=parts),
        status=status(
            run, now_s=max(run.newest_s or 0.0, now_s or 0.0), losses=mine, is_past=is_past
        ),
        curves=logged,
        spent=parts,
        replicas=replicas(run),
        memory=memory(run),
        recoveries=recoveries(mine, others),
        iterations=paces,
        wasted=wasted(mine, others),
    )


def answers_of(
    run: RunReducer, *, earlier: Sequence[RunReducer] = ()
) -> tuple[HeadlineAnswer, ...]:
    """Return the answers of `Tables` alone."""
    mine = losses_of(run)
    baselines = [_baseline(one, run) for one in earlier]
    return answers(
        run,
        mine,
        curves=curves(run, earlier=earlier),
        iterations=iterations(run.pace, baselines=baselines),
        spent=spent(run),
    )


def _baseline(one: RunReducer, run: RunReducer) -> Baseline:
    is_same = one.course.job is not None and run.course.job is not None
    is_same = is_same and one.course.job.script == run.course.job.script  # type: ignore[union-attr]
    return Baseline(
        name=one.name,
        pace=one.pace,
        is_without=is_same and one.course.settings.get("scheme") == "none",
    )
