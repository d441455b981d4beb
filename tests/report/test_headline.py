"""The three answers at the top of a page."""

import pytest
from told_runs import ToldRun, with_a_drain, with_one_loss

from gemini_lab.log import events
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables import tables_of
from gemini_lab.report.tables.headline import percent
from gemini_lab.report.tables.recoveries import losses
from gemini_lab.report.values import HeadlineAnswer


def reduced(run: ToldRun) -> RunReducer:
    reducer = RunReducer(name=run.entries[1].event.name)
    reducer.extend(run.entries)
    return reducer


def answers(
    run: ToldRun, *beside: ToldRun
) -> tuple[HeadlineAnswer, HeadlineAnswer, HeadlineAnswer]:
    earlier = [(one, losses(one)) for one in map(reduced, beside)]
    return tables_of(reduced(run), earlier=earlier).answers


def trained(name: str, *, last: float) -> ToldRun:
    run = ToldRun(name=name).protect()
    for number, loss in ((1, 3.0), (2, 2.0), (3, last)):
        run.now_s += 1.0
        for rank in run.ranks:
            run.say_worker(
                events.Iteration, rank, iteration=number, duration_s=1.0, values={"loss": loss}
            )
    return run


def test_the_same_losses_as_in_an_earlier_run_are_told_by_their_number() -> None:
    numbers, _, _ = answers(trained("mine", last=1.0), trained("theirs", last=1.0))
    assert (numbers.short, numbers.mood, numbers.view) == ("yes", "good", "curves")
    assert numbers.detail == "12 losses, all bit-identical to theirs"


def test_one_bit_of_difference_is_a_no() -> None:
    numbers, _, _ = answers(trained("mine", last=1.0), trained("theirs", last=1.0 + 2**-52))
    assert (numbers.short, numbers.mood) == ("no", "bad")
    assert "the first that differs is in iteration 3" in numbers.detail


def test_without_a_run_to_compare_with_nothing_is_claimed() -> None:
    numbers, _, _ = answers(trained("mine", last=1.0))
    assert (numbers.short, numbers.mood) == ("nothing to compare with", "unknown")


def test_failures_are_told_by_their_number_and_their_mean() -> None:
    _, checkpoints, failures = answers(with_one_loss())
    assert checkpoints.mood == "neutral"
    assert failures.detail.startswith("mostly ")  # one failure's cost is told once
    assert answers(trained("mine", last=1.0))[2].short == "nothing"


def test_a_planned_move_is_no_failure_and_wastes_nothing() -> None:
    run = with_a_drain()
    cost = answers(run)[2]
    assert cost.short == "nothing"
    assert cost.detail.startswith("no failure; 1 planned move took ")
    assert tables_of(reduced(run)).wasted.rows == ()
    run.fail("node-1", known=8)
    cost = answers(run)[2]
    assert " x " not in cost.short
    assert "; 1 planned move took " in cost.detail


@pytest.mark.parametrize(
    ("share", "told"), [(0.0, "0.0\u00a0%"), (1e-9, "<\u00a00.1\u00a0%"), (0.0123, "1.2\u00a0%")]
)
def test_what_costs_anything_is_never_told_as_nothing(share: float, told: str) -> None:
    assert percent(share) == told
