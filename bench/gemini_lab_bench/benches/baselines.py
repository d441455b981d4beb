"""GEMINI's baselines run for real beside this system: Figs. 10 and 12, scaled down.

A tiny GPT on two ranks checkpoints to a throttled store every 174 iterations (Strawman: three
hours of 62 s) or as often as the store takes checkpoints (HighFreq), and in a lab to memory, every
iteration. Ranks, and in the lab nodes, are killed at moments drawn evenly over a checkpoint's
cycle. The store is so slow that a checkpoint takes some 7.7 iterations, as the paper's 481 s are
7.7 of 62 s.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.injector.failures import NodeLoss
from gemini_lab.recovery.wasted_time import checkpoint_every, wasted_time_s
from gemini_lab.report.values import RunReport
from gemini_lab.training.quickstart import gpt_job
from gemini_lab.units import format_seconds
from gemini_lab_bench.benches.live_lab import ready_lab, wait_for
from gemini_lab_bench.benches.store_runs import (
    LAYER_S,
    RANKS,
    Said,
    Wasted,
    checkpoint_times,
    failure_of,
    iteration_times,
    started,
)
from gemini_lab_bench.benches.wasted import any_phase
from gemini_lab_bench.progress import say
from gemini_lab_bench.rows import Row, single

STORE_ITERATIONS: Final = 7.7
STRAWMAN_EVERY: Final = 174
WARM_UP: Final = 12  # iterations before the times count
RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What a way of protection came to."""

    name: str  # the paper's
    iteration_s: float  # median
    checkpoint_s: float  # from the end of an iteration until its checkpoint was whole; median
    cycle_s: float  # from one checkpoint to the next, as far as training runs
    failures: tuple[Wasted, ...]  # what each cost

    @property
    def predicted_s(self) -> float:
        return wasted_time_s(
            checkpoint_s=self.checkpoint_s,
            interval_s=max(self.cycle_s, self.checkpoint_s),
            retrieval_s=fmean(one.retrieval_s for one in self.failures),
        )


def bench(repeats: int) -> list[Row]:
    """Kill each arm `repeats` times, Strawman, whose cycle is long, a quarter as often."""
    rng = random.Random(repeats)
    _, rate, often = store_pace()
    ways: dict[str, Callable[[], Arm]] = {
        "HighFreq": lambda: _on_a_store("HighFreq", often, rate, repeats, rng),
        "gemini_lab": lambda: _in_memory(repeats, rng),
        "Strawman": lambda: _on_a_store(
            "Strawman", STRAWMAN_EVERY, rate, math.ceil(repeats / 4), rng
        ),
    }
    arms = {}
    for name, measured in ways.items():
        arms[name] = measured()
        say(f"{name} is measured, killed {len(arms[name].failures)} times")
    return rows_of([arms["Strawman"], arms["HighFreq"], arms["gemini_lab"]])


# -- what came of it -----------------------------------------------------------------------------


def rows_of(arms: Sequence[Arm]) -> list[Row]:
    """Return each arm beside Eq. (1), and the arms beside the last one, which is this system."""
    rows: list[Row] = []
    for arm in arms:
        every = round(arm.cycle_s / arm.iteration_s)
        settings = {"ranks": RANKS, "cycle_s": arm.cycle_s, "iterations_a_cycle": every}
        wasted_s = tuple(one.wasted_s for one in arm.failures)
        rows += [
            Row(f"{arm.name}: an iteration", (arm.iteration_s,), settings=settings),
            Row(f"{arm.name}: a checkpoint", (arm.checkpoint_s,)),
            single(f"{arm.name}: checkpoints an hour", 3600 / arm.cycle_s),
            Row(f"{arm.name}: wasted by a failure", wasted_s),
            single(f"{arm.name}: its mean / Eq. (1)", fmean(wasted_s) / arm.predicted_s),
            Row(
                f"{arm.name}: until training stood where it had",
                tuple(one.regained_s for one in arm.failures),
            ),
        ]
    *others, ours = arms
    for arm in others:
        rows.append(ratio_of_means(f"wasted, {arm.name} / {ours.name} (means)", arm, ours))
    return rows


def ratio_of_means(name: str, above: Arm, below: Arm) -> Row:
    """Return what a failure wastes in one arm by what it wastes in the other, on average.

    Its interval is that of such ratios with failures drawn again (bootstrap); with fewer than two
    failures there is none.
    """
    one, other = ([each.wasted_s for each in arm.failures] for arm in (above, below))
    draw = random.Random(0)
    found = sorted(
        fmean(draw.choices(one, k=len(one))) / fmean(draw.choices(other, k=len(other)))
        for _ in range(RESAMPLES)
    )
    bounds = found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]
    return Row(
        name,
        (fmean(one) / fmean(other),),
        unit="",
        bounds=bounds if min(len(one), len(other)) > 1 else None,
    )


# -- real runs -----------------------------------------------------------------------------------


def store_pace() -> tuple[float, float, int]:
    """Measure an iteration without checkpoints, the store's rate, and how often it can take one."""
    with started(every=WARM_UP // 2, rate=1e12) as job:
        said = job.wait("iteration", after_s=0.0, count=3 * WARM_UP * RANKS)
    size_bytes = RANKS * next(one["size_bytes"] for one in said if one["what"] == "whole")
    pace_s = median(iteration_times(said, every=WARM_UP // 2)[WARM_UP:])
    say(f"an iteration takes {format_seconds(pace_s)}")
    checkpoint_s = STORE_ITERATIONS * pace_s
    often = checkpoint_every(checkpoint_s=checkpoint_s, iteration_s=pace_s)
    return pace_s, size_bytes / checkpoint_s, often


def _on_a_store(name: str, every: int, rate: float, kills: int, rng: random.Random) -> Arm:
    """Measure one of the paper's baselines.

    From a start on, the version that was loaded stays the newest whole one until the next is there,
    a cycle and a checkpoint's time later; a cycle of that, in which failures come evenly, begins
    after a checkpoint's time, as it does after every checkpoint.
    """
    failures = []
    with started(every, rate) as job:
        job.wait("whole", after_s=0.0)
        killed_s = job.kill()  # from here on every start has a checkpoint to go on from
        said = job.wait("iteration", after_s=killed_s, count=WARM_UP * RANKS)
        before = store_arm(name, said, every=every, failures=())
        for number in rng.sample(range(kills), kills):
            start_s = max(o["at_s"] for o in job.said() if o["what"] == "training")
            due_s = next_moment_s(
                start_s + before.checkpoint_s,
                before.cycle_s,
                share=(number + rng.random()) / kills,
                now_s=time.monotonic(),
            )
            time.sleep(max(0.0, due_s - time.monotonic()))
            killed_s = job.kill()
            failures.append(failure_of(job.wait_until_regained(killed_s), killed_s))
        return store_arm(name, job.said(), every=every, failures=failures)


def next_moment_s(begun_s: float, cycle_s: float, *, share: float, now_s: float) -> float:
    """Return the first moment from now on at which such a share of a cycle has gone by.

    What a failure lost is done again before the next one comes, so the moment in the first cycle
    may be over: then it is the same one of a later cycle. To fail at once instead would have no
    failure lose less than the one before it.
    """
    first_s = begun_s + share * cycle_s
    return first_s + cycle_s * max(0, math.ceil((now_s - first_s) / cycle_s))


def store_arm(name: str, said: Sequence[Said], *, every: int, failures: Sequence[Wasted]) -> Arm:
    """Return what ranks wrote down whose checkpoints went to a store."""
    stalls_s = [one["stall_s"] for one in said if one["what"] == "saved"]
    pace_s = median(iteration_times(said, every=every))
    return Arm(
        name=name,
        iteration_s=pace_s,
        checkpoint_s=median(checkpoint_times(said)),
        cycle_s=every * pace_s + median(stalls_s),
        failures=tuple(failures),
    )


def _in_memory(kills: int, rng: random.Random) -> Arm:
    with ready_lab(RANKS, 1) as lab:
        run = lab.train(
            gpt_job(size="tiny", iterations=10**6, layer_s=LAYER_S), persistent_url=None
        )
        wait_for(run, iteration=WARM_UP)
        pace_s = median([one.duration_s for one in run.report().iterations[RANKS:]])
        for number in range(1, kills + 1):
            lab.wait_until_ready()
            wait_for(run, iteration=run.iteration + 4)
            time.sleep(any_phase(rng) * pace_s)
            run.inject(NodeLoss(f"rank-{rng.randrange(RANKS)}"))
            wait_for(run, recoveries=number)
        wait_for(run, iteration=run.iteration + 4)
        report = run.report()
        run.stop()
    return lab_arm(report)


def lab_arm(report: RunReport) -> Arm:
    """Return what a run in a lab came to.

    Raises:
        GeminiError: No failure of it tells what it wasted.
    """
    wasted = report.wasted
    if wasted is None:
        raise GeminiError("no failure of the run tells what it wasted")
    failures = [
        Wasted(
            lost_s=one.lost_progress_s,
            retrieval_s=one.retrieval_s,
            restart_s=one.duration_s - one.retrieval_s,
            regained_s=one.duration_s + one.lost_by_any * wasted.interval_s,
        )
        for one in report.recoveries
        if one.lost_progress_s is not None and one.duration_s is not None
    ]
    return Arm(
        name="gemini_lab",
        iteration_s=wasted.interval_s,
        checkpoint_s=wasted.checkpoint_s,
        cycle_s=wasted.interval_s,
        failures=tuple(failures),
    )
