"""What verifying sums costs, and who is named when bits turn in what a machine computes.

1. Runs of which some iterations are verified take turns with runs of which none is. Those around
   a verified iteration tell how much longer it takes.
2. A run that verifies every iteration is struck again and again: one bit flips, once, in a
   gradient, an activation or an optimizer's result, of one node after the other, in a weight or
   layer that is drawn again. It trains on, so that the next strike can come.
"""

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from gemini_lab.injector.failures import Where, WrongSums
from gemini_lab.lab.lab import Lab
from gemini_lab.lab.run import Run
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.file import read_log
from gemini_lab.report.values import RunReport
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.live_lab import LIMIT_S, finished, ready_lab, wait_for
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row, single

NODES: Final = 3
EVERY: Final = 5
ITERATIONS: Final = 64
STRIKES: Final = 4  # a repeat
WAITS: Final = 4  # iterations in which a flip shows, or is without effect
SPARSE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A bit that turned, and what came of it."""

    where: Where  # in what
    node: str  # on which node
    found: events.WrongSums | None  # what was said of it; `None` for nothing

    @property
    def is_named(self) -> bool:
        return self.found is not None and self.found.nodes == (self.node,)


def bench(repeats: int) -> list[Row]:
    """Measure `repeats` pairs of runs, and strike another one four times as often."""
    plain: list[RunReport] = []
    verified: list[RunReport] = []
    logs: list[Path] = []
    with ready_lab(NODES) as lab:
        for number in range(repeats):
            plain.append(_finished(lab).report())
            run = _finished(lab, verify_every=EVERY)
            verified.append(run.report())
            logs.append(run.log)
            say(f"unverified and verified, {number + 1} of {repeats}")
        settings = {"verify_every": 1, "on_wrong_sums": "warn"}
        struck = lab.train(
            gpt_job(size="tiny", iterations=10**6, gemini=settings), persistent_url=None
        )
        tries = list(_strike(struck, STRIKES * repeats))
        clean = struck.report().verified.iterations
        struck.stop()
        took = [one for log in logs for one in longer_in(read_log(log))]
    clean += sum(report.verified.iterations for report in verified)
    return [*cost_rows(plain, verified, took), *tries_rows(tries, clean=clean)]


def _finished(lab: Lab, **gemini: int) -> Run:
    return finished(lab, gpt_job(size="tiny", iterations=ITERATIONS, gemini=dict(gemini)))


def _strike(run: Run, count: int) -> Iterator[Try]:
    """Turn a bit, and see what is said of it; then the next one."""
    wait_for(run, iteration=WAITS)
    kinds = itertools.cycle(get_args(Where))
    for number in range(count):
        where, rank = next(kinds), number % NODES
        told = len(run.events("wrong_sums"))
        began = run.iteration
        run.inject(WrongSums(f"rank-{rank}", where, lasts=False, seed=number))
        give_up_s = time.monotonic() + LIMIT_S
        while run.iteration < began + WAITS and time.monotonic() < give_up_s:
            time.sleep(0.05)
        said = [one.event for one in run.events("wrong_sums")[told:]]
        found = next((one for one in said if isinstance(one, events.WrongSums)), None)
        say(f"strike {number + 1} of {count}")
        yield Try(where=where, node=str(run.members[rank]), found=found)


def longer_in(log: Iterable[Entry]) -> Iterator[float]:
    """Yield by how much each verified iteration of a log took longer than those beside it.

    Gradients are computed again before an iteration ends, its update after that, in the time of the
    next one: so two iterations are compared with the two before them and the two after.
    """
    ended_s = {
        entry.event.iteration: entry.at_s
        for entry in log
        if isinstance(entry.event, events.Iteration) and entry.event.rank == 0
    }
    for number in range(EVERY, max(ended_s, default=0) - 2, EVERY):
        before, begin, end, after = (ended_s[number + by] for by in (-3, -1, 1, 3))
        yield (end - begin) - ((begin - before) + (after - end)) / 2


def cost_rows(
    plain: Sequence[RunReport], verified: Sequence[RunReport], took: Sequence[float]
) -> list[Row]:
    """Return what verifying costs; `took` is what `longer_in` gave."""
    steps = _steady(plain)
    usual = statistics.median(steps)
    return [
        Row("an iteration, none verified", steps),
        Row("an iteration between verified ones", _steady(verified)),
        Row("longer where one is verified", tuple(took)),
        Row(
            f"share of training time, one in {SPARSE} verified",
            tuple(100 * one / (SPARSE * usual) for one in took),
            unit="%",
        ),
    ]


def tries_rows(tries: Sequence[Try], *, clean: int) -> list[Row]:
    """Return the rows that say which nodes were named when bits turned, and when none did."""
    rows = [
        single(
            f"bit in {one}: of {sum(t.where == one for t in tries)}, the node was named",
            sum(t.is_named for t in tries if t.where == one),
        )
        for one in get_args(Where)
    ]
    found = [one.found for one in tries if one.found is not None]
    accused = sum(bool({*t.found.nodes} - {t.node}) for t in tries if t.found is not None)
    return [
        *rows,
        Row("replays until it was", tuple(float(f.replays) for f in found), unit=""),
        single("bits without any effect on sums", len(tries) - len(found)),
        single("right machines that were accused", accused),
        single("iterations in which all said the same", clean),
    ]


def _steady(reports: Iterable[RunReport]) -> tuple[float, ...]:
    """Return what iterations of rank 0 took that were neither the first ones nor verified.

    The update is verified after it, in the time of the next iteration.
    """
    of_rank = (one for report in reports for one in report.iterations if one.rank == 0)
    return tuple(one.duration_s for one in of_rank if one.number > 2 and one.number % EVERY > 1)
