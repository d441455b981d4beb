"""A run with more bars than a page holds: any window is asked for, live and saved."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("panel", reason="panel is not installed")

from gemini_lab_widgets.save import standalone_html

from gemini_lab.report.bars import BATCH, Kind
from gemini_lab.report.blocks import FileBlocks
from gemini_lab.report.pyramid import Pyramid
from gemini_lab.report.reducers.nodes import Nodes
from gemini_lab.report.reducers.traffic_bars import TrafficBars


@pytest.fixture(scope="module")
def traffic() -> TrafficBars:
    """Two nodes that send half of each second, and of which the newest bars alone are at hand."""
    made = TrafficBars(Nodes(), limit=BATCH, pyramid=Pyramid(FileBlocks()))
    made.lanes += ["node-0", "node-1"]
    made.costs_s += [0.0, 0.0]
    made.origin_s = 0.0
    for number in range(2 * BATCH + 10):
        at_s = number / 2
        made.bars.add(Kind.VERSION, at_s, at_s + 0.5, lane=number % 2, number=number, rank=0)
    made.newest_s, made.is_over = at_s, True
    return made


def data(page: Any) -> dict[str, str]:
    return dict(page.locator(".gl-timeline").evaluate("root => ({ ...root.dataset })"))


def open_at(page: Any, path: Path, where: str, shows: str) -> None:
    """Open the page at an address, and wait until it shows bars, a window or cells."""
    page.goto("about:blank")
    page.goto(path.as_uri() + where)
    page.wait_for_function(
        "shows => document.querySelector('.gl-timeline')?.dataset.shows === shows", arg=shows
    )


def test_a_saved_page_shows_a_window_in_full_and_the_rest_in_bins(
    traffic: TrafficBars, tmp_path: Path, page: Any
) -> None:
    """And its address brings back the window and the bar that was selected."""
    path = tmp_path / "run.html"
    html = standalone_html(traffic, window=(1000.0, 1100.0))
    path.write_text(f"<!doctype html><meta charset=utf-8>{html}", encoding="utf-8")
    open_at(page, path, "", "cells")
    assert int(data(page)["events"]) == traffic.bars.end
    page.locator(".gl-timeline canvas").hover(position={"x": 400, "y": 60})
    page.get_by_text("zoom in for single bars").wait_for()
    open_at(page, path, "#t=1010~1020&bar=2030", "bars")
    page.get_by_text("version 2030").wait_for()
    page.get_by_label("Show only nodes").fill("1")
    page.wait_for_function("() => location.hash.includes('find=1')")
    assert "bar=2030" in page.evaluate("location.hash")
