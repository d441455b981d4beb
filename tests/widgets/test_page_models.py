"""One visitor's page without a browser: which run it shows, which moment of it, and how often."""

from pathlib import Path

import pytest

pytest.importorskip("panel", reason="panel is not installed")

from bokeh.document import Document
from gemini_lab_widgets.library import Library
from gemini_lab_widgets.page import IDLE_MS, TICK_MS, UNANSWERED, Page
from told_runs import ToldRun, with_one_loss

from gemini_lab.log.entry import encode_entry


def write(run: ToldRun, folder: Path) -> Path:
    folder.mkdir()
    log = folder / "events.jsonl"
    log.write_bytes(b"".join(encode_entry(entry) + b"\n" for entry in run.entries))
    return log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a run that is over, beside an earlier one of the same job."""
    write(ToldRun(start_s=1e9).protect().train(1, 12).finish(12), tmp_path / "undisturbed")
    return write(with_one_loss(), tmp_path / "mine")


def page_of(log: Path | None) -> Page:
    return Page(Library(lambda: log), Document())


def look(page: Page) -> str:
    """What the status strip says once the browser has drawn all that it was sent."""
    page._pulse.seen = page._pulse.beat
    page._due_s = 0.0
    page.tick()
    return str(page._sheet.views["status"].strip.text)


def test_the_slider_shows_the_run_as_it_was_and_its_end_the_whole(log: Path) -> None:
    page = page_of(log)
    assert "finished" in look(page)
    page._tools.slider.value = 5.0
    text = look(page)
    assert "training" in text
    assert "survivable then" in text
    assert "looking back" in page._sheet.state.text
    page._tools.slider.value = page._tools.slider.end
    assert "finished" in look(page)


def test_all_views_show_the_same_moment(log: Path) -> None:
    page = page_of(log)
    page._move(12.0)  # a recovery is under way
    assert "recovering" in look(page)
    assert page._sheet.views["replicas"].nodes.data["marker"][2] != "circle"
    assert page._sheet.views["curves"].marks.data["x"] == [10]
    assert page._sheet.views["recovery"].ends.data["text"][0].startswith("recovery 1: under way")
    start_s = page._shown.store.run.course.started_at_s
    assert page._timeline._newest is page._shown.store.traffic
    assert page._moment_s == start_s + 12.0


def test_a_visitor_chooses_runs_among_those_that_are_offered_and_no_others(log: Path) -> None:
    page = page_of(log)
    look(page)
    assert page._tools.beside.value == "undisturbed"
    page._tools.beside.value = ""
    look(page)
    assert page._beside is None
    assert page._pulse.address["beside"] == "-"
    page._tools.run.value = "undisturbed"
    assert "undisturbed" in look(page)
    page._choose_run("../../etc")
    assert "mine" in look(page)


def test_an_address_says_what_is_looked_at(log: Path) -> None:
    page = page_of(log)
    page._open({"run": "undisturbed", "at": "3.5", "beside": "mine"})
    look(page)
    assert page._pulse.address == {"run": "undisturbed", "beside": "mine", "at": "3.500"}
    page._open({"at": "nan", "run": "nothing of this name"})
    assert "mine" in look(page)
    assert page._pulse.address["at"] == ""


def test_a_finished_run_is_looked_at_seldom_until_somebody_moves(log: Path) -> None:
    page = page_of(log)
    paces: list[int] = []
    page.pace = paces.append
    look(page)
    look(page)
    page._move(4.0)
    look(page)
    assert paces in ([IDLE_MS, TICK_MS, IDLE_MS], [TICK_MS, IDLE_MS])


def test_a_tab_that_answers_no_more_costs_little_until_it_does(log: Path) -> None:
    page = page_of(log)
    paces: list[int] = []
    page.pace = paces.append
    page._move(4.0)
    page._pulse.beat = page._pulse.seen + 10
    for _ in range(UNANSWERED):
        page.tick()
    assert IDLE_MS not in paces
    page.tick()
    assert paces[-1] == IDLE_MS
    look(page)
    page._move(5.0)
    assert paces[-1] == TICK_MS


def test_without_a_run_the_page_waits() -> None:
    page = page_of(None)
    look(page)
    assert "no run has begun yet" in page._sheet.state.text
    assert page._tools.run.options == [("", "the newest run")]
