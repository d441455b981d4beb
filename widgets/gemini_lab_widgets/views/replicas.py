"""Who keeps whose replica, and what would follow if a node died."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from bokeh.core.properties import value
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import CustomJS, Div, Select, TapTool

from gemini_lab.report.tables import CopyRow, CopyState, NodeHealth, ReplicaTable, Tables
from gemini_lab_widgets.pictures.palette import BLUE, GREY, ORANGE, shown
from gemini_lab_widgets.views import answers, ring
from gemini_lab_widgets.views.crowd_map import (
    COLOURS,
    INPUT,
    TALLEST,
    CrowdMap,
    version_of,
    words_of,
)
from gemini_lab_widgets.views.view import CSS, hover, put, source, stretch

ROUND: Final = 32
"""Nodes that are drawn as a ring, at most."""
WIDTH: Final = 580
HEIGHT: Final = 490
"""Of the ring, in pixels."""
STANDBYS: Final = 5
MARKERS: Final[dict[NodeHealth, str]] = {
    "starting": "circle",
    "training": "circle",
    "recovering": "triangle",
    "failed": "triangle",
    "over": "circle",
    "standby": "square",
    "drained": "diamond",
    "left": "diamond",
    "lost": "square_x",
}
DASHES: Final[dict[CopyState, list[int]]] = {"whole": [], "missing": [6, 4], "lost": [2, 4]}
DETAILS: Final = (
    CSS
    + """
table { border-collapse: collapse; font-size: 14px; margin: 4px 0 0; }
td { padding: 1px 14px 1px 0; font-variant-numeric: tabular-nums; }
.key { font-size: 13.5px; color: var(--gl-dim); margin: 12px 0 0; line-height: 1.6; }
.key b { font-weight: 700; margin-right: 3px; }
.if { min-height: 8.4em; }
"""
)
FIT: Final = """
    // A narrow ring has no room beside it for names; numbers and the list of nodes stay.
    const width = ring.outer_width, spares = standbys.data.x
    if (!(width > 0)) return
    const is_narrow = width < 400
    names.visible = !is_narrow
    standby_names.visible = !is_narrow || spares.length <= 3
    const half = is_narrow ? Math.max(1.35, 0.15 - Math.min(0, ...spares)) : 2
    ring.x_range.start = -half
    ring.x_range.end = half
    const across = width / (2 * half)
    marks.glyph.size = Math.max(16, Math.min(34, 5 * across / Math.max(1, nodes.length)))
    ring.height = is_narrow ? Math.round(width * 1.1) : HEIGHT
""".replace("HEIGHT", str(HEIGHT))
PICK: Final = """
    const [picked] = nodes.selected.indices
    const key = picked == null ? "" : nodes.data.key[picked]
    if (key === undefined) return
    details.text = key === "" ? nothing : nodes.data.html[picked]
    copies.selected.indices = key === "" ? [] : nodes.data.touches[picked]
    cells.selected.indices = key === "" ? [] : nodes.data.cells[picked]
    if (select.value !== key) select.value = key
"""
PICK_CELL: Final = """
    const picked = cb_obj.indices
    if (picked.length > 1) return
    nodes.selected.indices = picked.map((cell) => cells.data.position[cell])
"""
PICK_NAME: Final = """
    const place = nodes.data.key.indexOf(cb_obj.value)
    const now = nodes.selected.indices
    if (place < 0 && now.length) nodes.selected.indices = []
    if (place >= 0 && now[0] !== place) nodes.selected.indices = [place]
"""
KEEP: Final = """
    const [picked] = nodes.selected.indices
    const said = new URLSearchParams(location.hash.replace(/^#/, ""))
    if (picked == null) said.delete("node")
    else if (nodes.data.name[picked] !== undefined) said.set("node", nodes.data.name[picked])
    const hash = said.size ? `#${said}` : ""
    const rest = location.href.replace(/#.*$/, "")
    if (hash !== location.hash) history.replaceState(history.state, "", rest + (hash || "#"))
"""
ARRIVE: Final = """
    const asked = new URLSearchParams(location.hash.replace(/^#/, "")).get("node")
    const place = asked === null ? -1 : Array.from(nodes.data.name).indexOf(asked)
    if (place >= 0 && !nodes.selected.indices.length) nodes.selected.indices = [place]
"""
NOTHING: Final = "<p>Tap a node, or name one, to see what would follow if it died.</p>"


class ReplicasView(CrowdMap):
    """The replica map: a ring of up to 32 nodes, every copy with its number beyond that."""

    title: ClassVar[str] = "Who keeps whose replica"

    def _build(self) -> Sequence[Any]:
        self.nodes = source(
            "x y marker colour name told position key html touches cells what_if lost comes_from"
        )
        self.labels = source("x y text align baseline angle")
        self.copies = source("x0 y0 x1 y1 cx cy angle dash colour head shard holder state version")
        self.bands = source("start end")
        self.standbys = source("x y text label_y")
        self._build_crowd()
        self.select = Select(title="What if this node dies?", options=[("", "no node")], value="")
        self.select.max_width, self.select.sizing_mode = 320, "stretch_width"
        self.details = Div(
            text=NOTHING, disable_math=True, stylesheets=[DETAILS], sizing_mode="stretch_width"
        )
        self.details.html_attributes = {"role": "status", "aria-live": "polite"}
        self.chances = Div(disable_math=True, stylesheets=[DETAILS], sizing_mode="stretch_width")
        self.select.stylesheets = [INPUT]
        self.ring = self._ring()
        self._connect()
        asked = column(self.select, self.details)
        asked.styles = self.chances.styles = {"flex": "1 1 220px", "max-width": "420px"}
        side = row(asked, self.chances)
        side.styles = {"flex": "1 1 240px", "flex-wrap": "wrap", "gap": "8px 24px"}
        tools = row(self.find, self.order, sizing_mode="stretch_width")
        tools.styles = {"flex-wrap": "wrap"}
        self.frame = column(self.grid, sizing_mode="stretch_width", visible=False)
        self.frame.styles = {
            "max-height": f"{TALLEST}px",
            "overflow-y": "auto",
            "margin-bottom": "12px",
        }
        self.frame.html_attributes = {
            "tabindex": "0",
            "role": "group",
            "aria-label": "The map, which can be scrolled",
        }
        self.both = row(self.ring, side, sizing_mode="stretch_width", visible=False)
        self.both.styles = {"flex-wrap": "wrap", "gap": "8px 16px"}
        return (tools, self.frame, self.both)

    def join(self, document: Document) -> None:
        """Keep the chosen node in the address of the page, and choose the one that it names."""
        keep, arrive = (CustomJS(args={"nodes": self.nodes}, code=code) for code in (KEEP, ARRIVE))
        self.nodes.selected.js_on_change("indices", keep)
        self.nodes.js_on_change("data", arrive)
        document.js_on_event("document_ready", arrive)

    def _ring(self) -> Any:
        plot = self._figure(height=HEIGHT)
        plot.max_width, plot.min_width = WIDTH, 280
        plot.styles = {"flex": "1 1 460px"}
        stretch(plot.x_range, -2.0, 2.0)
        stretch(plot.y_range, -1.8, 1.56)
        plot.axis.visible = plot.grid.visible = False
        self._groups(plot)
        self._arrows(plot)
        self._members(plot)
        standby_names = self._spares(plot)
        args = {
            "ring": plot,
            "names": self.names,
            "standby_names": standby_names,
            "marks": self.marks,
            "nodes": self.nodes,
            "standbys": self.standbys,
        }
        fit = CustomJS(args=args, code=FIT)
        plot.js_on_change("outer_width", fit)
        self.standbys.js_on_change("data", fit)
        return plot

    def _groups(self, plot: Any) -> None:
        band = plot.annular_wedge(
            x=0,
            y=0,
            inner_radius=0.84,
            outer_radius=1.16,
            start_angle="start",
            end_angle="end",
            source=self.bands,
            line_color=None,
        )
        self._follow(band.glyph, fill_color="pale")

    def _arrows(self, plot: Any) -> None:
        lines = plot.quadratic(
            *("x0", "y0", "x1", "y1", "cx", "cy"),
            source=self.copies,
            line_color=self._kind("colour"),
            line_dash="dash",
            line_width=2.4,
            nonselection_line_alpha=0.18,
        )
        plot.scatter(
            "x1",
            "y1",
            marker="triangle",
            angle="angle",
            size=11,
            source=self.copies,
            line_color=self._kind("colour"),
            fill_color=self._kind("head"),
            nonselection_alpha=0.18,
        )
        hover(
            plot,
            [lines],
            ("shard", "@shard"),
            ("kept by", "@holder"),
            ("copy", "@state"),
            ("version", "@version"),
        )

    def _members(self, plot: Any) -> None:
        marks = plot.scatter(
            "x",
            "y",
            marker="marker",
            size=34,
            source=self.nodes,
            fill_color=self._kind("colour"),
            line_width=2,
            selection_line_width=6,
        )
        self._follow(marks.selection_glyph, line_color=ORANGE)
        marks.nonselection_glyph = None
        self._follow(marks.glyph, line_color="ink")
        inside = {
            "text_align": "center",
            "text_baseline": "middle",
            "text_font_style": "bold",
        }
        self._text(plot, "x", "y", self.nodes, colour="paper", text="key", **inside)
        around = {
            "text_align": "align",
            "text_baseline": "baseline",
            "angle": "angle",
            "text_font_size": value("14px"),
        }
        self.names = self._text(plot, "x", "y", self.labels, colour="ink", **around)
        self.marks = marks
        hover(
            plot,
            [marks],
            ("node", "@told"),
            ("if it dies", "@what_if"),
            ("lost from memory", "@lost"),
            ("its shard comes from", "@comes_from"),
        )
        plot.add_tools(TapTool(renderers=[marks]))

    def _spares(self, plot: Any) -> Any:
        """Draw the standbys; gives their names."""
        marks = plot.scatter(
            "x",
            "y",
            marker="square",
            size=20,
            source=self.standbys,
            fill_color=None,
            line_width=2,
            line_dash=[4, 3],
        )
        self._follow(marks.glyph, line_color="rule")
        beneath = {"text_align": "center", "text_baseline": "top"}
        return self._text(plot, "x", "label_y", self.standbys, colour="dim", **beneath)

    def _connect(self) -> None:
        args = {
            "nodes": self.nodes,
            "copies": self.copies,
            "cells": self.cells,
            "select": self.select,
            "details": self.details,
            "nothing": NOTHING,
        }
        pick = CustomJS(args=args, code=PICK)
        self.nodes.selected.js_on_change("indices", pick)
        self.nodes.js_on_change("data", pick)
        self.cells.selected.js_on_change("indices", CustomJS(args=args, code=PICK_CELL))
        self.select.js_on_change("value", CustomJS(args=args, code=PICK_NAME))

    # -- drawing -------------------------------------------------------------------------------

    def update(self, tables: Tables) -> None:
        """Draw a snapshot's placement and copies."""
        table = tables.replicas
        is_round = len(table.nodes) <= ROUND
        self.both.visible = bool(table.nodes)
        self.ring.visible = is_round
        self.grid.visible = self.frame.visible = not is_round
        self.select.visible = is_round
        self.find.visible = self.order.visible = not is_round
        asked = answers.questions(table, answers.when(tables.status))
        left_out = (self._draw_ring if is_round else self._draw_many)(table, asked)
        notes = [f"{left_out} shards whose copies are all whole are not drawn"] if left_out else []
        self._say(answers.describe(table), notes=notes)
        names = [(str(n.position), shown(n.name)) for n in table.nodes]
        options = [("", "no node"), *names] if table.what_if else [("", "no node")]
        if self.select.options != options:
            self.select.options = options
        words = answers.chances(table) + answers.key(is_round=is_round)
        if self.chances.text != words:
            self.chances.text = words

    def _draw_ring(self, table: ReplicaTable, asked: dict[str, list[Any]]) -> int:
        where = ring.places(table.groups, len(table.nodes))
        peers = [copy for copy in table.copies if not copy.is_own]
        put(self.copies, ring.arrows(peers, where) | _strokes(peers))
        put(self.bands, ring.bands(table.groups, where))
        points = [where[p].at(1.0) for p in range(len(table.nodes))]
        own = {copy.shard: copy.state for copy in table.copies if copy.is_own}
        put(
            self.nodes,
            {
                "x": [x for x, _ in points],
                "y": [y for _, y in points],
                "marker": [MARKERS[node.health] for node in table.nodes],
                "colour": [
                    BLUE if own.get(p) == "whole" else COLOURS.get(own.get(p, "lost"), GREY)
                    for p in range(len(table.nodes))
                ],
                "touches": _touched(peers, len(table.nodes)),
                "cells": [[] for _ in table.nodes],
                **asked,
            },
        )
        put(self.labels, _labels(table, where))
        names = [shown(node.name, longest=14) for node in table.standbys[:STANDBYS]]
        if len(table.standbys) > STANDBYS:
            names.append(f"and {len(table.standbys) - STANDBYS} more")
        left = -0.62 * (len(names) - 1) / 2
        put(
            self.standbys,
            {
                "x": [left + 0.62 * i for i in range(len(names))],
                "y": [-1.52] * len(names),
                "label_y": [-1.6] * len(names),
                "text": names,
            },
        )
        return 0

    def _draw_many(self, table: ReplicaTable, asked: dict[str, list[Any]]) -> int:
        left_out = self._draw_crowd(table)
        count = len(table.nodes)
        touched: list[list[int]] = [[] for _ in range(count)]
        for number, position in enumerate(self.cells.data["position"]):
            touched[position].append(number)
        put(
            self.nodes,
            {
                "x": [0.0] * count,
                "y": [0.0] * count,
                "marker": ["circle"] * count,
                "colour": [BLUE] * count,
                "touches": [[] for _ in table.nodes],
                "cells": touched,
                **asked,
            },
        )
        return left_out


def _touched(copies: Sequence[CopyRow], nodes: int) -> list[list[int]]:
    """For each position the copies that lie on it."""
    touched: list[list[int]] = [[] for _ in range(nodes)]
    for number, copy in enumerate(copies):
        touched[copy.position].append(number)
    return touched


def _strokes(copies: Sequence[CopyRow]) -> dict[str, list[Any]]:
    """How the arrows look, and what is said about them."""
    return {
        "dash": [DASHES[copy.state] for copy in copies],
        "colour": [COLOURS[copy.state] for copy in copies],
        "head": [None if copy.is_writing else COLOURS[copy.state] for copy in copies],
        "shard": [copy.shard for copy in copies],
        "holder": [shown(copy.holder) for copy in copies],
        "state": [words_of(copy) for copy in copies],
        "version": [version_of(copy.version) for copy in copies],
    }


def _labels(table: ReplicaTable, where: dict[int, ring.RingPlace]) -> dict[str, list[Any]]:
    """Names around the ring, growing away from it."""
    count = len(table.nodes)
    longest = 16 if count <= ring.CLOSE else 11
    at = [ring.label(where[node.position or 0], count) for node in table.nodes]
    return {
        "x": [one.x for one in at],
        "y": [one.y for one in at],
        "text": [
            shown(node.name, longest=longest) + (" (root)" if node.is_root else "")
            for node in table.nodes
        ],
        "align": [one.align for one in at],
        "baseline": [one.baseline for one in at],
        "angle": [one.angle for one in at],
    }
