"""One visitor's page without a browser: which run it shows, which moment of it, and how often."""

import math
from pathlib import Path

import pytest

pytest.importorskip("panel", reason="panel is not installed")

from bokeh.document import Document
from gemini_lab_widgets.library import Library
from gemini_lab_widgets.page import IDLE_MS, TICK_MS, UNANSWERED, Page
from gemini_lab_widgets.views import VIEWS
from gemini_lab_widgets.views.replica_map import MARKS
from told_runs import ToldRun, with_one_loss

from gemini_lab.log.entry import encode_entry
from gemini_lab.simulator import paper_workload, simulate
from gemini_lab.simulator.policy import gemini


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
    """What the status strip says once the browser has drawn all that it was sent, at rest."""
    page._rests_at_s = 0.0
    is_first = True
    while is_first or not page._sheet.is_whole:
        page._pulse.seen, page._due_s, is_first = page._pulse.beat, 0.0, False
        page.tick()
    return str(page._sheet.views["status"].strip.text)


def test_a_page_is_answered_with_its_words_and_the_figures_come_one_by_one(log: Path) -> None:
    page = page_of(log)
    assert set(page._sheet.views) == {"spent", "status"}
    assert page._timeline.pump._traffic is None
    sizes = []
    while not page._sheet.is_whole:
        page._pulse.seen = page._pulse.beat
        page.tick()
        sizes.append(len(page._sheet.views))
    assert sizes == [*range(3, len(VIEWS) + 1)]
    for root in page._document.roots:
        assert root.name not in page._sheet.slots or root.children
    assert page._sheet.views["replicas"].nodes.data["name"]


def test_the_slider_shows_the_run_as_it_was_and_its_end_the_whole(log: Path) -> None:
    page = page_of(log)
    assert "finished" in look(page)
    page._tools.slider.value = 5.0
    text = look(page)
    assert "training" in text
    assert "then: version" in text
    assert "looking back" in page._sheet.state.text
    page._tools.slider.value = page._tools.slider.end
    assert "finished" in look(page)


def test_all_views_show_the_same_moment(log: Path) -> None:
    page = page_of(log)
    page._move(12.0)  # a recovery is under way
    assert "recovering" in look(page)
    assert MARKS["recovering"] in page._sheet.views["replicas"].ring.text
    assert page._sheet.views["curves"].marks.data["x"] == [10]
    assert ", under way<" in page._sheet.views["recovery"].bars.text
    start_s = page._shown.store.run.course.started_at_s
    assert page._timeline.pump._traffic is page._shown.store.traffic
    assert page._moment_s == start_s + 12.0


def test_figures_follow_the_slider_only_when_it_rests(log: Path) -> None:
    page = page_of(log)
    look(page)
    page._move(12.0)
    page._rests_at_s = math.inf
    for _ in range(3):  # the first reads on to the moment
        page._pulse.seen, page._due_s = page._pulse.beat, 0.0
        page.tick()
    assert "recovering" in str(page._sheet.views["status"].strip.text)
    assert MARKS["recovering"] not in page._sheet.views["replicas"].ring.text
    assert not page._is_idle
    look(page)
    assert MARKS["recovering"] in page._sheet.views["replicas"].ring.text
    assert page._is_idle


def test_a_visitor_chooses_runs_among_those_that_are_offered_and_no_others(log: Path) -> None:
    page = page_of(log)
    look(page)
    assert [one.name for one in page._beside] == ["undisturbed"]
    assert page._tools.beside.options[0] == ("", "undisturbed")
    page._tools.beside.value = "undisturbed"  # once more: not any longer
    look(page)
    assert page._beside == []
    assert page._pulse.address["beside"] == ["-"]
    page._tools.run.value = "undisturbed"
    assert "undisturbed" in look(page)
    page._choose_run("../../etc")
    assert "mine" in look(page)


def test_an_address_says_what_is_looked_at(log: Path) -> None:
    page = page_of(log)
    page._open({"run": ["undisturbed"], "at": ["3.5"], "beside": ["mine"]})
    look(page)
    said = {"run": ["undisturbed"], "beside": ["mine"], "at": ["3.500"]}
    assert page._pulse.address == said


def test_a_run_is_compared_with_several_as_the_visitor_or_the_address_says(log: Path) -> None:
    for name in ("second", "third"):
        write(ToldRun(start_s=1e9).protect().train(1, 12).finish(12), log.parent.parent / name)
    page = page_of(log)
    for name in ("second", "third"):
        page._tools.beside.value = name
        assert page._tools.beside.value == ""
    look(page)
    compared = [one.name for one in page._shown.store.earlier]
    assert compared == ["undisturbed", "second", "third"]
    assert page._tools.beside.options[0] == ("", "undisturbed and second and third")
    assert page._pulse.address["beside"] == ["undisturbed", "second", "third"]
    page._tools.beside.value = "/"
    assert page._beside == []
    page._open({"beside": ["third", "mine", "nobody", "second"]})
    assert [one.name for one in page._beside] == ["third", "second"]


def test_a_run_that_is_not_there_is_said_not_to_be_and_which_one_is_shown(log: Path) -> None:
    page = page_of(log)
    page._open({"run": ["nothing of this name"], "at": ["5"]})
    assert "mine" in look(page)
    said = page._sheet.state.text
    assert "no such run" in said
    assert "no run here is called nothing of this name; mine, the newest, is shown" in said
    assert page._pulse.address["run"] == []
    page._tools.run.value = "undisturbed"
    look(page)
    assert "no such run" not in page._sheet.state.text


@pytest.mark.parametrize(
    ("asked", "told"),
    [("1e9", ""), ("nan", ""), ("inf", ""), ("soon", ""), ("-5", "0.000"), ("3.5", "3.500")],
)
def test_a_moment_outside_the_run_is_its_nearest_end_in_the_address_too(
    log: Path, asked: str, told: str
) -> None:
    page = page_of(log)
    page._open({"at": [asked]})
    page._pull()
    look(page)
    assert page._pulse.address["at"] == [told] * bool(told)
    end_s = page._tools.slider.end
    assert page._tools.slider.value == (float(told) if told else end_s)
    assert ("looking back" in page._sheet.state.text) == bool(told)
    assert page._status.now_s <= end_s


def test_a_log_without_an_event_is_said_to_have_none(tmp_path: Path) -> None:
    for lines, words in (
        (b"", "no events yet in events.jsonl"),
        (b"hello\n" * 20, "none of its 20 lines could be read as events of this log"),
    ):
        log = tmp_path / str(len(lines)) / "events.jsonl"
        log.parent.mkdir()
        log.write_bytes(lines)
        page = page_of(log)
        text = look(page)
        assert words in page._sheet.state.text
        assert "measured here" not in text
        assert "<p class=wait>" in text  # in place of tiles of nothing


def test_a_simulation_whose_log_was_cut_off_is_not_live(tmp_path: Path) -> None:
    workload = paper_workload(nodes=2, standbys=0)
    told = simulate(workload, gemini(workload), [], days=1 / 24, record=True).events
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"".join(encode_entry(entry) + b"\n" for entry in told[: len(told) // 2]))
    page = page_of(log)
    look(page)
    assert "not finished" in page._sheet.state.text
    assert "live" not in page._sheet.state.text


def test_a_finished_run_is_looked_at_seldom_until_somebody_moves(log: Path) -> None:
    page = page_of(log)
    paces: list[int] = []
    page.pace = paces.append
    assert page.period_ms == IDLE_MS  # no browser has answered yet
    look(page)
    look(page)
    assert paces == [TICK_MS, IDLE_MS]  # to make the views that are late
    page._move(4.0)
    look(page)
    assert paces[2:] == [TICK_MS, IDLE_MS]


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
