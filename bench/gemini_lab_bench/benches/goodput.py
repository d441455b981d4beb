"""The effective training time ratio of three systems under real failures: Fig. 15, scaled down.

Strawman and HighFreq on their throttled store, and this system in a lab, train for the same stretch
of time, and are killed at the same moments, each drawn evenly over all of it, so that one may also
come while the last is still being recovered from. Under torchrun all ranks are killed, and started
again at once; in the lab a node goes, with its memory. The ratio is the time that the iterations
which count at the end take without checkpoints and failures, by all that passed; what an iteration
takes so is measured with the baselines' script and with the lab's, and the lesser of both is taken.
Beside it stands the paper's formula with each system's own costs: it knows neither the moments nor
how much was lost.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final

from gemini_lab.injector.failures import NodeLoss
from gemini_lab.lab.lab import Lab
from gemini_lab.report.values import RunReport
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.baselines import (
    STRAWMAN_EVERY,
    WARM_UP,
    Arm,
    lab_arm,
    store_arm,
    store_pace,
)
from gemini_lab_bench.benches.live_lab import ready_lab, wait_for
from gemini_lab_bench.benches.store_runs import (
    LAYER_S,
    RANKS,
    failure_of,
    started,
    stood_at,
)
from gemini_lab_bench.benches.timed_runs import TimedWorkload, under_torchrun
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row

STRETCH_S: Final = 150.0
KILLS: Final = 2  # in each stretch
BARE: Final = TimedWorkload(iterations=4 * WARM_UP, counted=3 * WARM_UP, layer_s=LAYER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What a system made of a stretch of time in which it was killed."""

    arm: Arm  # what its checkpoints and each failure cost
    iterations: int  # that were done in it and count at its end
    bare_s: float  # what one of them takes without checkpoints and failures; median

    @property
    def ratio(self) -> float:
        return self.iterations * self.bare_s / STRETCH_S

    @property
    def predicted(self) -> float:
        """The same by the formula of the paper's Fig. 15, with Eq. (1) and the costs here.

        A start's first iteration is done again in any case, and counts as lost, not as restart.
        """
        arm = self.arm
        running = round(arm.cycle_s / arm.iteration_s) * self.bare_s / arm.cycle_s
        restart_s = fmean(one.restart_s for one in arm.failures) - arm.iteration_s
        return max(0.0, running * (1 - KILLS / STRETCH_S * (arm.predicted_s + restart_s)))


def bench(repeats: int) -> list[Row]:
    """Train with each system for `repeats` stretches, in turn."""
    rng = random.Random(repeats)
    stretches: list[Stretch] = []
    with ready_lab(RANKS, 1) as lab:
        for number in range(1, repeats + 1):
            moments_s = sorted(rng.uniform(0.0, STRETCH_S) for _ in range(KILLS))
            pace_s, rate, often = store_pace()
            bare_s = min(pace_s, under_torchrun(BARE).iteration_s)  # other work can only add
            for name, every in {"Strawman": STRAWMAN_EVERY, "HighFreq": often}.items():
                stretches.append(_on_a_store(name, every, rate, moments_s, bare_s))
                _tell(stretches[-1], number, repeats)
            stretches.append(_in_memory(lab, moments_s, rng, bare_s))
            _tell(stretches[-1], number, repeats)
    return rows_of(stretches)


def rows_of(stretches: Sequence[Stretch]) -> list[Row]:
    """Return each system's ratio, what the formula says, and the costs that were put into it."""
    rows: list[Row] = []
    for name in dict.fromkeys(one.arm.name for one in stretches):
        mine = [one for one in stretches if one.arm.name == name]
        settings = {"ranks": RANKS, "stretch_s": STRETCH_S, "kills": KILLS, "layer_s": LAYER_S}
        rows += [
            Row(
                f"{name}: effective training time ratio",
                tuple(one.ratio for one in mine),
                unit="",
                settings=settings,
            ),
            Row(f"{name}: by the formula", tuple(one.predicted for one in mine), unit=""),
            Row(f"{name}: a bare iteration", tuple(one.bare_s for one in mine)),
            Row(f"{name}: a checkpoint", tuple(one.arm.checkpoint_s for one in mine)),
            Row(f"{name}: a cycle", tuple(one.arm.cycle_s for one in mine)),
            Row(
                f"{name}: wasted by a failure, by Eq. (1)",
                tuple(one.arm.predicted_s for one in mine),
            ),
            Row(
                f"{name}: restart",
                tuple(each.restart_s for one in mine for each in one.arm.failures),
            ),
        ]
    return rows


def _tell(stretch: Stretch, number: int, repeats: int) -> None:
    say(f"{stretch.arm.name}, stretch {number} of {repeats}: {stretch.ratio:.2f}")


def _on_a_store(
    name: str, every: int, rate: float, moments_s: Sequence[float], bare_s: float
) -> Stretch:
    """Measure a stretch of one of the paper's baselines."""
    with started(every, rate) as job:
        job.wait("whole", after_s=0.0)
        job.wait("iteration", after_s=0.0, count=WARM_UP * RANKS)
        begin_s = time.monotonic()
        kills_s = []
        for moment_s in moments_s:
            time.sleep(max(0.0, begin_s + moment_s - time.monotonic()))
            kills_s.append(job.kill())
        time.sleep(max(0.0, begin_s + STRETCH_S - time.monotonic()))
        said = job.wait("iteration", after_s=kills_s[-1])
    end = stood_at(said, begin_s + STRETCH_S, killed_s=kills_s[-1])
    failures = [
        failure_of(said, killed_s)
        for killed_s, next_s in pairwise([*kills_s, math.inf])
        if any(one["what"] == "iteration" and killed_s < one["at_s"] < next_s for one in said)
    ]  # of kills that came before the ranks were back only the last one tells a restart's time
    return Stretch(
        arm=store_arm(name, said, every=every, failures=failures),
        iterations=end - stood_at(said, begin_s),
        bare_s=bare_s,
    )


def _in_memory(lab: Lab, moments_s: Sequence[float], rng: random.Random, bare_s: float) -> Stretch:
    """Measure a stretch of this system, which also saves as often as Strawman, as the paper's."""
    lab.wait_until_ready()
    job = gpt_job(size="tiny", iterations=10**6, layer_s=LAYER_S)
    run = lab.train(job, persist_every_iterations=STRAWMAN_EVERY)
    wait_for(run, iteration=WARM_UP)
    begin, begin_s = run.iteration, time.time()
    for moment_s in moments_s:
        time.sleep(max(0.0, begin_s + moment_s - time.time()))
        there = [node for node in run.members if node in lab.living]
        run.inject(NodeLoss(rng.choice(there)))
    time.sleep(max(0.0, begin_s + STRETCH_S - time.time()))
    wait_for(run, iteration=run.iteration + 1)
    report = run.report()
    run.stop()
    return Stretch(
        arm=lab_arm(report),
        iterations=counted(report, until_s=begin_s + STRETCH_S) - begin,
        bare_s=bare_s,
    )


def counted(report: RunReport, *, until_s: float) -> int:
    """Return how many iterations there were by then of those that no failure took back."""
    return max(o.number for o in report.iterations if o.rank == 0 and o.ended_at_s <= until_s)
