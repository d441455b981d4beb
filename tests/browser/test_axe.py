"""What a rule of accessibility can find on the page: nothing, in all its states, light and dark.

The rules are axe-core's, as the package of Playwright's axe brings them.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("panel", reason="panel is not installed")

from gemini_lab_widgets.dashboard import Dashboard
from gemini_lab_widgets.save import save
from logs_of_runs import lines_of_a_run, write
from told_runs import with_a_bug

from gemini_lab.log.entry import encode_entry

AXE = find_spec("axe_playwright_python")
SHOWN = """() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle
    && !document.querySelector("section .waits")"""
FOUND = """async () => (await axe.run()).violations.map(
    ({id, nodes}) => `${id}: ${nodes.map((node) => JSON.stringify(node.target)).join(" ")}`)"""
WIDTHS = (390, 1440)
STATES: dict[str, Callable[[], list[str]]] = {
    "empty": list,
    "finished": lines_of_a_run,
    "under way": lambda: lines_of_a_run()[:60],
    "failed": lambda: [encode_entry(one).decode() + "\n" for one in with_a_bug().entries],
    "many nodes": lambda: lines_of_a_run(nodes=64),
}

if AXE is None or AXE.origin is None:
    pytest.skip("axe-playwright-python is not installed", allow_module_level=True)
RULES = (Path(AXE.origin).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, open_page: Callable[..., Any]) -> Any:
    """One into which the rules may be put, whatever the server says of scripts."""
    return open_page(color_scheme=request.param, bypass_csp=True)


@pytest.fixture(params=STATES)
def address(request: pytest.FixtureRequest, tmp_path: Path, page: Any) -> Iterator[str]:
    log = tmp_path / "a-run" / "events.jsonl"
    if lines := STATES[request.param]():
        write(log, lines)
    with Dashboard(lambda: log if log.exists() else None) as dashboard:
        yield dashboard.link
        page.goto("about:blank")


def found(page: Any, address: str) -> list[str]:
    """What the rules find at an address, at every width."""
    page.goto(address)
    page.wait_for_function(SHOWN)
    page.evaluate(RULES)
    result: list[str] = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        result += page.evaluate(FOUND)
    return result


def test_nothing_is_found_on_a_served_page(page: Any, address: str) -> None:
    assert found(page, address) == []


def test_nothing_is_found_on_a_saved_page(page: Any, tmp_path: Path) -> None:
    log = write(tmp_path / "a-run" / "events.jsonl", lines_of_a_run())
    assert found(page, save(log, tmp_path / "run.html").as_uri()) == []


def test_nothing_is_found_on_the_form_for_the_password(page: Any) -> None:
    with Dashboard(lambda: None) as dashboard:
        page.goto(dashboard.url)
        page.evaluate(RULES)
        assert page.evaluate(FOUND) == []
        page.goto("about:blank")
