"""The replica map: the holders of each shard, and the consequences of a node's loss."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from bokeh.core.properties import value
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import AutocompleteInput, CustomJS, Div, Select, TapTool

from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.replica_map import CopyRow, CopyState, ReplicaTable
from gemini_lab.report.tables.status import NodeHealth
from gemini_lab_widgets import replica_layout as layout
from gemini_lab_widgets.pictures.palette import (
    BLUE,
    GREY,
    LIGHT,
    MARK,
    ORANGE,
    RED,
    SKY,
    shown,
)
from gemini_lab_widgets.views import answers
from gemini_lab_widgets.views.view import CSS, INPUT, View, hover, put, source, stretch

WIDTH: Final = 580
HEIGHT: Final = 490
"""Of the ring, in pixels."""
STANDBYS: Final = 5
COLOURS: Final[dict[CopyState, str]] = {"whole": SKY, "missing": ORANGE, "lost": RED}
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
    // Next to a narrow ring of many nodes is no room for names; numbers and the list of nodes stay.
    const width = ring.outer_width, spares = standbys.data.x
    if (!(width > 0)) return
    const is_narrow = width < 400
    const has_names = !is_narrow || nodes.length <= 8
    names.visible = has_names
    names.glyph.text_font_size = is_narrow ? "11px" : "14px"
    standby_names.visible = !is_narrow || spares.length <= 3
    const least = has_names ? 2.2 : Math.max(1.35, 0.15 - Math.min(0, ...spares))
    const half = is_narrow ? least : 2
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


CELL_WIDTH: Final = 28
CELL_HEIGHT: Final = 17
COLUMNS: Final = (11, 23, 40)
"""What a phone, a card of half a page, and one of a large screen have room for."""
USUAL: Final = 23
TALLEST: Final = 560
"""Pixels of the map that are seen at once; the rest is scrolled to."""
PLANS: Final = [f"{order}_{columns}" for order in layout.ORDERS for columns in COLUMNS]
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


class ReplicasView(View):
    """A ring of up to 32 nodes; of more nodes every copy with its holder's number.

    A tap, or a name that is typed or chosen, picks a node and shows what its loss would cost.
    """

    title: ClassVar[str] = "Who keeps whose replica"

    def _build(self) -> Sequence[Any]:
        self.nodes = source(
            "x y marker colour name told position key html touches cells what_if lost comes_from"
        )
        self.labels = source("x y text align baseline angle")
        self.copies = source("x0 y0 x1 y1 cx cy angle dash colour head shard holder state version")
        self.bands = source("start end")
        self.standbys = source("x y text label_y")
        axes = " ".join(f"x_{plan} y_{plan}" for plan in PLANS)
        self.cells = source(
            "x y colour ink number width position shard holder tier state version what_if " + axes
        )
        self.plates = source("left right top bottom label")
        self.layouts = source("left right top bottom label plan")
        self.order = Select(
            title="Order", options=list(layout.ORDERS.items()), value="place", width=150
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
        self.select = Select(title="What if this node dies?", options=[("", "no node")], value="")
        self.select.max_width, self.select.sizing_mode = 320, "stretch_width"
        for one in (self.order, self.find, self.select):
            one.stylesheets = [INPUT]
        self.details, self.chances = (
            Div(disable_math=True, stylesheets=[DETAILS], sizing_mode="stretch_width") for _ in "ab"
        )
        self.details.text = NOTHING
        self.details.html_attributes = {"role": "status", "aria-live": "polite"}
        self.ring, self.grid = self._ring(), self._grid()
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
        self.root.js_on_change("children", arrive)

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
        """Draw the standbys; returns their names."""
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

    def _grid(self) -> Any:
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
        self.find.js_on_change("value", CustomJS(args={"nodes": self.nodes}, code=FIND))
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

    # -- drawing -------------------------------------------------------------------------------

    def update(self, tables: Tables) -> None:
        table = tables.replicas
        count = len(table.nodes)
        is_round = count <= layout.RING_NODES
        self.both.visible = bool(table.nodes)
        self.ring.visible = self.select.visible = is_round
        self.grid.visible = self.frame.visible = not is_round
        self.find.visible = self.order.visible = not is_round
        own = {copy.shard: copy.state for copy in table.copies if copy.is_own}
        nodes: dict[str, list[Any]] = {
            "x": [0.0] * count,
            "y": [0.0] * count,
            "marker": [MARKERS[node.health] for node in table.nodes],
            "colour": [
                BLUE if own.get(p) == "whole" else COLOURS.get(own.get(p, "lost"), GREY)
                for p in range(count)
            ],
            "touches": [[] for _ in table.nodes],
            "cells": [[] for _ in table.nodes],
            **answers.questions(table, answers.when(tables.status)),
        }
        left_out = 0
        if is_round:
            nodes |= self._draw_ring(table)
        else:
            left_out = self._draw_grid(table)
            nodes["cells"] = _by_position(self.cells.data["position"], count)
        put(self.nodes, nodes)
        notes = [f"{left_out} shards whose copies are all whole are not drawn"] if left_out else []
        self._say(answers.describe(table), notes=notes)
        names = [(str(n.position), shown(n.name)) for n in table.nodes] if table.what_if else []
        words = answers.chances(table) + answers.key(is_round=is_round)
        for model, name, new in (
            (self.select, "options", [("", "no node"), *names]),
            (self.chances, "text", words),
        ):
            if getattr(model, name) != new:
                setattr(model, name, new)

    def _draw_ring(self, table: ReplicaTable) -> dict[str, list[Any]]:
        """Draw bands, arrows, names and standbys; returns the columns of the nodes' places."""
        where = layout.ring_places(table.groups, len(table.nodes))
        peers = [copy for copy in table.copies if not copy.is_own]
        ends = [(copy.shard, copy.position) for copy in peers]
        put(self.copies, layout.ring_arrows(ends, where) | _strokes(peers))
        put(self.bands, layout.ring_bands(table.groups, where))
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
        points = [where[p].at(1.0) for p in range(len(table.nodes))]
        return {
            "x": [x for x, _ in points],
            "y": [y for _, y in points],
            "touches": _by_position([copy.position for copy in peers], len(table.nodes)),
        }

    def _draw_grid(self, table: ReplicaTable) -> int:
        """Draw every copy; returns how many shards are left out."""
        by_shard, left_out = layout.shown_shards(table)
        plans = {
            f"{order}_{columns}": layout.flow(by_shard, in_order, columns=columns)
            for order in layout.ORDERS
            for in_order in [layout.units_of(table, by_shard, order)]
            for columns in COLUMNS
        }
        # One row a copy, in order of shard, wherever a plan puts it.
        copies = [copy for kept in by_shard.values() for copy in kept]
        picked = f"{self.order.value}_{USUAL}"
        put(self.cells, _looks(copies, table) | _places(copies, plans, picked))
        bands = [(name, band) for name, plan in plans.items() for band in plan.bands]
        put(
            self.layouts,
            {
                "left": [band.left - 0.1 for _, band in bands],
                "right": [band.right + 0.1 for _, band in bands],
                "top": [band.top - 0.12 for _, band in bands],
                "bottom": [band.bottom + 0.12 for _, band in bands],
                "label": [shown(band.label, longest=24) for _, band in bands],
                "plan": [name for name, _ in bands],
            },
        )
        has_racks = any(node.rack for node in table.nodes)
        options = [one for one in layout.ORDERS.items() if has_racks or one[0] != "rack"]
        if self.order.options != options:
            self.order.options = options
        names = [shown(node.name) for node in table.nodes]
        if self.find.completions != names:
            self.find.completions = names
        return left_out


def _by_position(positions: Sequence[int], nodes: int) -> list[list[int]]:
    """Return for each position the rows that lie on it."""
    rows: list[list[int]] = [[] for _ in range(nodes)]
    for number, position in enumerate(positions):
        rows[position].append(number)
    return rows


def _told(copies: Sequence[CopyRow], holders: list[str]) -> dict[str, list[Any]]:
    """Return what the pointer shows of copies."""
    states = ["not there yet" if copy.state == "missing" else copy.state for copy in copies]
    return {
        "shard": [copy.shard for copy in copies],
        "holder": holders,
        "state": [
            f"{state}, a newer one is being written" if copy.is_writing else state
            for state, copy in zip(states, copies, strict=True)
        ],
        "version": ["none" if c.version is None else f"{c.version:,}" for c in copies],
    }


def _strokes(copies: Sequence[CopyRow]) -> dict[str, list[Any]]:
    return {
        "dash": [DASHES[copy.state] for copy in copies],
        "colour": [COLOURS[copy.state] for copy in copies],
        "head": [None if copy.is_writing else COLOURS[copy.state] for copy in copies],
        **_told(copies, [shown(copy.holder) for copy in copies]),
    }


def _labels(table: ReplicaTable, where: dict[int, layout.RingPlace]) -> dict[str, list[Any]]:
    """Return the names around the ring; they grow away from it."""
    count = len(table.nodes)
    longest = 16 if count <= layout.CLOSE else 11
    at = [layout.ring_label(where[node.position or 0], count) for node in table.nodes]
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


def _places(
    copies: Sequence[CopyRow], plans: dict[str, layout.MapPlan], picked: str
) -> dict[str, list[Any]]:
    """Return the place of each copy in each plan, and in the one that is picked."""
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
    """Return the colours and words of each copy."""
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
        **_told(copies, [answers.placed(table.nodes[c.position]) for c in copies]),
        "tier": ["own" if copy.is_own else "replica" for copy in copies],
        "what_if": [what.get(copy.position, "") for copy in copies],
    }
