"""Iteration times: which iterations count as with and without checkpoints, and their medians."""

import numpy as np
import pytest
from made import made

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.report.reducers.iteration_pace import WINDOW, IterationPace
from gemini_lab.report.tables.iterations import (
    SHOWN,
    Baseline,
    IterationSeries,
    IterationTable,
    iterations,
    median_draws,
    overhead,
    sample,
)


def ended(pace: IterationPace, number: int, duration_s: float, *, at_s: float = 1.0) -> None:
    """One rank tells an iteration."""
    event = made(events.Iteration, iteration=number, duration_s=duration_s)
    pace.take(Entry(at_s=at_s, node="node-0", event=event))


def sent(pace: IterationPace, version: int, duration_s: float) -> None:
    event = made(
        events.VersionComplete, version=version, duration_s=duration_s, next_version=version + 1
    )
    pace.take(Entry(at_s=1.0, node="node-0", event=event))


def series(table: IterationTable) -> dict[str, IterationSeries]:
    return {one.kind: one for one in table.series if not one.run}


def test_overhead_compares_medians() -> None:
    found = overhead(np.full(9, 1.1), np.full(9, 1.0), np.zeros(9))
    assert found is not None
    assert found.share == pytest.approx(0.1)
    assert found.low == pytest.approx(0.1)
    assert found.high == pytest.approx(0.1)


def test_overhead_without_anything_to_compare_is_the_time_waited() -> None:
    found = overhead(np.full(4, 1.25), np.array([]), np.full(4, 0.25))
    assert found is not None
    assert (found.share, found.low, found.high) == (0.25, None, None)
    assert "nothing to compare" in found.how


def test_too_few_iterations_give_no_overhead() -> None:
    assert overhead(np.ones(2), np.ones(9), np.zeros(2)) is None


def test_the_bootstrap_of_a_median_is_that_of_resampling() -> None:
    """Against resamples that are really drawn, of an odd number of values, quantile by quantile."""
    values = np.random.default_rng(1).lognormal(size=101)
    draw = np.random.default_rng(2)
    drawn = np.median(draw.choice(values, size=(4_000, values.size)), axis=1)
    quick = median_draws(values)
    for quantile in (0.025, 0.25, 0.5, 0.75, 0.975):
        assert np.quantile(quick, quantile) == pytest.approx(np.quantile(drawn, quantile), rel=0.06)


def test_of_many_points_few_are_shown_the_longest_among_them() -> None:
    values = np.ones(50_000)
    values[[7, 4_711, 49_999]] = (9.0, 8.0, 7.0)
    shown = sample(values, SHOWN).tolist()
    assert len(shown) <= SHOWN
    assert {7, 4_711, 49_999} <= set(shown)
    assert shown == sorted(shown)


def test_what_is_told_far_too_late_is_counted_and_left_out() -> None:
    pace = IterationPace()
    for number in range(1, WINDOW + 11):
        ended(pace, number, 1.0)
    ended(pace, 3, 100.0)
    table = iterations(pace)
    assert max(duration_s for one in table.series for duration_s in one.durations_s) == 1.0
    assert any("too late" in note for note in table.notes)


def test_an_earlier_run_without_checkpoints_is_what_to_compare_with() -> None:
    mine, other = IterationPace(), IterationPace()
    for number in range(1, 9):
        ended(mine, number, 1.2)
        sent(mine, number, 0.1)
        ended(other, number, 1.0)
    assert iterations(mine).overhead == overhead(np.full(7, 1.2), np.array([]), np.zeros(7))
    table = iterations(mine, baselines=[Baseline(name="bare", pace=other, is_without=True)])
    assert table.overhead is not None
    assert table.overhead.share == pytest.approx(0.2)
    assert [one.run for one in table.series] == ["", "", "bare"]
