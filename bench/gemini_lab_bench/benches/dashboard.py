"""The `dashboard` bench: how long the timeline draws, and how far it is behind, in a browser."""

import itertools
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from gemini_lab_widgets.timeline import Timeline

from gemini_lab.errors import ConfigError
from gemini_lab.report.bars import Kind
from gemini_lab.report.reducers.nodes import Nodes
from gemini_lab.report.reducers.traffic_bars import TrafficBars
from gemini_lab_bench.rows import Row

SIZES: Final = (1_000, 100_000, 1_000_000)
LANES: Final = 8
BARS_PER_S: Final = 100.0
PUSHES_PER_S: Final = 20
DRAWS: Final = 20
"""Draws that are measured in each repeat."""

PATIENCE_S: Final = 120.0
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")


def bench(repeats: int) -> list[Row]:
    """Loading, drawing and lag at 1k, 100k and 1M bars while more arrive 20 times a second.

    The times of draws are the page's own; the lag is from when a bar is known to the server until
    the page has drawn it and said so. The browser draws in software, without a GPU.

    Raises:
        ConfigError: There is no Panel, no Playwright or no Chromium.
    """
    if find_spec("panel") is None:
        raise ConfigError(
            "this needs panel, which is not installed; pip install 'gemini-lab[dashboard]'"
        )
    return [row for size in SIZES for row in measured(size, repeats)]


def measured(size: int, repeats: int) -> list[Row]:
    """Return the rows of one number of bars."""
    traffic = filled(size)
    loads: list[float] = []
    whole: list[float] = []
    near: list[float] = []
    lags: list[float] = []
    with served(traffic) as (url, timelines), browser() as chromium:
        for _ in range(repeats):
            page = chromium.new_page(viewport={"width": 1280, "height": 800})
            began_s = time.perf_counter()
            page.goto(url)
            _wait_for_rows(page, traffic)
            loads.append(time.perf_counter() - began_s)
            for key, draws_s in (("Home", whole), ("End", near)):
                page.locator(".gl-timeline").press(key)
                for draw_s, lag_s in _pushed(page, timelines[-1], traffic):
                    draws_s.append(draw_s)
                    lags.append(lag_s)
            page.close()
    settings = {"bars": size, "lanes": LANES, "pushes": f"{PUSHES_PER_S}/s"}
    return [
        Row(name=name, values=tuple(values), settings=settings)
        for name, values in (
            ("until everything is drawn", loads),
            ("draw the whole run", whole),
            ("draw the last 20 s", near),
            ("behind", lags),
        )
    ]


def filled(size: int) -> TrafficBars:
    """Make a run of `size` bars: per lane collectives and chunks in turn, 100 a second in all."""
    traffic = TrafficBars(Nodes(), limit=2 * size + 100_000)
    traffic.lanes.extend(f"node-{lane}" for lane in range(LANES))
    traffic.names.append("all_gather_into_tensor")
    traffic.origin_s = traffic.newest_s = 0.0
    add_bars(traffic, size)
    return traffic


def add_bars(traffic: TrafficBars, count: int) -> None:
    """Add `count` bars to the run."""
    for number in range(traffic.bars.end, traffic.bars.end + count):
        turn, lane = divmod(number, LANES)
        start_s = number / BARS_PER_S
        kind, length_s = (Kind.TRANSFER, 0.03) if turn % 2 else (Kind.COLLECTIVE, 0.05)
        traffic.bars.add(
            kind,
            start_s,
            start_s + length_s,
            lane=lane,
            size_bytes=1e6,
            number=turn,
            part=0,
            rank=lane,
            peer=(lane + 1) % LANES,
            name=1,
        )
        traffic.newest_s = start_s + length_s


def _pushed(page: Any, timeline: Timeline, traffic: TrafficBars) -> Iterator[tuple[float, float]]:
    """Yield seconds for a draw, and behind the server, for some pushes of a few bars each."""
    for _ in range(DRAWS):
        add_bars(traffic, round(BARS_PER_S / PUSHES_PER_S))
        _wait_for_rows(page, traffic)
        draw_ms = page.locator(".gl-timeline").get_attribute("data-draw-ms")
        page.wait_for_timeout(1000 / PUSHES_PER_S)  # its word that it has drawn arrives meanwhile
        yield float(draw_ms) / 1000, timeline.behind_s


def _wait_for_rows(page: Any, traffic: TrafficBars) -> None:
    page.wait_for_function(
        "([root, count]) => Number(root.dataset.events) >= count",
        arg=[
            page.locator(".gl-timeline").element_handle(timeout=1000 * PATIENCE_S),
            traffic.bars.end,
        ],
        timeout=1000 * PATIENCE_S,
    )


@contextmanager
def served(traffic: TrafficBars) -> Iterator[tuple[str, list[Timeline]]]:
    """Serve a page with a timeline on a free port; give its address and each visit's timeline."""
    import panel as pn  # noqa: PLC0415 - only a bench that runs needs it

    timelines: list[Timeline] = []

    def page() -> Any:
        timeline = Timeline()
        timelines.append(timeline)
        view = timeline.panel()
        pn.state.add_periodic_callback(
            lambda: timeline.update(traffic), period=1000 // PUSHES_PER_S
        )
        return pn.Column(view, sizing_mode="stretch_width")

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pn.serve(page, port=port, address="127.0.0.1", threaded=True, show=False, verbose=False)
    try:
        _wait_until(lambda: _listens(port))
        yield f"http://127.0.0.1:{port}/", timelines
    finally:
        pn.state.kill_all_servers()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _wait_until(holds: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    for _ in itertools.count():
        if holds():
            return
        if time.monotonic() > give_up_s:
            raise ConfigError(f"the bench's own server did not start within {PATIENCE_S:.0f} s")
        time.sleep(0.05)


@contextmanager
def browser() -> Iterator[Any]:
    """Start a headless Chromium: `$CHROMIUM`, one on the PATH, or Playwright's own."""
    try:
        from playwright.sync_api import (  # noqa: PLC0415 - only a bench that runs needs it
            Error,
            sync_playwright,
        )
    except ImportError as error:
        raise ConfigError(
            "the dashboard bench drives a browser with Playwright, which is not installed; "
            "pip install 'gemini-lab[test]'"
        ) from error
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(
                executable_path=path, args=["--no-sandbox", "--disable-gpu", "--no-first-run"]
            )
        except Error as error:
            raise ConfigError(
                f"no Chromium starts here ({str(error).splitlines()[0]}); install one, name it in "
                "$CHROMIUM, or run `playwright install chromium`"
            ) from error
        yield chromium
        chromium.close()
