"""The three answers at the top of a page."""

import pytest
from told_runs import ToldRun, resized, with_a_drain, with_one_loss

from gemini_lab.log import events
from gemini_lab.report import build_report
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables import tables_of
from gemini_lab.report.tables.headline import percent
from gemini_lab.report.tables.recoveries import losses
from gemini_lab.report.values import HeadlineAnswer
from gemini_lab.units import format_seconds

THREE = ("node-0", "node-2", "node-3")


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


def test_planned_moves_are_named_apart_from_what_failures_cost() -> None:
    run = with_a_drain().fail("node-1", known=8).plan(8).step("start", 4.0).resume(8)
    spent = tables_of(reduced(run)).spent
    planned = next(each for each in build_report(run.entries).recoveries if each.is_planned)
    assert spent.seconds("planned") == pytest.approx(planned.duration_s)
    cost = answers(run)[2]
    assert planned.lost_progress_s == 0.0
    start_s = spent.seconds("start")
    assert start_s < 4.0 + planned.duration_s
    assert f"restart {format_seconds(start_s)}" in cost.detail


def test_what_failures_cost_says_how_much_was_done_again() -> None:
    run = ToldRun().protect().train(1, 5)
    for iteration in (6, 7):
        run.iterate(iteration)
    run.say_worker(events.Iteration, 0, iteration=8, duration_s=1.0, values={})
    run.crash(1, known=7).plan(5).resume(5).protect().train(6, 9)
    assert "; 2 whole iterations done again, 1 more on some ranks" in answers(run)[2].detail
    twice = run.crash(1, known=9).plan(9).resume(9).protect().train(10, 11)
    assert "; 2 whole iterations done again, 1 more on some ranks" in answers(twice)[2].detail


def losing(run: ToldRun, first: int, last: int) -> ToldRun:
    """Each rank's loss follows from the number of ranks."""
    for number in range(first, last + 1):
        run.now_s += 1.0
        for rank in run.ranks:
            run.say_worker(
                events.Iteration,
                rank,
                iteration=number,
                duration_s=1.0,
                values={"loss": 3.0 / number + 1e-7 * run.nodes},
            )
    return run


def test_a_resize_is_no_difference_to_a_run_that_kept_its_size() -> None:
    """On other numbers of ranks sums are added in another order."""
    alone = losing(ToldRun(name="alone").protect(), 1, 8)
    fewer = resized(losing(ToldRun(name="fewer", standbys=0).protect(), 1, 5), THREE, 5)
    losing(fewer, 6, 8)
    for mine, theirs in ((fewer, alone), (alone, fewer)):
        numbers = answers(mine, theirs)[0]
        assert (numbers.short, numbers.mood) == ("yes, until a resize", "good")
        assert " up to iteration 5" in numbers.detail
    assert answers(fewer, fewer)[0].short == "yes"


def test_a_difference_before_the_resize_is_told() -> None:
    wrong = trained("wrong", last=1.0)
    fewer = resized(trained("fewer", last=1.5), THREE, 3)
    numbers = answers(fewer, wrong)[0]
    assert (numbers.short, numbers.mood) == ("no", "bad")


def test_iterations_that_were_done_again_on_fewer_nodes_are_not_compared() -> None:
    """No memory has a version after the resize, so that the tier's older one is loaded."""
    alone = losing(ToldRun(name="alone").protect(), 1, 8)
    fewer = resized(losing(ToldRun(name="fewer", standbys=0).protect(), 1, 5), THREE, 5)
    losing(losing(fewer, 6, 7).crash(0, known=7).plan(2, tier="persistent").resume(2), 3, 8)
    assert " up to iteration 2" in answers(fewer, alone)[0].detail


@pytest.mark.parametrize(
    ("share", "told"), [(0.0, "0.0\u00a0%"), (1e-9, "<\u00a00.1\u00a0%"), (0.0123, "1.2\u00a0%")]
)
def test_what_costs_anything_is_never_told_as_nothing(share: float, told: str) -> None:
    assert percent(share) == told
