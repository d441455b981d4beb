"""Lab 01: what a failure costs by Eq. (1), and what a faster store would have to be."""

from math import isclose
from typing import Final

from gemini_lab.recovery.wasted_time import shortest_interval_s, wasted_time_s
from gemini_lab.simulator import Workload
from gemini_lab_course.verdict import (
    WrongAnswerError,
    another_kind,
    as_list,
    called,
    need,
    number,
)

_TRIED_S: Final = ((480, 560, 480), (60, 60, 0), (10, 10800, 5))
"""Checkpoint, interval and retrieval times to try a function with."""


def exercise_1(cases: object) -> str:
    """Judge a function that gives the best and the worst case's wasted time.

    Raises:
        WrongAnswerError: It is none, raises, or gives something else for some times.
    """
    if not callable(cases):
        raise another_kind(cases, name="cases", words="a function")
    for checkpoint_s, interval_s, retrieval_s in _TRIED_S:
        times = checkpoint_s, interval_s, retrieval_s
        best_s, worst_s = _two_numbers(called(cases, *times, name="cases"))
        call = f"cases({checkpoint_s}, {interval_s}, {retrieval_s})"
        need(best_s <= worst_s, f"`{call}` has a best case that is worse than its worst")
        need(
            isclose(best_s, checkpoint_s + retrieval_s),
            f"`{call}` gives {best_s:g} s at best, but a failure just after a checkpoint became "
            "whole wastes another time",
            hint="A checkpoint is of the moment at which it was begun. What came after that?",
        )
        mean_s = wasted_time_s(
            checkpoint_s=checkpoint_s, interval_s=interval_s, retrieval_s=retrieval_s
        )
        need(
            isclose((best_s + worst_s) / 2, mean_s),
            f"`{call}` gives {worst_s:g} s at worst, and then the middle of both is not Eq. (1)'s",
            hint="In the worst case the next checkpoint was all but whole. Since when is all lost?",
        )
    return "right: the middle of your two cases is Eq. (1)"


def _two_numbers(result: object) -> tuple[float, float]:
    words = "a pair of numbers, (best_s, worst_s)"
    if result is None:
        raise WrongAnswerError(f"no answer yet: have `cases` return {words}")
    pair = as_list(result)
    if pair is None or len(pair) != 2:
        raise WrongAnswerError(f"`cases` has to return {words}")
    best_s, worst_s = (number(each, name="cases(...)", words=words) for each in pair)
    return best_s, worst_s


def exercise_2(store_gbit_per_s: object, *, workload: Workload) -> str:
    """Judge a store's bandwidth: wasted time by Eq. (1) and (2) is that of 1.5 iterations.

    Raises:
        WrongAnswerError: It is no positive number, or more than a hundredth off.
    """
    rate = number(store_gbit_per_s, name="store_gbit_per_s", words="a number of Gbit/s")
    need(rate > 0, f"a store needs a bandwidth above 0, and yours has {rate:g} Gbit/s")
    store_s = workload.checkpoint_bytes * 8 / (rate * 1e9)
    interval_s = shortest_interval_s(checkpoint_s=store_s, iteration_s=workload.iteration_s)
    found_s = wasted_time_s(checkpoint_s=store_s, interval_s=interval_s, retrieval_s=store_s)
    wanted_s = 1.5 * workload.iteration_s
    need(
        abs(found_s / wanted_s - 1) < 0.01,
        f"with {rate:g} Gbit/s a failure wastes {found_s:.1f} s, and {wanted_s:.0f} s are wanted: "
        f"a checkpoint takes {store_s:.1f} s, and one is made every {interval_s:.1f} s",
        hint="Which side of Eq. (2)'s max holds at this bandwidth? Solve Eq. (1) with that one.",
    )
    return f"right: {rate:.0f} Gbit/s, {rate / 20:.0f} times the paper's store"
