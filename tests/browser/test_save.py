"""A saved run: one file that opens from disk, by itself, with every view working."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("panel", reason="panel is not installed")

from gemini_lab_widgets.save import save
from logs_of_runs import lines_of_a_run, write

from gemini_lab.cli.main import main
from gemini_lab.errors import ConfigError
from gemini_lab.lab.pages import save_log
from gemini_lab.log.entry import decode_entry

MB = 10**6
SHOWN = "() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle"
HEADINGS = (
    "Who keeps whose replica",
    "Memory for checkpoints",
    "Recoveries",
    "Iteration time",
    "Wasted time of a failure",
)
HARM = "</script><img src=x onerror=window.harm=1>"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    log = write(folder / "a-run" / "events.jsonl", lines_of_a_run())
    return save_log(log, folder / "run.html")


def open_alone(page: Any, path: Path) -> None:
    page.goto(path.as_uri())
    page.wait_for_function(SHOWN)


def test_a_saved_run_opens_from_disk_with_every_view(saved: Path, page: Any) -> None:
    open_alone(page, saved)
    for heading in HEADINGS:
        page.get_by_role("heading", name=heading).wait_for()
    bars = page.locator("section.timeline [data-events]")
    assert int(bars.get_attribute("data-events")) > 0
    assert page.title().startswith("a-run")


def test_a_saved_run_names_no_other_host_or_file(saved: Path) -> None:
    """What a page loads stands in `src` and `href` of its own tags."""
    head, _, _ = saved.read_text(encoding="utf-8").partition("<script")
    assert 'href="http' not in head
    assert "es-module-shims" not in saved.read_text(encoding="utf-8")


def test_a_saved_run_still_answers_what_if(saved: Path, page: Any) -> None:
    """A node is chosen, and the answer names from where its shard would come."""
    open_alone(page, saved)
    section = page.locator("section.replicas")
    section.get_by_label("What if this node dies?").select_option(label="node-2")
    section.get_by_text("Its own shard would have come from").wait_for()


def test_a_saved_run_is_small(saved: Path) -> None:
    assert saved.stat().st_size < 5 * MB


def test_a_saved_name_that_means_harm_does_none(tmp_path: Path, page: Any) -> None:
    spelled = json.dumps(HARM)[1:-1]
    lines = [line.replace("node-", spelled + "-") for line in lines_of_a_run()]
    entries = [decode_entry(line) for line in lines]
    open_alone(page, save(entries, tmp_path / "run.html"))
    page.get_by_role("heading", name="Recoveries").wait_for()
    assert page.evaluate("() => window.harm") is None


def test_the_report_command_writes_the_same_page(tmp_path: Path) -> None:
    log = write(tmp_path / "a-run" / "events.jsonl", lines_of_a_run())
    assert main(["report", str(log.parent), "--html", str(tmp_path / "run.html")]) == 0
    assert "Who keeps whose replica" in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_a_missing_log_or_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no log"):
        save(tmp_path / "missing", tmp_path / "run.html")
    log = write(tmp_path / "a-run" / "events.jsonl", lines_of_a_run())
    with pytest.raises(ConfigError, match=r"missing"):
        save(log, tmp_path / "missing" / "run.html")


def test_a_saved_run_goes_back_to_a_failure_and_to_its_end(saved: Path, page: Any) -> None:
    """All views show the moment, the address names it, and nothing is asked of anybody."""
    open_alone(page, saved)
    page.wait_for_function("() => document.documentElement.dataset.moment !== undefined")
    page.get_by_role("button", name="◀ failure").click()
    page.get_by_text("everything here is as it was").wait_for()
    page.get_by_text("recovering", exact=True).first.wait_for()
    page.wait_for_function("() => location.hash.includes('at=')")
    page.get_by_role("button", name="newest").click()
    page.get_by_text("saved: this is the whole run").wait_for()


def test_a_text_that_follows_the_slider_is_replaced_where_it_is(saved: Path, page: Any) -> None:
    """Bokeh would build all around it again at each step, and measure the page."""
    open_alone(page, saved)
    page.wait_for_function("() => document.documentElement.dataset.moment !== undefined")
    box = page.locator(".bk-clearfix", has=page.locator("dl.tiles")).last.element_handle()
    assert "recovering" not in box.inner_text()
    page.get_by_role("button", name="◀ failure").click()
    page.get_by_text("recovering", exact=True).first.wait_for()
    assert "recovering" in box.inner_text()
    assert box.evaluate("(element) => element.isConnected")


def test_the_tab_key_stops_at_no_figure_in_which_no_key_does_anything(
    saved: Path, page: Any
) -> None:
    open_alone(page, saved)
    stops = """() => {
        const found = [], visit = (root) => {
            for (const element of root.querySelectorAll("*")) {
                if (element.tabIndex >= 0 && element.matches(".bk-events")) found.push(element)
                if (element.shadowRoot) visit(element.shadowRoot)
            }
        }
        visit(document)
        return found.length
    }"""
    assert page.evaluate(stops) == 0
