"""Whether Eq. (1) of the paper holds here: what failures waste that come at any time.

Workers of one lab are killed one after the other, each at a moment drawn uniformly by the clock. If
the time that a failure wastes is t_ckpt + 1/(2f) + t_rtvl on average, what is lost beyond t_ckpt is
half a checkpoint's interval on average, and any part of it as often as any other. 100 repeats and
more decide: Eq. (1) holds where what it says lies within the interval of the measured mean.
"""

import random
import time
from statistics import median
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.injector.failures import WorkerCrash
from gemini_lab.report.values import RunReport
from gemini_lab.simulator.interval import mean_interval
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.live_lab import ready_lab, wait_for
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row, single

NODES: Final = 4
SETTLED: Final = 4  # iterations after a start, before a failure may come
WITHIN: Final = 4  # iterations from then, in which it comes


def bench(repeats: int) -> list[Row]:
    """Kill `repeats` workers of one lab, each at a moment of its own."""
    rng = random.Random(repeats)
    with ready_lab(NODES) as lab:
        run = lab.train(gpt_job(size="tiny", iterations=10**6), persistent_url=None)
        pace_s = 0.0
        for number in range(1, repeats + 1):
            wait_for(run, iteration=run.iteration + SETTLED)
            if not pace_s:
                pace_s = median([one.duration_s for one in run.report().iterations[NODES:]])
            time.sleep(any_phase(rng) * pace_s)
            run.inject(WorkerCrash(f"rank-{rng.randrange(NODES)}"))
            wait_for(run, recoveries=number)
            say(f"kill {number} of {repeats}")
        report = run.report()
        run.stop()
    return rows_of(report)


def any_phase(rng: random.Random) -> float:
    """Draw after how many iterations a failure comes: any part of one as often as any other.

    A sum of two even draws, for the pace is known to some percent only: one even draw over 3
    iterations that are taken for 2.7 would prefer the first third of an iteration by a tenth.
    """
    return rng.uniform(0.0, WITHIN / 2) + rng.uniform(0.0, WITHIN / 2)


def rows_of(report: RunReport) -> list[Row]:
    """Return what the failures of a run wasted, beside what Eq. (1) says of them.

    Raises:
        GeminiError: Of none of them it is known.
    """
    wasted = report.wasted
    if wasted is None:
        raise GeminiError("no failure of the run tells what it wasted")
    lost = [one.lost_progress_s for one in report.recoveries if one.lost_progress_s is not None]
    beyond = [(one - wasted.checkpoint_s) / wasted.interval_s for one in lost]
    mean = mean_interval(wasted.measured_s)
    holds = wasted.predicted_s in mean
    return [
        Row("a version until it is whole, t_ckpt", (wasted.checkpoint_s,)),
        Row("an iteration, which is the interval 1/f", (wasted.interval_s,)),
        Row("wasted by a failure, measured", wasted.measured_s),
        Row("the same by Eq. (1)", (wasted.predicted_s,)),
        Row(
            "measured / predicted",
            tuple(one / wasted.predicted_s for one in wasted.measured_s),
            unit="",
        ),
        Row("its mean (Student-t)", (mean.mean,), bounds=(mean.low, mean.high)),
        single("Eq. (1) lies there (1: yes)", holds),
        Row("lost beyond t_ckpt, in intervals (0.5)", tuple(beyond), unit=""),
        single("... in 1 of 4 less than (0.25)", _quartile(beyond, 1)),
        single("... in 3 of 4 less than (0.75)", _quartile(beyond, 3)),
    ]


def _quartile(values: list[float], number: int) -> float:
    """Return the value below which `number` in four lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * number // 4)]
