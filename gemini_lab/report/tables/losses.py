"""What a run lost to failures, by its own figures and by Eq. (1)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from gemini_lab.log.events import PLANNED
from gemini_lab.report.build import wasted_time
from gemini_lab.report.recovery import Recovery, WastedTime
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables.now import Origin
from gemini_lab.report.tables.past import Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What a run lost to failures.

    Attributes:
        origin: Whether it ran or was simulated.
        recoveries: Those that are kept, in order.
        total: All of them.
        wasted: Eq. (1) with the run's own figures; `None` until there is something to measure.
        persistent: Eq. (1) for the persistent tier alone; `None` without two versions in it.
    """

    origin: Origin
    recoveries: tuple[Recovery, ...] = ()
    total: int = 0
    wasted: WastedTime | None = None
    persistent: WastedTime | None = None

    @property
    def wasted_s(self) -> float:
        """Of all recoveries that are kept and over."""
        return sum(r.wasted_s for r in self.recoveries if r.wasted_s is not None)

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The iteration in which each failure struck: the first that some rank did not end."""
        return tuple(
            Mark(
                iteration=recovery.reached + 1,
                text=f"recovery {recovery.number}: {recovery.cause.replace('_', ' ')}",
                is_planned=recovery.cause in PLANNED,
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
    """Eq. (1) if there were only the persistent tier, written as often as it was in this run.

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
