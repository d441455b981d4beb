"""What a guard rejects, how far back it goes, and that it judges alike after a recovery."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.recovery.guard import FEWEST, WINDOW, Guard, Sight
from gemini_lab.settings import Settings


def guard(**settings) -> Guard:
    found = Guard.of(Settings(**settings))
    assert found is not None
    return found


def seen(*losses: float | None, is_finite: bool = True) -> list[Sight]:
    return [Sight(loss=loss, is_finite=is_finite) for loss in losses]


def settled(*, most: float = 6.0, losses: int = FEWEST) -> Guard:
    """One that has seen losses about 2.0, a tenth of it apart."""
    found = guard(rewind_on_spike=most)
    for number in range(losses):
        assert found.judge(number + 1, seen(2.1 if number % 2 else 1.9)) == ""
    return found


def test_without_a_setting_nothing_is_judged():
    assert Guard.of(Settings()) is None


@pytest.mark.parametrize("loss", [nan, inf, -inf])
def test_a_loss_that_is_no_number_is_rejected_whichever_rank_has_it(loss):
    assert "rank 1" in guard(on_not_finite="rewind").judge(3, seen(1.0, loss))


def test_a_state_that_holds_nan_is_rejected_though_its_loss_is_a_number():
    """The version would be whole in memory before the next loss shows it."""
    reason = guard(on_not_finite="rewind").judge(3, seen(1.0, is_finite=False))
    assert "the state of rank 0 holds NaN" in reason


def test_where_nobody_logs_a_loss_the_states_alone_count():
    assert guard(on_not_finite="rewind").judge(3, seen(None, None)) == ""


def test_a_spike_is_rejected_and_does_not_become_usual():
    watch = settled()
    for _ in range(3):
        assert "standard deviations" in watch.judge(FEWEST + 1, seen(2.61))
    assert watch.judge(FEWEST + 1, seen(2.59)) == ""


def test_no_loss_is_too_high_while_few_are_known():
    assert settled(losses=FEWEST - 1).judge(FEWEST, seen(1000.0)) == ""


def test_losses_of_all_ranks_count_by_their_mean():
    assert settled().judge(FEWEST + 1, seen(2.9, 1.9)) == ""


def test_trouble_goes_one_version_further_back_each_time_until_it_is_past():
    watch = guard(on_not_finite="rewind")
    goals = []
    for iteration in (10, 10, 9, 10):  # after the third time, iteration 9 is no good either
        assert watch.judge(iteration, seen(nan))
        goals.append(watch.goal(iteration))
    assert goals == [9, 8, 7, 6]
    for iteration in (7, 8, 9):  # good ones on the way there do not end it
        assert watch.judge(iteration, seen(1.0)) == ""
    assert watch.judge(10, seen(nan))
    assert watch.goal(10) == 5
    for iteration in range(6, 11):
        assert watch.judge(iteration, seen(1.0)) == ""
    assert watch.judge(11, seen(nan))
    assert watch.goal(11) == 10


@given(
    bad=st.sets(st.integers(0, 60)),
    keep=st.integers(1, 4),
)
def test_whatever_is_bad_training_gets_past_it_or_ends(bad, keep):
    """Batches are read one after the other; no rewind goes on for ever."""
    watch, version, batch, goes_back = guard(on_not_finite="rewind"), 0, 0, 0
    while version < 12:
        iteration, is_bad = version + 1, batch in bad
        batch += 1
        if not watch.judge(iteration, seen(nan if is_bad else 1.0)):
            version = iteration
            continue
        goes_back += 1
        goal = watch.goal(iteration)
        if goal < max(0, version - keep + 1):
            break
        version = goal
    assert goes_back <= 61


@given(st.lists(st.sampled_from([1.0, 1.1, 1.2, 5.0, nan]), max_size=3 * FEWEST))
def test_one_that_was_restored_judges_as_the_one_that_went_on(losses):
    watch = guard(on_not_finite="rewind", rewind_on_spike=2.0)
    for number, loss in enumerate(losses):
        watch.judge(number // 2, seen(loss))
    other = guard(on_not_finite="rewind", rewind_on_spike=2.0)
    other.restore(watch.to_small())
    for number, loss in enumerate(losses):
        assert watch.judge(number, seen(loss)) == other.judge(number, seen(loss))
        assert watch.goal(number) == other.goal(number)


def test_what_travels_with_a_version_stays_small():
    watch = settled(losses=3 * WINDOW)
    assert len(watch.to_small()["good"]) == WINDOW
