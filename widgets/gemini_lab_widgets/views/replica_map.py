"""The replica map: the holders of each shard, and the consequences of a node's loss.

It is drawn as text, in SVG and HTML: a browser shows that within a few milliseconds, also at each
step of a slider, and no figure has to be measured.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import AutocompleteInput, CustomJS, Div, Select

from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.replica_map import CopyRow, CopyState, ReplicaTable
from gemini_lab.report.tables.status import NodeHealth, NodeRow
from gemini_lab_widgets import replica_layout as layout
from gemini_lab_widgets.pictures.palette import BLUE, GREY, ORANGE, RED, SKY, css, esc, on, shown
from gemini_lab_widgets.views import answers
from gemini_lab_widgets.views.view import CSS, INPUT, View, put, source

COLOURS: Final[dict[CopyState, str]] = {"whole": SKY, "missing": ORANGE, "lost": RED}
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

# -- the ring --------------------------------------------------------------------------------------

WIDE: Final = 580
TALL: Final = 490
RADIUS: Final = 145.0
MIDDLE: Final = (290.0, 226.0)
NODE: Final = 17.0
"""Half of a node's width, in pixels, if there is room."""
STANDBYS: Final = 5
LONG: Final = 12
"""Characters of a name that a phone has no room for beside the ring."""
SQUARE: Final = "M-15-15H15V15H-15Z"
MARKS: Final[dict[NodeHealth, str]] = {
    "recovering": "M0-20L18 13H-18Z",
    "failed": "M0-20L18 13H-18Z",
    "standby": SQUARE,
    "drained": "M0-20L20 0L0 20L-20 0Z",
    "left": "M0-20L20 0L0 20L-20 0Z",
    "lost": f"{SQUARE}M-15-15L15 15M15-15L-15 15",
}
"""Health by shape; all other nodes are circles."""
RING: Final = """
.bk-clearfix { display: block; width: 100%; container-type: inline-size; }
svg { display: block; width: 100%; height: auto; overflow: visible; font-size: 14px; }
text { fill: var(--gl-ink); }
.band { fill: none; stroke: var(--gl-pale); stroke-width: 46; }
.copy path { fill: none; stroke-width: 2.4; }
.copy .room { stroke: transparent; stroke-width: 12; }
.missing .line { stroke-dasharray: 6 4; }
.lost .line { stroke-dasharray: 2 4; }
.node { cursor: pointer; stroke: var(--gl-ink); stroke-width: 2; }
.node text { stroke: none; font-size: 13px; font-weight: 700; text-anchor: middle; }
.spare { fill: none; stroke: var(--gl-rule); stroke-width: 2; stroke-dasharray: 4 3; }
.dim { fill: var(--gl-dim); font-size: 13px; text-anchor: middle; }
@container (max-width: 400px) {
  .name, .dim { font-size: 18px; }
  .crowded .name, .crowded .dim { display: none; }
}
"""

# -- the columns of many nodes ---------------------------------------------------------------------

TALLEST: Final = 560
"""Pixels of the map that are seen at once; the rest is scrolled to."""
GROUP: Final = {"role": "group", "tabindex": "0"}
"""The columns are scrolled by keys, too."""
NUMBERED: Final = 1_000
"""Positions whose numbers fit a cell."""
ORDERS: Final = {"place": "by position", "worst": "worst first", "rack": "by rack"}
GRID: Final = """
.bk-clearfix { display: block; width: 100%; }
.map, .group { display: flex; flex-wrap: wrap; align-items: flex-end; gap: 9px 0; }
.map { column-gap: 14px; padding-top: 2px; }
.shard { background: var(--gl-pale); padding: 1px; min-width: 26px; box-sizing: border-box; }
:host(.worst) .group { order: var(--worst); }
:host(.rack) .map { column-gap: 0; margin-left: -14px; }
:host(.rack) .group { display: contents; }
:host(.rack) .shard { order: var(--rack); }
:host(.rack) .shard.first { margin-left: 14px; }
:host(.rack) .shard.first::before { content: attr(data-rack); display: block; font-size: 12px;
  color: var(--gl-dim); background: var(--gl-paper); padding-right: 6px; }
.shard i { display: block; width: 24px; height: 15px; margin: 1px auto 1px 0; cursor: pointer;
  font-size: 11px; font-style: normal; line-height: 15px; text-align: center;
  box-sizing: border-box; }
.shard i.root { outline: 2px solid var(--gl-ink); outline-offset: -2px; }
""" + "".join(
    f".shard i.{name} {{ background: {css(colour)}; color: {css(on(colour))}; }}\n"
    for name, colour in [("own", BLUE), *COLOURS.items()]
)

# -- what the page does ----------------------------------------------------------------------------

PICK: Final = """
    const [picked] = nodes.selected.indices
    const key = picked == null ? "" : nodes.data.key[picked]
    if (key === undefined) return
    details.text = key === "" ? nothing : nodes.data.html[picked]
    // A rule, as it stays when the map is drawn again.
    const rule = key === "" ? "" : `[data-node="${key}"] { stroke: EDGE; stroke-width: 6; }
        .copy:not([data-on="${key}"]), i:not([data-node="${key}"]) { opacity: .25; }`
    for (const map of maps) map.stylesheets = [map.stylesheets[0], rule]
    if (select.value !== key) select.value = key
""".replace("EDGE", css(ORANGE))
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
TAP: Final = """
    document.addEventListener("click", (event) => {
        const hit = event.composedPath().find((one) => one.dataset?.node !== undefined)
        if (!hit) return
        const place = nodes.data.key.indexOf(hit.dataset.node), now = nodes.selected.indices
        nodes.selected.indices = place < 0 || now[0] === place ? [] : [place]
    })
"""
"""Text has no events of Bokeh's: a click on a node comes from the page."""
FIND: Final = """
    const asked = cb_obj.value.trim().toLowerCase()
    const names = nodes.data.name.map((name) => name.toLowerCase())
    let place = names.indexOf(asked)
    if (place < 0 && asked) place = names.findIndex((name) => name.includes(asked))
    nodes.selected.indices = place < 0 ? [] : [place]
"""
NOTHING: Final = "<p>Tap a node, or name one, to see what would follow if it died.</p>"


class ReplicasView(View):
    """A ring of up to 32 nodes; of more nodes every copy with its holder's number.

    A tap, or a name that is typed or chosen, picks a node and shows what its loss would cost.
    """

    title: ClassVar[str] = "Who keeps whose replica"

    def _build(self) -> Sequence[Any]:
        self.nodes = source("name key html")
        self.ring, self.grid = (
            Div(disable_math=True, stylesheets=[CSS + sheet, ""]) for sheet in (RING, GRID)
        )
        self._figures.append(self.ring)
        self.ring.sizing_mode = "stretch_width"
        self.ring.styles = {"flex": "1 1 460px", "max-width": f"{WIDE}px", "min-width": "280px"}
        self.grid.sizing_mode, self.grid.css_classes = "stretch_width", ["place"]
        self.grid.styles = {"max-height": f"{TALLEST}px", "overflow-y": "auto"}
        self.order = Select(title="Order", options=list(ORDERS.items()), value="place", width=150)
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
        self._connect()
        asked = column(self.select, self.details)
        asked.styles = self.chances.styles = {"flex": "1 1 220px", "max-width": "420px"}
        side = row(asked, self.chances)
        side.styles = {"flex": "1 1 240px", "flex-wrap": "wrap", "gap": "8px 24px"}
        self.tools = row(self.find, self.order, sizing_mode="stretch_width")
        self.tools.styles = {"flex-wrap": "wrap"}
        self.both = row(self.ring, side, sizing_mode="stretch_width", visible=False)
        self.both.styles = {"flex-wrap": "wrap", "gap": "8px 16px", "margin-top": "12px"}
        return (self.tools, self.grid, self.both)

    def _connect(self) -> None:
        nodes = {"nodes": self.nodes}
        args = {
            "maps": [self.ring, self.grid],
            "select": self.select,
            "details": self.details,
            "nothing": NOTHING,
        }
        pick = CustomJS(args=nodes | args, code=PICK)
        self.nodes.selected.js_on_change("indices", pick)
        self.nodes.js_on_change("data", pick)
        self.select.js_on_change("value", CustomJS(args=nodes, code=PICK_NAME))
        self.find.js_on_change("value", CustomJS(args=nodes, code=FIND))
        reorder = CustomJS(args={"grid": self.grid}, code="grid.css_classes = [cb_obj.value]")
        self.order.js_on_change("value", reorder)

    def join(self, document: Document) -> None:
        """Listen to taps, and keep the chosen node in the address of the page."""
        keep, arrive, tap = (
            CustomJS(args={"nodes": self.nodes}, code=code) for code in (KEEP, ARRIVE, TAP)
        )
        self.nodes.selected.js_on_change("indices", keep)
        self.nodes.js_on_change("data", arrive)
        document.js_on_event("document_ready", arrive, tap)
        self.root.js_on_change("children", arrive, tap)

    def update(self, tables: Tables) -> None:
        table = tables.replicas
        is_round = len(table.nodes) <= layout.RING_NODES
        drawn, left_out = (ring_svg(table), 0) if is_round else columns_html(table)
        self.both.visible = bool(table.nodes)
        self.ring.visible = self.select.visible = is_round
        self.grid.visible = self.tools.visible = not is_round
        put(self.nodes, answers.questions(table, answers.when(tables.status)))
        notes = [f"{left_out} shards whose copies are all whole are not drawn"] if left_out else []
        words = answers.describe(table)
        self._say(words, notes=notes)
        has_racks = any(node.rack for node in table.nodes)
        names = [shown(node.name) for node in table.nodes]
        asked = [(str(place), name) for place, name in enumerate(names)] if table.what_if else []
        for model, name, new in (
            (self.ring if is_round else self.grid, "text", drawn),
            (self.grid, "html_attributes", GROUP | {"aria-label": f"{self.title}: {words}"}),
            (self.order, "options", [o for o in ORDERS.items() if has_racks or o[0] != "rack"]),
            (self.find, "completions", [] if is_round else names),
            (self.select, "options", [("", "no node"), *asked]),
            (self.chances, "text", answers.chances(table) + answers.key(is_round=is_round)),
        ):
            if getattr(model, name) != new:
                setattr(model, name, new)


def ring_svg(table: ReplicaTable) -> str:
    """Return the nodes in a ring, with bands behind groups and an arrow to each replica."""
    where = layout.ring_places(table.groups, len(table.nodes))
    standbys = [esc(shown(node.name, longest=14)) for node in table.standbys[:STANDBYS]]
    if len(table.standbys) > STANDBYS:
        standbys.append(f"and {len(table.standbys) - STANDBYS} more")
    longest = max((len(node.name) for node in (*table.nodes, *table.standbys)), default=0)
    is_crowded = len(where) > 8 or longest > LONG or len(standbys) > 3
    parts = [
        *(_band(first, last) for first, last in layout.ring_bands(table.groups, where)),
        *(_arrow(copy, where) for copy in table.copies if not copy.is_own),
        *_members(table, where),
        *(_spare(name, place, len(standbys)) for place, name in enumerate(standbys)),
    ]
    kind = "class=crowded " if is_crowded else ""
    return f'<svg {kind}viewBox="0 0 {WIDE} {TALL}" aria-hidden="true">{"".join(parts)}</svg>'


def _at(point: layout.Point) -> str:
    return f"{MIDDLE[0] + RADIUS * point[0]:.1f} {MIDDLE[1] - RADIUS * point[1]:.1f}"


def _band(first: float, last: float) -> str:
    ends = [_at((math.sin(angle), math.cos(angle))) for angle in (first, last)]
    is_long = int(last - first > math.pi)
    return f'<path class="band" d="M{ends[0]}A{RADIUS} {RADIUS} 0 {is_long} 1 {ends[1]}"/>'


def _arrow(copy: CopyRow, where: dict[int, layout.RingPlace]) -> str:
    arrow = layout.ring_arrow(where[copy.shard], where[copy.position])
    colour = css(COLOURS[copy.state])
    line = f"M{_at(arrow.tail)}Q{_at(arrow.bend)} {_at(arrow.head)}"
    towards = math.atan2(arrow.head[0] - arrow.bend[0], arrow.head[1] - arrow.bend[1])
    turned = f"translate({_at(arrow.head)}) rotate({math.degrees(towards):.0f})"
    inside = "var(--gl-paper)" if copy.is_writing else colour
    return (
        f'<g class="copy {copy.state}" data-on="{copy.position}" style="stroke:{colour}">'
        f'<title>{esc(_of_copy(copy, shown(copy.holder)))}</title><path class="room" d="{line}"/>'
        f'<path class="line" d="{line}"/>'
        f'<path d="M0 0L5 9H-5Z" transform="{turned}" style="fill:{inside}"/></g>'
    )


def _members(table: ReplicaTable, where: dict[int, layout.RingPlace]) -> Iterator[str]:
    """Yield each node with its number inside and its name beside it."""
    count = len(table.nodes)
    scale = min(1.0, max(0.5, 2.5 * RADIUS / max(1, count) / NODE))
    letters = 16 if count <= layout.CLOSE else 11
    own = {copy.shard: copy.state for copy in table.copies if copy.is_own}
    for number, node in enumerate(table.nodes):
        state = own.get(number, "lost")
        colour = BLUE if state == "whole" else COLOURS.get(state, GREY)
        path = MARKS.get(node.health)
        mark = f'<path d="{path}"/>' if path else f'<circle r="{NODE}"/>'
        yield (
            f'<g class="node" data-node="{number}" style="fill:{css(colour)}" '
            f'transform="translate({_at(where[number].at(1.0))}) scale({scale:.2f})">'
            f"<title>{esc(_of_node(node))}</title>{mark}"
            f'<text y="5" style="fill:{css(on(colour))}">{number}</text></g>'
        )
        at = layout.ring_label(where[number], count)
        anchor = {"left": "start", "center": "middle", "right": "end"}[at.align]
        down = {"top": 12, "middle": 5, "bottom": 0}[at.baseline]
        yield (
            f'<text class="name" text-anchor="{anchor}" transform="translate({_at((at.x, at.y))}) '
            f'rotate({-math.degrees(at.angle):.0f})" y="{down}">'
            f"{esc(shown(node.name, longest=letters))}{' (root)' if node.is_root else ''}</text>"
        )


def _of_node(node: NodeRow) -> str:
    root = ", the root agent" if node.is_root else ""
    return f"{answers.placed(node)}: {node.health}{root}"


def _spare(name: str, place: int, count: int) -> str:
    x, y = MIDDLE[0] + 90 * (place - (count - 1) / 2), MIDDLE[1] + 1.52 * RADIUS
    return (
        f'<rect class="spare" x="{x - 10:.0f}" y="{y - 10:.0f}" width="20" height="20"/>'
        f'<text class="dim" x="{x:.0f}" y="{y + 26:.0f}">{name}</text>'
    )


def _of_copy(copy: CopyRow, holder: str) -> str:
    """Return what the pointer shows of a copy."""
    kind = "the owner's copy" if copy.is_own else "a replica"
    state = "not there yet" if copy.state == "missing" else copy.state
    newer = ", a newer one is being written" if copy.is_writing else ""
    version = "no version" if copy.version is None else f"version {copy.version:,}"
    return f"shard {copy.shard}: {kind} on {holder}, {version}, {state}{newer}"


def columns_html(table: ReplicaTable) -> tuple[str, int]:
    """Return every copy, a column a shard, and how many shards are left out."""
    by_shard, left_out = layout.shown_shards(table)
    groups = layout.together(table, by_shard)
    worst = sorted(groups, key=lambda group: -max(layout.harmed(by_shard[one]) for one in group))
    # By length first, so that rack 2 comes before rack 10.
    racks = sorted({node.rack for node in table.nodes}, key=lambda name: (len(name), name))
    by_rack = [[shard for shard in by_shard if table.nodes[shard].rack == name] for name in racks]
    worst_at = {group[0]: place for place, group in enumerate(worst)}
    at = {shard: place for place, shard in enumerate(itertools.chain(*by_rack))}
    heads = {shards[0] for shards in by_rack if shards}
    parts = []
    for group in groups:
        parts.append(f'<div class="group" style="--worst:{worst_at[group[0]]}">')
        for shard in group:
            kind = "shard first" if shard in heads else "shard"
            rack = esc(shown(table.nodes[shard].rack, longest=24) or "no rack")
            cells = "".join(_cell(copy, table) for copy in by_shard[shard])
            parts.append(
                f'<div class="{kind}" data-rack="{rack}" style="--rack:{at[shard]}">{cells}</div>'
            )
        parts.append("</div>")
    return f'<div class="map">{"".join(parts)}</div>', left_out


def _cell(copy: CopyRow, table: ReplicaTable) -> str:
    node = table.nodes[copy.position]
    look = "own" if copy.is_own and copy.state == "whole" else copy.state
    number = copy.position if len(table.nodes) <= NUMBERED else ""
    return (
        f'<i class="{look}{" root" if node.is_root else ""}" data-node="{copy.position}" '
        f'title="{esc(_of_copy(copy, answers.placed(node)))}">{number}</i>'
    )
