"""What scripts logged: the iterations that count, and whether another run logged the very same."""

from math import inf, nan

import numpy as np
import pytest
from told_runs import ToldRun

from gemini_lab.log import events
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.logged import MOST_NAMES, OPEN
from gemini_lab.report.tables.iterations import MOST_POINTS, CurveTable, curves, thinned


def reduced(run: ToldRun, *, name: str = "") -> RunReducer:
    reducer = RunReducer(name=name)
    reducer.extend(run.entries)
    return reducer


def table(run: ToldRun, *others: ToldRun) -> CurveTable:
    return curves(reduced(run), earlier=[reduced(one, name="before") for one in others])


def logging(count: int, *, first: int = 1, run: ToldRun | None = None) -> ToldRun:
    run = run or ToldRun().protect()
    for number in range(first, count + 1):
        run.iterate(number, losses=True)
    return run


def say(run: ToldRun, number: int, rank: int, *, restored: bool = False, **values: float) -> None:
    run.say_worker(
        events.Iteration, rank, iteration=number, duration_s=1.0, values=values, restored=restored
    )


def failed_at(number: int, *, then: int) -> ToldRun:
    """Fails after so many iterations, goes on from half of them, and ends after `then`."""
    run = logging(number).fail("node-2", known=number)
    run.plan(number // 2, members=["node-0", "node-1", "node-4", "node-3"])
    return logging(then, first=number // 2 + 1, run=run)


@pytest.mark.parametrize("length", [12, OPEN + 40])
def test_a_run_that_failed_is_bit_identical_to_one_that_did_not(length: int) -> None:
    """Also where most rows are kept as digests only."""
    found = table(failed_at(length - 4, then=length), logging(length))
    (match,) = found.matches
    assert (match.compared, match.iterations, match.first) == (4 * length, length, None)
    assert found.curves[0].numbers == tuple(range(1, length + 1))


@pytest.mark.parametrize("number", [3, OPEN + 30])
def test_one_bit_in_one_rank_is_found_where_it_is(number: int) -> None:
    run, other = logging(OPEN + 40), logging(OPEN + 40)
    place = next(
        place
        for place, entry in enumerate(other.entries)
        if isinstance(entry.event, events.Iteration)
        and (entry.event.iteration, entry.event.rank) == (number, 3)
    )
    entry = other.entries[place]
    value = np.nextafter(entry.event.value("loss"), inf)
    other.now_s = entry.at_s
    say(other, number, 3, loss=float(value))
    other.entries[place] = other.entries.pop()
    (match,) = table(run, other).matches
    assert match.first is not None
    assert match.first[0] == number
    assert match.compared == 4 * (OPEN + 40)


def test_what_is_lost_does_not_count_until_it_is_done_again() -> None:
    run = failed_at(12, then=8)
    assert table(run).curves[0].numbers[-1] == 8
    say(run, 12, 0, loss=1.0)  # of the epoch that goes on
    run.epoch -= 1
    say(run, 11, 0, loss=9.0)  # one from before, that arrives late
    assert 11 not in reduced(run).logged.told("loss", until=99).numbers


def test_no_mean_is_over_a_part_of_the_ranks() -> None:
    run = logging(3).iterate(4, ranks=[0, 1], losses=True)
    assert table(run).curves[0].numbers == (1, 2, 3)


def test_the_loss_comes_first_and_names_are_bounded() -> None:
    run = ToldRun().protect().iterate(1)
    for rank in run.ranks:
        names = {f"name_{number}": 1.0 for number in range(MOST_NAMES + 3)}
        say(run, 2, rank, loss_scale=2.0, loss=1.0, **names)
        run.say_worker(events.Iteration, rank, iteration=2, duration_s=1.0)
    found = table(run)
    assert found.curves[0].name == "loss"
    assert len(found.curves) == MOST_NAMES
    assert found.notes == (f"only the first {MOST_NAMES} names are shown",)


@pytest.mark.parametrize("odd", [nan, inf, -inf])
def test_what_is_no_finite_number_is_said_and_not_drawn(odd: float) -> None:
    run = logging(2).iterate(3)
    for rank in run.ranks:
        say(run, 3, rank, loss=odd)
    found = table(run)
    assert found.curves[0].numbers == (1, 2)
    assert found.notes == ("loss was no finite number 1 times, first in iteration 3",)


def test_two_infinities_have_no_mean_and_break_nothing() -> None:
    run = logging(2).iterate(3)
    for rank, value in enumerate([inf, -inf, 1.0, 1.0]):
        say(run, 3, rank, loss=value)
    assert table(run).curves[0].count == 3


def test_of_many_points_the_extremes_are_kept() -> None:
    values = np.sin(np.arange(100_000.0))
    values[77_777] = 40.0
    kept = thinned(values, MOST_POINTS)
    assert kept.size <= MOST_POINTS + 1
    assert 77_777 in kept
    assert kept[-1] == 99_999
    assert (np.diff(kept) > 0).all()
