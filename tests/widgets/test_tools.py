"""What a visitor chooses: only what was offered, and nothing is sent where nothing changed."""

import pytest

pytest.importorskip("bokeh")

from bokeh.events import ButtonClick
from gemini_lab_widgets.tools import AFTER_S, Tools


@pytest.fixture
def chosen():
    return []


@pytest.fixture
def tools(chosen):
    return Tools(
        run=lambda name: chosen.append(("run", name)),
        beside=lambda name: chosen.append(("beside", name)),
        move=lambda at_s: chosen.append(("move", at_s)),
    )


def press(button):
    button._trigger_event(ButtonClick(button))


def test_the_slider_gives_moments_and_its_end_the_newest(tools, chosen):
    tools.reach(100.0, [], at_s=None)
    assert chosen == []
    tools.slider.value = 40.0
    tools.slider.value = 100.0
    assert chosen == [("move", 40.0), ("move", None)]


def test_buttons_go_from_failure_to_failure(tools, chosen):
    tools.reach(100.0, [20.0, 60.0], at_s=None)
    assert tools.after.disabled
    assert tools.newest.disabled
    press(tools.before)
    tools.reach(100.0, [20.0, 60.0], at_s=60.0 + AFTER_S)
    press(tools.before)
    tools.reach(100.0, [20.0, 60.0], at_s=20.0 + AFTER_S)
    assert tools.before.disabled
    press(tools.after)
    press(tools.newest)
    assert [at_s for _, at_s in chosen] == [60.1, 20.1, 60.1, None]


def test_the_slider_stays_at_the_end_of_a_run_that_goes_on(tools, chosen):
    tools.reach(10.0, [], at_s=None)
    tools.reach(20.0, [], at_s=None)
    assert tools.slider.value == tools.slider.end == 20.0
    tools.reach(30.0, [], at_s=5.0)
    assert tools.slider.value == 5.0
    assert chosen == []


def test_a_page_that_left_the_newest_moment_is_told_once_where_it_is(tools):
    tools.reach(10.0, [], at_s=None)
    tools.slider.value = 4.0
    told = []
    tools.slider.on_change("value", lambda _, __, value: told.append(value))
    tools.reach(11.0, [], at_s=4.0)
    tools.reach(12.0, [], at_s=4.0)
    assert told == [4.0]


def test_offering_the_same_again_sends_nothing(tools, chosen):
    def offer():
        tools.offer(["a", "b"], drawn="a", run="", beside=["b"])
        tools.reach(10.0, [4.0], at_s=6.0)

    offer()
    sent = []
    for model in tools.root.references():
        for name in ("options", "value", "end", "step", "disabled"):
            if name in model.properties():
                model.on_change(name, lambda attribute, _, __: sent.append(attribute))
    offer()
    assert sent == []
    assert chosen == []


def test_a_run_that_was_chosen_stays_in_the_list(tools, chosen):
    tools.offer(["a", "b"], drawn="gone", run="gone", beside=[])
    assert tools.run.value == "gone"
    tools.run.value = "a"
    tools.beside.value = "b"
    assert chosen == [("run", "a"), ("beside", "b")]
