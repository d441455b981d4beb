"""Claims about how the bench of baselines reads what killed ranks wrote down."""

import pytest

from gemini_lab.errors import GeminiError
from gemini_lab_bench.benches.baselines import Arm, next_moment_s, rows_of
from gemini_lab_bench.benches.store_runs import (
    Wasted,
    checkpoint_times,
    failure_of,
    iteration_times,
    stood_at,
)


def said(at_s, what, *, rank=0, **values):
    return {"what": what, "rank": rank, "at_s": at_s, **values}


def both(at_s, what, **values):
    """Rank 1 a little later."""
    return [said(at_s, what, **values), said(at_s + 0.01, what, rank=1, **values)]


def life(start_s, version, *, until):
    """A start from `version`, then an iteration a second."""
    lines = both(start_s, "training", version=version)
    for number in range(version + 1, until + 1):
        lines += both(start_s + number - version, "iteration", version=number)
    return lines


def test_what_is_lost_counts_from_the_end_of_the_iteration_that_was_loaded():
    """Iteration 12 ends at 112, is loaded after the kill at 116.5; 16 is done again at 134."""
    lines = life(100.0, 0, until=16) + both(128.0, "loaded", version=12, took_s=2.0)
    lines += life(130.0, 12, until=20)
    failure = failure_of(sorted(lines, key=lambda one: one["at_s"]), 116.5)
    assert failure.lost_s == pytest.approx(4.5, abs=0.02)
    assert (failure.retrieval_s, failure.wasted_s) == (2.0, pytest.approx(6.5, abs=0.02))
    assert failure.regained_s == pytest.approx(134 - 116.5)
    assert failure.restart_s == pytest.approx(131 - 116.5 - 2.0)


def test_where_nothing_new_was_whole_it_counts_from_the_start():
    """Version 12 is loaded twice: what was done of it in an earlier life is not lost again."""
    lines = life(50.0, 0, until=14) + both(80.0, "loaded", version=12, took_s=2.0)
    lines += life(90.0, 12, until=15) + both(120.0, "loaded", version=12, took_s=3.0)
    lines += life(130.0, 12, until=20)
    failure = failure_of(sorted(lines, key=lambda one: one["at_s"]), 93.5)
    assert failure.lost_s == pytest.approx(3.5, abs=0.02)
    assert failure.retrieval_s == 3.0


def test_ranks_that_do_not_come_back_are_an_error():
    with pytest.raises(GeminiError, match="did not come back"):
        failure_of(life(1.0, 0, until=4), 5.0)


def test_a_checkpoint_is_whole_when_the_last_rank_says_so():
    lines = life(0.0, 0, until=8)
    lines += [said(6.5, "whole", version=4), said(7.25, "whole", rank=1, version=4)]
    lines += [said(9.0, "whole", version=8)]
    assert checkpoint_times(lines) == [pytest.approx(3.25)]


def test_a_checkpoint_that_a_kill_interrupted_takes_no_time():
    """Version 4 is whole in the second life alone, 3 s after it was made there."""
    lines = life(0.0, 0, until=5) + life(20.0, 0, until=8) + both(27.0, "whole", version=4)
    lines.sort(key=lambda one: one["at_s"])
    assert checkpoint_times(lines) == [pytest.approx(3.01)]


def test_iterations_count_that_no_checkpoint_held_up_and_no_restart():
    lines = [said(t, "iteration", version=v) for t, v in [(1, 1), (9, 2), (10, 3), (11.5, 4)]]
    lines += [said(t, "iteration", version=v) for t, v in [(20, 5), (30, 4), (31, 5)]]
    assert iteration_times(lines, every=4) == [1, 1.5]


def test_a_checkpoint_waits_for_as_many_ranks_as_there_are():
    lines = [*life(0.0, 0, until=8), said(1.0, "iteration", rank=2, version=1)]
    lines += [said(6.5, "whole", version=4), said(7.25, "whole", rank=1, version=4)]
    assert checkpoint_times(lines) == []
    assert checkpoint_times([*lines, said(9.0, "whole", rank=2, version=4)]) == [5.0]


def test_a_kill_takes_back_what_was_not_loaded_again():
    """16 iterations by 116, killed at 116.5; version 12 is loaded and 14 is there at 132."""
    lines = life(100.0, 0, until=16) + life(130.0, 12, until=20)
    assert stood_at(lines, 105.5) == 5
    assert stood_at(lines, 125.0, killed_s=116.5) == 12
    assert stood_at(lines, 132.5, killed_s=116.5) == 14


def test_kills_come_evenly_over_a_cycle_also_where_a_moment_passed_while_training_was_regained():
    """Cycles of 4 s begin 3 s after each start; what a kill lost is done again before the next."""
    now_s, lost_s = 0.0, []
    for share in (0.9, 0.1, 0.5, 0.3, 0.7):
        moment_s = next_moment_s(3.0, 4.0, share=share, now_s=now_s)
        assert now_s <= moment_s < max(now_s, 3.0) + 4.0
        lost_s.append(3.0 + (moment_s - 3.0) % 4.0)
        now_s = lost_s[-1]  # since the start by which it is regained
    assert lost_s == pytest.approx([6.6, 3.4, 5.0, 4.2, 5.8])


def arm(name, wasted_s, *, checkpoint_s=1.0, cycle_s=2.0):
    costs = [
        Wasted(lost_s=one, retrieval_s=0.0, restart_s=5.0, regained_s=30.0) for one in wasted_s
    ]
    return Arm(
        name=name,
        iteration_s=1.0,
        checkpoint_s=checkpoint_s,
        cycle_s=cycle_s,
        failures=tuple(costs),
    )


def test_each_baseline_stands_beside_this_system_and_beside_eq_1():
    high, ours = arm("HighFreq", [20.0, 30.0]), arm("gemini_lab", [2.0, 2.0], cycle_s=1.0)
    rows = {row.name: row for row in rows_of([high, ours])}
    assert rows["HighFreq: its mean / Eq. (1)"].values == (pytest.approx(25 / 2.0),)
    assert rows["HighFreq: checkpoints an hour"].values == (1800,)
    ratio = rows["wasted, HighFreq / gemini_lab (means)"]
    assert ratio.value == 12.5
    assert ratio.interval == (10.0, 15.0)


def test_a_ratio_of_one_failure_has_no_interval():
    rows = {row.name: row for row in rows_of([arm("HighFreq", [20.0]), arm("gemini_lab", [2.0])])}
    assert "low_95" not in rows["wasted, HighFreq / gemini_lab (means)"].to_json()
