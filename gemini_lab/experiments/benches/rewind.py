"""How long a loss of NaN holds training up where a guard takes the iteration back.

One run meets bad batches, one every few iterations. Another one of the same length has neither bad
batches nor a guard: what an iteration takes in both says what the guard costs.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.experiments.bench import Row
from gemini_lab.experiments.quickstart import gpt_job
from gemini_lab.lab.lab import Lab
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, Rewound
from gemini_lab.log.file import read_log
from gemini_lab.report.values import RunReport

NODES: Final = 2
FIRST: Final = 8  # iterations before the first bad batch
BETWEEN: Final = 6
LIMIT_S: Final = 600.0


def bench(repeats: int) -> list[Row]:
    """Have `repeats` bad batches in one run of a lab."""
    bad = [FIRST + number * (BETWEEN + 1) for number in range(repeats)]
    iterations = FIRST + repeats * BETWEEN + BETWEEN
    with (
        tempfile.TemporaryDirectory(prefix="gemini_lab-bench-") as folder,
        Lab(NODES, folder=Path(folder)) as lab,
    ):
        lab.wait_until_ready()
        plain = gpt_job(size="tiny", iterations=iterations)
        unguarded = lab.train(plain, persistent_url=None).wait(LIMIT_S).report()
        job = gpt_job(
            size="tiny",
            iterations=iterations,
            gemini={"on_not_finite": "rewind"},
            bad_batches=",".join(map(str, bad)),
        )
        run = lab.train(job, persistent_url=None).wait(LIMIT_S)
        return rows_of(read_log(run.log), guarded=run.report(), unguarded=unguarded)


def rows_of(log: Iterable[Entry], *, guarded: RunReport, unguarded: RunReport) -> list[Row]:
    """What the runs came to.

    Args:
        log: The guarded run's.
        guarded: The same run's report.
        unguarded: That of the other one.

    Raises:
        GeminiError: A run failed.
    """
    for report in (guarded, unguarded):
        if report.outcome != "finished":
            raise GeminiError(f"{report.name} did not finish: {report.reason}")
    took = [*_rewinds(log)]
    return [
        Row(name="NaN to the end of the next good iteration", values=tuple(s for s, _ in took)),
        Row(name="of it, going back", values=tuple(s for _, s in took)),
        Row(name="an iteration, guarded", values=_steady(guarded)),
        Row(name="an iteration, unguarded", values=_steady(unguarded)),
        Row(
            name="processes that were started anew, in all",
            unit="",
            values=(float(len(guarded.recoveries)),),
        ),
    ]


def _rewinds(log: Iterable[Entry]) -> Iterator[tuple[float, float]]:
    """Of each rewind the seconds between the two iterations around it, and those it took."""
    ended_s, going_back = 0.0, None
    for entry in log:
        match entry.event:
            case Rewound(rank=0) as said:
                going_back = said
            case Iteration(rank=0):
                if going_back is not None:
                    yield entry.at_s - ended_s, going_back.duration_s
                ended_s, going_back = entry.at_s, None


def _steady(report: RunReport) -> tuple[float, ...]:
    """What iterations of rank 0 took, but for the first ones."""
    of_rank = (one for one in report.iterations if one.rank == 0)
    return tuple(one.duration_s for one in of_rank if one.number > FIRST // 2)
