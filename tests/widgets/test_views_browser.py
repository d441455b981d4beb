"""The views in a real browser, from a file: they draw, answer what-if, and load nothing."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bokeh")

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.layouts import column
from bokeh.resources import INLINE
from gemini_lab_widgets.views import VIEWS, View
from test_views import HOSTILE, TEXT, hostile_run, tables
from told_runs import ToldRun, with_one_loss

from gemini_lab import plan_placement
from gemini_lab.display import picture

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
IDLE = "() => window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle"
PATIENCE_MS = 60_000

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must neither fail nor ask for anything but its own file."""
    page = browser.new_page(viewport={"width": 1180, "height": 2600})
    page.set_default_timeout(PATIENCE_MS)
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("file:", "data:", "blob:"))
            else troubles.append(request.url)
        ),
    )
    yield page
    page.close()
    assert troubles == []


def show(page: Any, folder: Path, run: ToldRun, kinds: tuple[type[View], ...] = VIEWS) -> None:
    views = [kind() for kind in kinds]
    for view in views:
        view.update(tables(run))
    file = folder / "views.html"
    document = Document()
    document.add_root(column(*[view.root for view in views], sizing_mode="stretch_width"))
    for view in views:
        view.join(document)
    file.write_text(file_html(document, INLINE, title="views"), encoding="utf-8")
    page.goto(file.as_uri())
    page.wait_for_function(IDLE)


def test_all_views_open_from_a_file_without_a_request(page: Any, tmp_path: Path) -> None:
    show(page, tmp_path, with_one_loss())
    for kind in VIEWS:
        if kind not in TEXT:
            assert page.get_by_role("img", name=kind.title).count() >= 1
    assert page.get_by_role("row", name="training").is_visible()
    assert page.get_by_text("failures survivable", exact=True).is_visible()


def test_choosing_a_node_answers_what_if(page: Any, tmp_path: Path) -> None:
    show(page, tmp_path, with_one_loss())
    chooser = page.get_by_label("What if this node dies?")
    chooser.select_option(label="node-3")
    page.get_by_text("If node-3 had died at the run's end").wait_for()
    page.get_by_text("memory of node-4, version 12").wait_for()
    chooser.select_option(label="no node")
    page.get_by_text("Tap a node").wait_for()


@pytest.mark.parametrize("nodes", [4, 40])
def test_tapping_a_node_answers_what_if_until_it_is_tapped_again(
    page: Any, tmp_path: Path, nodes: int
) -> None:
    show(page, tmp_path, ToldRun(nodes=nodes).protect().train(1, 2).finish(2))
    node = page.locator('[data-node="1"]').first
    node.click()
    page.get_by_text("If node-1 had died at the run's end").wait_for()
    faint = "one => getComputedStyle(one.closest('.copy') ?? one).opacity"
    other = page.locator('.copy[data-on="0"] .line' if nodes == 4 else 'i[data-node="0"]').first
    assert other.evaluate(faint) == "0.25"
    if nodes == 4:
        chosen = page.get_by_label("What if this node dies?").locator("option:checked")
        assert chosen.inner_text() == "node-1"
    node.click()
    page.get_by_text("Tap a node").wait_for()
    assert other.evaluate(faint) == "1"


def test_many_nodes_are_shown_in_the_order_that_is_chosen(page: Any, tmp_path: Path) -> None:
    run = ToldRun(nodes=40).protect().train(1, 2).fail("node-21", known=2)
    show(page, tmp_path, run)
    corner = """() => {
        const box = (one) => one.getBoundingClientRect()
        const first = (a, b) => box(a).top - box(b).top || box(a).left - box(b).left
        const maps = (root) => [...root.querySelectorAll("*")].flatMap((one) => [
            ...(one.matches(".shard") ? [one] : []),
            ...(one.shadowRoot ? maps(one.shadowRoot) : []),
        ])
        return maps(document).sort(first)[0].querySelector("i").textContent
    }"""
    assert page.evaluate(corner) == "0"
    page.get_by_label("Order").select_option(label="worst first")
    page.wait_for_function(f"() => ({corner})() === '20'")


def test_a_hostile_name_runs_nothing_in_any_view(page: Any, tmp_path: Path) -> None:
    for nodes in (4, 40):
        show(page, tmp_path, hostile_run(nodes=nodes))
        if nodes == 4:
            page.get_by_label("What if this node dies?").select_option(index=2)
        else:  # of many nodes one is searched, among completions of what was typed
            page.get_by_label("Find a node").press_sequentially("onerror")
            page.get_by_label("Find a node").press("Enter")
        page.get_by_text("had died").wait_for()
        assert page.title() == "views"
        assert page.get_by_text(HOSTILE[:20]).count() >= 1
        assert page.locator("img").count() == 0


def test_a_picture_on_a_phone_is_scrolled_and_not_shrunk(page: Any, tmp_path: Path) -> None:
    """Words of a quarter of their size can be read by nobody."""
    path = tmp_path / "picture.html"
    drawn = picture(plan_placement(nodes=8, replicas=3)).html()
    path.write_text(f"<!doctype html><meta charset=utf-8>{drawn}", encoding="utf-8")
    for width in (390, 1180):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(path.as_uri())
        shown, own = page.locator("svg").evaluate(
            "one => [one.getBoundingClientRect().width, Number(one.getAttribute('width'))]"
        )
        assert 0.69 * own < shown <= own
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_in_a_narrow_card_each_bar_has_one_label(page: Any, tmp_path: Path) -> None:
    """Bars of memory lost theirs on a phone, as they have no shorter one."""
    page.set_viewport_size({"width": 390, "height": 2600})
    show(page, tmp_path, with_one_loss())
    labels = page.locator(".row")
    counts = labels.evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('span')]"
        ".filter((one) => one.getBoundingClientRect().width).length)"
    )
    assert len(counts) > 6
    assert {*counts} == {1}
