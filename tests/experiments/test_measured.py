"""What the rows of measured comparisons say of the runs that they are made of."""

import pytest

from gemini_lab.experiments.overhead import IDLE, compare
from gemini_lab.experiments.schemes import rows
from gemini_lab.experiments.timed_runs import TimedRun


def test_a_ratio_is_that_of_two_runs_of_the_same_turn() -> None:
    turns = [
        {"plain": TimedRun(iteration_s=2.0), "gemini": TimedRun(iteration_s=3.0)},
        {"plain": TimedRun(iteration_s=4.0), "gemini": TimedRun(iteration_s=5.0)},
    ]
    by_name = {row.name: row for row in compare(turns, IDLE, name="here")}
    assert by_name["here, gemini / plain"].values == pytest.approx((1.5, 1.25))
    assert by_name["here, plain"].values == (2.0, 4.0)
    assert by_name["here, plain"].settings["link_bytes_per_s"] == IDLE.link_bytes_per_s


def test_a_refused_scheme_is_told_from_one_that_was_used() -> None:
    plan = {"schedule": {"predicted_iteration_s": 3.0, "iteration_s": 2.0}}
    turn = {
        "none": TimedRun(iteration_s=2.0),
        "naive": TimedRun(iteration_s=2.5, notes=("node-0: the scheme was refused: 1 GiB",)),
        "gemini": TimedRun(iteration_s=2.2, planned=plan),
    }
    by_name = {row.name: row for row in rows([turn])}
    assert "1 GiB" in by_name["naive"].settings["refused"]
    assert "refused" not in by_name["gemini"].settings
    assert by_name["gemini / none"].values == pytest.approx((1.1,))
    assert by_name["gemini / none, as predicted"].values == pytest.approx((1.5,))
    assert "naive / none, as predicted" not in by_name
