"""The page about a run, in a real browser: live, finished, and with names that mean harm."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("panel", reason="panel is not installed")

from gemini_lab_widgets.dashboard import Dashboard
from logs_of_runs import lines_of_a_run, write

HARM = "<img src=x onerror=window.harm=1>"


TEXTS = """() => {
    const found = [], pen = document.createElement("canvas").getContext("2d")
    const look = (view, plot) => {
        const {model} = view
        if (model.type === "Figure") plot = view
        if (model.type === "GlyphRenderer" && model.glyph.type === "Text" && model.visible) {
            const {data} = model.data_source, {glyph} = model
            const of = (spec, i) => "field" in spec ? data[spec.field][i] : spec.value
            for (let i = 0; i < data[glyph.x.field].length; i++) {
                const text = of(glyph.text, i), align = of(glyph.text_align, i)
                pen.font = `${of(glyph.text_font_size, i)} ${of(glyph.text_font, i)}`
                const {width} = pen.measureText(text)
                const back = {left: 0, center: width / 2, right: width}[align]
                const at = plot.frame.x_scale.compute(of(glyph.x, i)) + of(glyph.x_offset, i) - back
                found.push({text, at, is_within: at >= 0 && at + width <= plot.model.outer_width})
            }
        }
        for (const child of view.children()) look(child, plot)
    }
    for (const root of Bokeh.index.roots) look(root, null)
    const visit = (root) => {
        for (const one of root.querySelectorAll("*")) {
            if (one.shadowRoot) visit(one.shadowRoot)
            if (!one.matches("svg text")) continue
            const {left, right, width} = one.getBoundingClientRect()
            const is_within = left >= 0 && right <= innerWidth
            if (width) found.push({text: one.textContent, at: left, is_within})
        }
    }
    visit(document)
    return found
}"""
"""What is written in the figures of a page, and whether all of it is within them."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "a-run" / "events.jsonl"


@contextmanager
def shown(log: Path, page: Any) -> Iterator[Dashboard]:
    with Dashboard(lambda: log if log.exists() else None) as dashboard:
        page.goto(dashboard.link)
        yield dashboard
        page.goto("about:blank")  # before the server goes


def wait_for(page: Any, text: str) -> None:
    """Wait until a text stands anywhere on the page, in shadow roots, too."""
    page.get_by_text(text).locator("visible=true").first.wait_for()


def test_news_arrives_while_the_log_grows(log: Path, page: Any) -> None:
    """From no run at all over half a run, with half a line at its end, to its end."""
    lines = lines_of_a_run()
    half = len(lines) // 2
    with shown(log, page):
        wait_for(page, "no run has begun yet")
        wait_for(page, "No run yet")
        assert not page.get_by_role("heading", name="Wasted time").count(), "empty cards"
        write(log, [*lines[:half], lines[half][:20]])
        wait_for(page, "a-run")
        assert not page.get_by_text("this is the whole run").count()
        write(log, [lines[half][20:], *lines[half + 1 :]])
        wait_for(page, "this is the whole run")
        last = max(e["iteration"] for e in map(json.loads, lines) if e["kind"] == "iteration")
        wait_for(page, f"{last:,}")
        assert not page.get_by_text("could not be read").count()


HEIGHTS = """() => Object.fromEntries(
    ['iterations'].map((name) => {
        const high = (root) => Math.max(0, ...[...root.querySelectorAll('*')].map((one) => Math.max(
            one.matches('canvas') ? one.getBoundingClientRect().height : 0,
            one.shadowRoot ? high(one.shadowRoot) : 0)))
        return [name, high(document.querySelector(`.${name}`))]
    }))"""
"""How high the plots of a card are."""


def test_no_plot_is_stretched_to_fill_its_card(log: Path, open_page: Callable[..., Any]) -> None:
    """A flat line of a run of two days was 780 pixels high, to end where the other column ended."""
    write(log, lines_of_a_run())
    page = open_page(viewport={"width": 1024, "height": 900})
    with shown(log, page):
        wait_for(page, "Wasted time of a failure")
        page.wait_for_function(f"() => Object.values(({HEIGHTS})()).every((high) => high > 100)")
        before = page.evaluate(HEIGHTS)
        assert before["iterations"] <= 320
        for width in (1440, 2560):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(
                f"(before) => JSON.stringify(({HEIGHTS})()) === JSON.stringify(before)", arg=before
            )


def test_the_buttons_beside_the_slider_stay_on_one_line(log: Path, page: Any) -> None:
    """At 768 pixels two of the three fell below the first."""
    write(log, lines_of_a_run())
    with shown(log, page):
        wait_for(page, "this is the whole run")
        buttons = [page.get_by_role("button", name=name) for name in ("◀", "failure ▶", "newest")]
        for width in (390, 768, 1000, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            boxes = [button.bounding_box() for button in buttons]
            assert len({round(box["y"]) for box in boxes}) == 1, width
            assert boxes[-1]["x"] + boxes[-1]["width"] <= width


def test_a_map_of_many_nodes_is_scrolled_and_not_squeezed(log: Path, page: Any) -> None:
    write(log, lines_of_a_run(nodes=400, failures=1))
    with shown(log, page):
        wait_for(page, "Find a node")
        grid = page.get_by_role("group", name="Who keeps whose replica")
        page.locator('i[data-node="399"]').first.wait_for()
        seen, whole = grid.evaluate("one => [one.clientHeight, one.scrollHeight]")
        assert 300 < seen < 600 < whole
        cell = page.locator('i[data-node="0"]').first.bounding_box()
        assert cell["height"] > 14


def test_while_the_views_load_the_answers_are_there_and_names_where_figures_will_be(
    log: Path, open_page: Callable[..., Any]
) -> None:
    write(log, lines_of_a_run())
    named = "(slot) => getComputedStyle(document.querySelector(slot), '::before').content"
    waiting, page = open_page(), open_page()
    waiting.route_web_socket("**/ws*", lambda _socket: None)  # nobody answers
    with shown(log, page) as dashboard:
        waiting.goto(dashboard.link)
        for text in ("What did failures cost?", "failures survivable"):
            assert waiting.get_by_text(text).is_visible()
        assert waiting.evaluate(named, "section.wasted") == '"Wasted time of a failure"'
        wait_for(page, "Eq. (1) of the paper")
        assert page.evaluate(named, "section.wasted") == "none"
        assert page.locator(".first").evaluate("one => getComputedStyle(one).display") == "none"
        waiting.goto("about:blank")


def test_all_of_the_page_is_in_one_font_and_a_tile_has_its_name_on_one_line(
    log: Path, open_page: Callable[..., Any]
) -> None:
    write(log, lines_of_a_run())
    page = open_page(viewport={"width": 1440, "height": 900})
    with shown(log, page):
        status = page.get_by_role("region", name="Status")
        name = status.get_by_text("failures survivable", exact=True)
        name.wait_for()
        assert name.evaluate(
            "one => one.clientHeight < 1.6 * parseFloat(getComputedStyle(one).fontSize)"
        )
        fonts = page.locator("h1, h2, h3, dt, td, label, select, button, p").evaluate_all(
            "all => [...new Set(all.map((one) => getComputedStyle(one).fontFamily))]"
        )
        assert len(fonts) == 1, fonts


@pytest.mark.parametrize("standbys", [5, 12])
def test_on_a_phone_no_text_of_a_figure_is_cut_off(
    log: Path, open_page: Callable[..., Any], standbys: int
) -> None:
    """Names and numbers have to be within their figure, or not be drawn."""
    write(log, lines_of_a_run(nodes=32, failures=standbys))
    page = open_page(viewport={"width": 390, "height": 844})
    with shown(log, page):
        wait_for(page, "Memory for checkpoints")
        page.wait_for_function(f"() => ({TEXTS})().length > 0")
        page.wait_for_function(f"() => ({TEXTS})().every((one) => one.is_within)")
        assert len(page.evaluate(TEXTS)) > 3


def test_the_form_for_the_password_fits_a_phone(log: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(viewport={"width": 390, "height": 844})
    with Dashboard(lambda: log) as dashboard:
        page.goto(dashboard.url)
        form = page.locator("form").bounding_box()
        assert form["x"] > 0
        assert form["x"] + form["width"] < 390
        page.goto("about:blank")


def test_what_is_not_there_yet_takes_no_more_room_than_its_words(log: Path, page: Any) -> None:
    """Beside a tall map of replicas a card without a recovery was hundreds of pixels high."""
    write(log, lines_of_a_run(failures=0))
    with shown(log, page):
        wait_for(page, "Tap a node")
        page.wait_for_function("() => document.querySelector('.replicas').clientHeight > 500")
        page.get_by_text("No recovery.").first.wait_for()
        assert page.locator("section.recovery").evaluate("one => one.clientHeight") < 120


def test_the_sliders_keys_go_to_the_start_and_to_the_newest_moment(log: Path, page: Any) -> None:
    """The end is where the run is now, not where it was when the page was loaded."""
    lines = lines_of_a_run()
    half = len(lines) // 2
    write(log, lines[:half])
    with shown(log, page):
        wait_for(page, "Who keeps whose replica")
        slider = page.get_by_role("slider", name="Moment of the run")
        first_s = float(slider.get_attribute("aria-valuemax"))
        slider.press("Home")
        page.wait_for_url("**?at=0.000*")
        assert float(slider.get_attribute("aria-valuenow")) == 0
        write(log, lines[half:])
        newest = page.get_by_role("button", name="newest")
        newest.evaluate("button => button.disabled = true")  # as on a slow link: it is not told yet
        slider.press("End")
        newest.evaluate("button => button.disabled = false")
        page.wait_for_url(lambda url: "at=" not in url)
        wait_for(page, "this is the whole run")
        at_s, end_s = (float(slider.get_attribute(f"aria-value{name}")) for name in ("now", "max"))
        assert at_s == end_s > first_s


def test_the_tab_key_stops_at_no_figure_that_comes_after_the_page(log: Path, page: Any) -> None:
    write(log, lines_of_a_run())
    with shown(log, page):
        wait_for(page, "Eq. (1) of the paper")
        page.wait_for_function(
            """() => {
                const stops = (root) => [...root.querySelectorAll("*")].flatMap((one) => [
                    ...(one.matches(".bk-events") ? [one.tabIndex] : []),
                    ...(one.shadowRoot ? stops(one.shadowRoot) : []),
                ])
                const found = stops(document)
                return found.length > 1 && found.every((index) => index === -1)
            }"""
        )


def test_the_page_goes_on_to_the_next_run(tmp_path: Path, page: Any) -> None:
    lines = lines_of_a_run()
    logs = [write(tmp_path / "first" / "events.jsonl", lines)]
    with Dashboard(lambda: logs[-1]) as dashboard:
        page.goto(dashboard.link)
        wait_for(page, "first")
        logs.append(write(tmp_path / "second" / "events.jsonl", lines[: len(lines) // 2]))
        wait_for(page, "second")
        page.wait_for_function("() => document.title.startsWith('second')")
        page.goto("about:blank")


def test_a_page_tells_that_its_server_went_away_and_returns_with_it(log: Path, page: Any) -> None:
    write(log, lines_of_a_run())
    first = Dashboard(lambda: log).start()
    try:
        page.goto(first.link)
        page.locator("[data-events]").wait_for()  # what is a module of its own comes last
        wait_for(page, "Who keeps whose replica")
    finally:
        first.close()
    wait_for(page, "The server is away")
    assert page.get_by_text("this is the whole run").locator("visible=true").count() == 0
    assert page.get_by_text("Who keeps whose replica").count()
    with Dashboard(lambda: log, port=first.port):
        page.get_by_label("Password").wait_for()
        page.faults[:] = [fault for fault in page.faults if "failed request" not in fault]
        page.goto("about:blank")


def test_an_address_that_asks_for_what_is_not_there_is_put_right(log: Path, page: Any) -> None:
    write(log, lines_of_a_run())
    with shown(log, page) as dashboard:
        wait_for(page, "this is the whole run")
        page.goto(f"{dashboard.url}?run=nothing&at=1e9")
        wait_for(page, "no run here is called nothing")
        page.wait_for_url(dashboard.url)
        page.goto(f"{dashboard.url}?at=-5")
        page.wait_for_url("**?at=0.000")


def test_a_link_shows_the_node_whose_death_was_asked_about(log: Path, page: Any) -> None:
    lines = lines_of_a_run()
    write(log, lines[: len(lines) // 2])
    with shown(log, page) as dashboard:
        wait_for(page, "Who keeps whose replica")
        page.get_by_label("What if this node dies?").select_option(label="node-3")
        wait_for(page, "If node-3 died now")
        page.wait_for_url("**#*node=node-3*")
        page.goto(f"{dashboard.url}?at=5.000#node=node-2")
        wait_for(page, "If node-2 had died then")
        page.get_by_label("What if this node dies?").select_option(label="no node")
        page.wait_for_url(lambda url: "node=" not in url)
        page.get_by_role("button", name="newest").click()
        page.wait_for_url(lambda url: "at=" not in url)
        wait_for(page, "Tap a node")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_system_until_told_otherwise(
    log: Path, open_page: Any, scheme: str
) -> None:
    page = open_page(color_scheme=scheme)
    write(log, lines_of_a_run())
    other = {"light": "dark", "dark": "light"}[scheme]
    with shown(log, page):
        page.wait_for_function(f"() => document.documentElement.dataset.theme === '{scheme}'")
        page.get_by_role("button", name=other.title(), exact=True).click()
        page.wait_for_function(f"() => document.documentElement.dataset.theme === '{other}'")


def test_names_that_mean_harm_do_none(log: Path, page: Any) -> None:
    """In the log's every name, and in the name of the run's folder."""
    spelled = json.dumps(HARM)[1:-1]
    harmful = [line.replace("node-", spelled + "-") for line in lines_of_a_run()]
    with shown(write(log.parent.parent / HARM / log.name, harmful), page):
        wait_for(page, HARM)
        wait_for(page, "this is the whole run")
        page.get_by_role("heading", name="Wasted time").scroll_into_view_if_needed()
        assert page.evaluate("() => window.harm") is None
