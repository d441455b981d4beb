"""A page is sent no more than it has drawn."""

import pytest

pytest.importorskip("panel", reason="panel is not installed")

from gemini_lab_widgets.page import AHEAD, Pulse


def test_a_page_that_draws_nothing_is_sent_nothing_more_until_it_does() -> None:
    pulse = Pulse()
    for _ in range(AHEAD):
        pulse.send()
        assert not pulse.is_behind
    pulse.send()
    assert pulse.is_behind
    pulse.seen = pulse.beat
    assert not pulse.is_behind


def test_the_time_a_page_takes_to_load_is_no_delay_of_its_drawing() -> None:
    pulse = Pulse()
    pulse.send()
    pulse.seen = 1
    assert pulse.behind_s == 0
    pulse.send()
    pulse.seen = 2
    assert pulse.behind_s > 0
