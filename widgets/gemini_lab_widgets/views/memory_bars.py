"""CPU memory for checkpoints on each node: what is whole, what is being written."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from bokeh.models import CustomJS, FactorRange

from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.replica_map import MemoryRow, MemoryTable
from gemini_lab.units import format_bytes
from gemini_lab_widgets.pictures.palette import BLUE, ORANGE, RED, SKY, shown
from gemini_lab_widgets.views.view import LegendKey, View, hover, put, source, stretch

MOST: Final = 24
"""Bars, at most; nodes with the same numbers share one where there are more."""
FEW: Final = 8
ROOM: Final = 1.6
"""The axis is as many times as long as the longest bar, so that its size can stand beside it."""
FIT: Final = """
    // On a phone long names may leave too little; the axis and the text above stay.
    taken.visible = cb_obj.inner_width * (1 - 1 / ROOM) > 84
""".replace("ROOM", str(ROOM))
UNITS: Final = (("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40))
PARTS: Final = (
    ("own shard, whole", "own_bytes", BLUE, None),
    ("peers' shards, whole", "peers_bytes", SKY, None),
    ("newer version, being written", "writing_bytes", ORANGE, "right_diagonal_line"),
    ("other buffers: free, or older", "free_bytes", None, None),
)
"""Label, column, colour and hatch of each part of a bar."""


class MemoryView(View):
    """A stacked bar for each node; only what is whole counts for a recovery."""

    title: ClassVar[str] = "Memory for checkpoints"

    def _build(self) -> Sequence[Any]:
        parts = [name for _, name, _, _ in PARTS]
        columns = [f"{name} {name}_from {name}_to {name}_text" for name in parts]
        self.bars = source(" ".join(["node taken text", *columns]))
        self.limits = source("x")
        self.plot = self._figure(height=200, y=FactorRange(factors=[]))
        self.plot.ygrid.visible = False
        drawn = []
        for _, name, colour, hatch in PARTS:
            bar = self.plot.hbar(
                y="node",
                left=f"{name}_from",
                right=f"{name}_to",
                height=0.62,
                source=self.bars,
                fill_color=None,
                hatch_pattern=hatch,
                hatch_scale=8,
                line_width=1,
            )
            self._follow(bar.glyph, line_color="rule", hatch_color="paper")
            if colour:
                self._follow(bar.glyph, fill_color=colour)
            drawn.append(bar)
        limit = self.plot.ray(
            x="x",
            y=0,
            length=0,
            angle=1.5708,
            source=self.limits,
            line_width=3,
            line_dash="dashed",
        )
        self._follow(limit.glyph, line_color=RED)
        beside = {"x_offset": 8, "text_baseline": "middle"}
        taken = self._text(self.plot, "taken", "node", self.bars, colour="dim", **beside)
        self.plot.js_on_change("inner_width", CustomJS(args={"taken": taken}, code=FIT))
        hover(
            self.plot,
            drawn,
            ("node", "@node"),
            *((label, f"@{name}_text") for label, name, _, _ in PARTS),
        )
        return (self._legend(), self.plot)

    def update(self, tables: Tables) -> None:
        table = tables.memory
        rows, left_out = fold(table)
        most = max((row.taken_bytes for row in rows), default=0)
        unit, scale = _unit(max(most, table.limit_bytes or 0))
        names = _distinct([row.node for row in rows])
        columns: dict[str, list[Any]] = {
            "node": names,
            "taken": [row.taken_bytes / scale for row in rows],
            "text": [format_bytes(row.taken_bytes) for row in rows],
        }
        ends = [0.0] * len(rows)
        for _, name, _, _ in PARTS:
            values = [getattr(row, name) for row in rows]
            columns[name] = values
            columns[f"{name}_from"] = list(ends)
            ends = [end + value / scale for end, value in zip(ends, values, strict=True)]
            columns[f"{name}_to"] = list(ends)
            columns[f"{name}_text"] = [format_bytes(value) for value in values]
        put(self.bars, columns)
        put(self.limits, {"x": [] if table.limit_bytes is None else [table.limit_bytes / scale]})
        if self.plot.y_range.factors != names[::-1]:
            self.plot.y_range.factors = names[::-1]
            self.plot.min_height = 64 + (34 if len(names) <= FEW else 24) * max(2, len(names))
        stretch(self.plot.x_range, 0.0, ROOM * max(most, table.limit_bytes or 0, 1) / scale)
        self.plot.xaxis.axis_label = unit
        self._show(rows, self.plot)
        self._tell(
            LegendKey(label=label, colour=colour or "", hatch=hatch or "")
            for label, _, colour, hatch in PARTS
            if rows
        )
        notes = list(table.notes)
        if left_out:
            notes.append(f"{left_out} nodes that use less are not drawn")
        self._say(describe(table), notes=notes)


def describe(table: MemoryTable) -> str:
    """Return the bars in a sentence."""
    if not table.rows:
        return "No sizes are known yet."
    taken = sum(row.taken_bytes for row in table.rows)
    whole = sum(row.own_bytes + row.peers_bytes for row in table.rows)
    writing = sum(row.writing_bytes for row in table.rows)
    now = f"{format_bytes(writing)} being written" if writing else "nothing being written now"
    return (
        f"{len(table.rows):,} nodes take {format_bytes(taken)} in all: {format_bytes(whole)} hold "
        f"whole shards, {now}."
    )


def fold(table: MemoryTable) -> tuple[list[MemoryRow], int]:
    """Return at most `MOST` bars, one for nodes that are alike, and how many are left out."""
    if len(table.rows) <= MOST:
        return list(table.rows), 0
    alike = Counter(replace(row, node="") for row in table.rows)
    first: dict[MemoryRow, str] = {}
    for row in table.rows:
        first.setdefault(replace(row, node=""), row.node)
    largest = sorted(alike, key=lambda row: -row.taken_bytes)
    rows = []
    for row in largest[:MOST]:
        others = f" and {alike[row] - 1} alike" if alike[row] > 1 else ""
        rows.append(replace(row, node=shown(first[row], longest=24) + others))
    return rows, sum(alike[row] for row in largest[MOST:])


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names for an axis, which may have none twice."""
    seen: Counter[str] = Counter()
    result = []
    for name in map(shown, names):
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


def _unit(size_bytes: int) -> tuple[str, int]:
    """Return the unit in which a size is a number of at most four digits."""
    return next((unit for unit in UNITS if size_bytes < 1024 * unit[1]), UNITS[-1])
