"""The replica map of many nodes: every copy with its holder's number, in an order to be picked."""

from collections.abc import Sequence
from typing import Any, Final

from bokeh.core.properties import value
from bokeh.models import AutocompleteInput, ColumnDataSource, CustomJS, Select, TapTool

from gemini_lab.report.tables import CopyRow, CopyState, ReplicaTable
from gemini_lab_widgets.pictures.palette import BLUE, FONT, LIGHT, MARK, ORANGE, RED, SKY, shown
from gemini_lab_widgets.views import answers, crowd
from gemini_lab_widgets.views.view import View, hover, put, source, stretch

COLOURS: Final[dict[CopyState, str]] = {"whole": SKY, "missing": ORANGE, "lost": RED}
INPUT: Final = """
:host { font-family: FONT; }
label, .bk-input-group { color: var(--gl-ink); font-size: 14px; }
.bk-input { color: var(--gl-ink); background-color: var(--gl-pale); font-size: 14px;
  border-color: var(--gl-rule); }
.bk-menu { color: var(--gl-ink); background-color: var(--gl-pale); }
""".replace("FONT", FONT)
CELL_WIDTH: Final = 28
CELL_HEIGHT: Final = 17
COLUMNS: Final = (11, 23, 40)
"""What a phone, a card of half a page, and one of a large screen have room for."""
USUAL: Final = 23
TALLEST: Final = 560
"""Pixels of the map that are seen at once; the rest is scrolled to."""
PLANS: Final = [f"{order}_{columns}" for order in crowd.ORDERS for columns in COLUMNS]
"""Every order of the units, at every width."""
NUMBERED: Final = 1_000
"""Positions whose numbers fit a cell."""
REFLOW: Final = """
    const room = Math.floor(grid.outer_width / cell_width - 0.2)
    if (!(room > 0)) return
    const columns = counts.findLast((count) => count <= room) ?? counts[0]
    const plan = `${order.value}_${columns}`
    if (cells.data[`x_${plan}`] === undefined) return
    for (const axis of ["x", "y"]) cells.data[axis] = cells.data[`${axis}_${plan}`]
    cells.change.emit()
    const mine = layouts.data.plan.map((one) => one === plan), kept = {}
    for (const [name, column] of Object.entries(layouts.data))
        if (name !== "plan") kept[name] = column.filter((_, i) => mine[i])
    plates.data = kept
    const rows = kept.bottom.reduce((most, bottom) => Math.max(most, bottom), 1)
    grid.x_range.end = grid.outer_width / cell_width - 0.1
    grid.y_range.start = rows + 0.3
    grid.height = Math.round((rows + 0.6) * cell_height)
"""
FIND: Final = """
    const asked = cb_obj.value.trim().toLowerCase()
    const names = nodes.data.name.map((name) => name.toLowerCase())
    let place = names.indexOf(asked)
    if (place < 0 && asked) place = names.findIndex((name) => name.includes(asked))
    nodes.selected.indices = place < 0 ? [] : [place]
"""


class CrowdMap(View):
    """A view that draws many nodes' copies; what was picked, `nodes` tells to the rest of it."""

    nodes: ColumnDataSource
    cells: ColumnDataSource
    grid: Any
    order: Select
    find: AutocompleteInput

    def _build_crowd(self) -> None:
        """Make the map, and what one finds and orders nodes with."""
        axes = " ".join(f"x_{plan} y_{plan}" for plan in PLANS)
        self.cells = source(
            "x y colour ink number width position shard holder tier state version what_if " + axes
        )
        self.plates = source("left right top bottom label")
        self.layouts = source("left right top bottom label plan")
        self.order = Select(
            title="Order", options=list(crowd.ORDERS.items()), value="place", width=150
        )
        self.find = AutocompleteInput(
            title="Find a node",
            completions=[],
            min_characters=1,
            case_sensitive=False,
            search_strategy="includes",
            restrict=False,
            width=200,
        )
        for one in (self.order, self.find):
            one.stylesheets = [INPUT]
        self.grid = self._crowd_figure()
        args = {
            "cells": self.cells,
            "layouts": self.layouts,
            "plates": self.plates,
            "grid": self.grid,
            "order": self.order,
            "counts": COLUMNS,
            "cell_width": CELL_WIDTH,
            "cell_height": CELL_HEIGHT,
        }
        reflow = CustomJS(args=args, code=REFLOW)
        self.order.js_on_change("value", reflow)
        self.grid.js_on_change("outer_width", reflow)
        self.layouts.js_on_change("data", reflow)
        self.find.js_on_change("value", CustomJS(args={"nodes": self.nodes}, code=FIND))

    def _crowd_figure(self) -> Any:
        plot = self._figure(height=460)
        plot.visible = False
        stretch(plot.x_range, -0.1, USUAL + 0.1)
        stretch(plot.y_range, 1.3, -0.3)
        plot.axis.visible = plot.grid.visible = False
        plot.min_border = 0
        band = plot.quad("left", "right", "top", "bottom", source=self.plates, line_color=None)
        self._follow(band.glyph, fill_color="pale")
        labels = {"text": "label", "text_font_size": value("12px"), "text_baseline": "bottom"}
        self._text(plot, "left", "top", self.plates, colour="dim", **labels)
        cells = plot.rect(
            "x",
            "y",
            width=0.94,
            height=0.9,
            source=self.cells,
            fill_color=self._kind("colour"),
            line_width="width",
            nonselection_alpha=0.3,
        )
        for glyph in (cells.glyph, cells.nonselection_glyph):
            self._follow(glyph, line_color="ink")
        middle = {"text_align": "center", "text_baseline": "middle"}
        small = {"text_font_size": value("11px"), "text": "number", "text_color": self._kind("ink")}
        self._text(plot, "x", "y", self.cells, **middle, **small)
        hover(
            plot,
            [cells],
            ("shard", "@shard"),
            ("copy", "@tier on @holder, @state"),
            ("version", "@version"),
            ("if this node dies", "@what_if"),
        )
        plot.add_tools(TapTool(renderers=[cells]))
        return plot

    def _draw_crowd(self, table: ReplicaTable) -> int:
        """Draw every copy; how many shards are left out."""
        by_shard, left_out = crowd.chosen(table)
        plans = {
            f"{order}_{columns}": crowd.flow(by_shard, in_order, columns=columns)
            for order in crowd.ORDERS
            for in_order in [crowd.units(table, by_shard, order)]
            for columns in COLUMNS
        }
        picked = f"{self.order.value}_{USUAL}"
        # One row a copy, in order of shard, wherever a plan puts it.
        copies = [copy for kept in by_shard.values() for copy in kept]
        put(self.cells, _looks(copies, table) | _places(copies, plans, picked))
        bands = [(name, band) for name, plan in plans.items() for band in plan.bands]
        put(self.layouts, _band_columns(bands) | {"plan": [name for name, _ in bands]})
        has_racks = any(node.rack for node in table.nodes)
        options = [one for one in crowd.ORDERS.items() if has_racks or one[0] != "rack"]
        if self.order.options != options:
            self.order.options = options
        names = [shown(node.name) for node in table.nodes]
        if self.find.completions != names:
            self.find.completions = names
        return left_out


def _places(
    copies: Sequence[CopyRow], plans: dict[str, crowd.Crowd], picked: str
) -> dict[str, list[Any]]:
    """Where each copy stands in each plan, and in the one that is picked."""
    columns: dict[str, list[Any]] = {}
    for name, plan in plans.items():
        at = {
            (copy.shard, copy.position): place
            for copy, *place in zip(plan.copies, plan.x, plan.y, strict=True)
        }
        places = [at[copy.shard, copy.position] for copy in copies]
        columns[f"x_{name}"] = [x for x, _ in places]
        columns[f"y_{name}"] = [y for _, y in places]
    return columns | {axis: columns[f"{axis}_{picked}"] for axis in ("x", "y")}


def _looks(copies: Sequence[CopyRow], table: ReplicaTable) -> dict[str, list[Any]]:
    """Colours and words of each copy."""
    what = {answer.position: answers.answer_of(answer, table)[0] for answer in table.what_if}
    roots = {node.position for node in table.nodes if node.is_root}
    is_numbered = len(table.nodes) <= NUMBERED
    strong = [copy.is_own and copy.state == "whole" for copy in copies]
    return {
        "colour": [
            BLUE if own else COLOURS[copy.state] for own, copy in zip(strong, copies, strict=True)
        ],
        "ink": [LIGHT.paper if own else MARK for own in strong],
        "number": [str(copy.position) if is_numbered else "" for copy in copies],
        "width": [2.5 if copy.position in roots else 0 for copy in copies],
        "position": [copy.position for copy in copies],
        "shard": [copy.shard for copy in copies],
        "holder": [answers.placed(copy.holder, table.nodes[copy.position].rack) for copy in copies],
        "tier": ["own" if copy.is_own else "replica" for copy in copies],
        "state": [words_of(copy) for copy in copies],
        "version": [version_of(copy.version) for copy in copies],
        "what_if": [what.get(copy.position, "") for copy in copies],
    }


def _band_columns(bands: Sequence[tuple[str, crowd.Band]]) -> dict[str, list[Any]]:
    return {
        "left": [band.left - 0.1 for _, band in bands],
        "right": [band.right + 0.1 for _, band in bands],
        "top": [band.top - 0.12 for _, band in bands],
        "bottom": [band.bottom + 0.12 for _, band in bands],
        "label": [shown(band.label, longest=24) for _, band in bands],
    }


def words_of(copy: CopyRow) -> str:
    """A copy's state."""
    state = "not there yet" if copy.state == "missing" else copy.state
    return f"{state}, a newer one is being written" if copy.is_writing else state


def version_of(version: int | None) -> str:
    """A copy's version."""
    return "none" if version is None else f"{version:,}"
