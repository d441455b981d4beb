"""How long a loss of NaN holds training up where a guard takes the iteration back.

Guarded runs meet bad batches, one every few iterations. In turn with them go runs of the same
length with neither bad batches nor a guard: what an iteration takes in both says what the guard
costs.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, Rewound
from gemini_lab.log.file import read_log
from gemini_lab.report.values import RunReport
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.live_lab import finished, ready_lab
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row, single

NODES: Final = 2
FIRST: Final = 8  # iterations before the first bad batch
BETWEEN: Final = 6


def bench(repeats: int) -> list[Row]:
    """Put `repeats` bad batches into two guarded runs of a lab, in turn with unguarded ones."""
    took: list[tuple[float, float]] = []
    guarded: list[RunReport] = []
    unguarded: list[RunReport] = []
    with ready_lab(NODES) as lab:
        for count in (repeats - repeats // 2, repeats // 2):
            iterations = FIRST + count * BETWEEN + BETWEEN
            unguarded.append(finished(lab, gpt_job(size="tiny", iterations=iterations)).report())
            bad = [FIRST + number * (BETWEEN + 1) for number in range(count)]
            job = gpt_job(
                size="tiny",
                iterations=iterations,
                gemini={"on_not_finite": "rewind"},
                bad_batches=",".join(map(str, bad)),
            )
            run = finished(lab, job)
            guarded.append(run.report())
            took += rewinds_in(read_log(run.log))
            say(f"{count} bad batches rewound")
    return rows_of(took, guarded=guarded, unguarded=unguarded)


def rows_of(
    took: Sequence[tuple[float, float]],
    *,
    guarded: Sequence[RunReport],
    unguarded: Sequence[RunReport],
) -> list[Row]:
    """Return what the runs came to; `took` is what `rewinds_in` gave."""
    return [
        Row("NaN to the end of the next good iteration", tuple(s for s, _ in took)),
        Row("of it, going back", tuple(s for _, s in took)),
        Row("an iteration, guarded", _steady(guarded)),
        Row("an iteration, unguarded", _steady(unguarded)),
        single(
            "processes that were started again, in all", sum(len(one.recoveries) for one in guarded)
        ),
    ]


def rewinds_in(log: Iterable[Entry]) -> Iterator[tuple[float, float]]:
    """Yield of each rewind the seconds between the two iterations around it, and its own."""
    ended_s, going_back = 0.0, None
    for entry in log:
        match entry.event:
            case Rewound(rank=0) as said:
                going_back = said
            case Iteration(rank=0):
                if going_back is not None:
                    yield entry.at_s - ended_s, going_back.duration_s
                ended_s, going_back = entry.at_s, None


def _steady(reports: Iterable[RunReport]) -> tuple[float, ...]:
    """Return what iterations of rank 0 took, but for the first ones of each run."""
    of_rank = (one for report in reports for one in report.iterations if one.rank == 0)
    return tuple(one.duration_s for one in of_rank if one.number > FIRST // 2)
