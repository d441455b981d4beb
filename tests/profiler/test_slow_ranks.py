"""Slow ranks are named soon, and nobody is for what slows all of them, or for noise."""

from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.profiler.slow_ranks import (
    FEWEST_SLOW,
    MOST_PENDING,
    WARM_UP,
    WINDOW,
    SlowRanks,
    medians_of_others,
)


def judged(works_s, *, slow=None, first=1, durations_s=None):
    """What is told of these iterations; a row of `works_s` is one, with each rank's work."""
    slow = slow or SlowRanks()
    slow.restart(len(works_s[0]))
    told = []
    for number, row in enumerate(works_s, first):
        duration_s = max(row) * 1.1 if durations_s is None else durations_s[number - first]
        for rank, work_s in enumerate(row):
            told += slow.take(rank, number, work_s=work_s, duration_s=duration_s)
    return told


def noisy(ranks, iterations, *, seed, shared=0.5, own=0.15):
    """Work that varies much from iteration to iteration for all, and less from rank to rank."""
    draw = np.random.default_rng(seed)
    for_all = np.exp(shared * draw.standard_normal((iterations, 1)))
    for_each = np.exp(own * draw.standard_normal((iterations, ranks)))
    return 0.1 * for_all * for_each


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 16), st.integers(0, 2**32 - 1))
def test_in_a_thousand_clean_iterations_nobody_is_named(ranks, seed):
    assert judged(noisy(ranks, 1_000, seed=seed, own=0.25).tolist()) == []


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 16), st.integers(0, 2**32 - 1), st.data())
def test_a_rank_that_works_twice_as_long_is_named_within_twenty_iterations(ranks, seed, data):
    rank = data.draw(st.integers(0, ranks - 1))
    works_s = noisy(ranks, 80, seed=seed)
    works_s[40:60, rank] *= 2.2
    told = judged(works_s.tolist())
    named = [one for one in told if not one.is_over]
    assert {one.rank for one in named} == {rank}
    assert named[0].iteration <= 60
    assert named[0].work_s > 1.5 * named[0].others_s
    assert [one.rank for one in told if one.is_over] == [rank]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_slows_all_ranks_alike_names_nobody(ranks):
    works_s = noisy(ranks, 60, seed=1)
    works_s[20:] *= 5
    assert judged(works_s.tolist()) == []


def test_a_rank_that_is_slow_from_the_start_is_named():
    (named,) = judged([[0.1, 0.3, 0.1]] * 20)
    assert (named.rank, named.iteration) == (1, WARM_UP + 13)


def test_a_stall_now_and_then_names_nobody():
    works_s = [[0.1, 0.1 if number % 2 else 0.9, 0.1] for number in range(100)]
    assert judged(works_s) == []


def test_work_of_which_an_iteration_has_little_names_nobody():
    """Such as the launches of a GPU's kernels: the others do not wait for them."""
    assert judged([[0.01, 0.03, 0.01]] * 50, durations_s=[1.0] * 50) == []


def test_where_a_machine_does_not_tell_nobody_is_judged():
    assert judged([[0.0, 0.3, 0.1]] * 50) == []


def test_iterations_in_any_order_come_to_the_same_and_those_that_are_never_whole_are_dropped():
    slow = SlowRanks()
    slow.restart(2)
    for number in range(10_000):
        assert slow.take(0, number, work_s=0.1, duration_s=0.3) == []
    told = []
    for number in range(10_000 - MOST_PENDING, 10_000):
        told += slow.take(1, number, work_s=0.3, duration_s=0.3)
    assert [one.rank for one in told] == [1]


def test_ranks_that_are_not_there_and_a_job_of_one_are_left_alone():
    slow = SlowRanks()
    slow.restart(2)
    assert slow.take(2, 1, work_s=1.0, duration_s=1.0) == []
    assert judged([[0.1]] * 40) == []


def test_a_restart_forgets_what_was_slow():
    slow = SlowRanks()
    assert judged([[0.1, 0.3]] * 20, slow=slow)
    assert judged([[0.1, 0.1]] * (WINDOW + FEWEST_SLOW + WARM_UP), slow=slow) == []


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=20))
def test_the_median_of_the_others_is_that(numbers):
    expected = [median(numbers[:at] + numbers[at + 1 :]) for at in range(len(numbers))]
    assert medians_of_others(numbers) == pytest.approx(expected)
