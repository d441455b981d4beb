"""The views that are bars: recoveries on one axis, wasted time, and memory for checkpoints."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from bokeh.models import Div

from gemini_lab.report.recovery import STEPS
from gemini_lab.report.reducers.course import ENDED
from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.recoveries import RecoveryRow, RecoveryTable, WastedRow, WastedTable
from gemini_lab.report.tables.replica_map import MemoryRow, MemoryTable
from gemini_lab.units import format_bytes, format_seconds
from gemini_lab_widgets.pictures.film import film
from gemini_lab_widgets.pictures.palette import BLUE, ORANGE, RED, SKY, YELLOW, shown
from gemini_lab_widgets.pictures.palette import STEPS as COLOURS
from gemini_lab_widgets.views.view import (
    CSS,
    OUTPUT_CSS,
    BarPart,
    BarRow,
    BarsView,
    LegendKey,
    output_html,
)

ERRORS: Final = 2
"""Recoveries whose worker's last lines are shown."""
HATCHES: Final = {
    "fence": "vertical_line",
    "inventory": "dot",
    "plan": "horizontal_line",
    "rejoin": "cross",
    "redo": "right_diagonal_line",
}
"""The difference between steps of one colour, and between lost progress and time that passes."""


class RecoveryView(BarsView):
    """A bar for each recovery; its steps have the names of the paper's Fig. 14."""

    title: ClassVar[str] = "Recoveries"
    AXIS: ClassVar[str] = "seconds since training stopped"

    def _build(self) -> Sequence[Any]:
        self.errors = Div(
            disable_math=True, stylesheets=[CSS, OUTPUT_CSS], sizing_mode="stretch_width"
        )
        self.film = Div(disable_math=True, stylesheets=[CSS], sizing_mode="stretch_width")
        return (self._legend(), self._bars(), self.film, self.errors)

    def _play(self, table: RecoveryTable) -> None:
        """Show the newest recovery of this run that is over as a film."""
        newest = table.newest
        shown = film(newest).svg(has_colours=False) if newest and newest.members else ""
        if self.film.text != shown:  # else it would begin again at each update
            self.film.text = shown
        self.film.visible = bool(shown)

    def update(self, tables: Tables) -> None:
        table = tables.recoveries
        is_over = tables.status.phase in ENDED
        ends = [max((step.end_s for step in row.steps), default=0.0) for row in table.rows]
        rows = [
            BarRow(
                text=_above(row, is_over=is_over),
                brief=_above(row, is_over=is_over, is_brief=True),
                parts=_parts(row),
            )
            for row in table.rows
        ]
        self._draw_bars(rows, reach=1.02 * max(ends, default=1.0))
        used = {one.name for row in table.rows for one in row.steps}
        self._tell(
            LegendKey(label=label, colour=COLOURS[step], hatch=HATCHES.get(step, ""))
            for step, label in STEPS.items()
            if step in used
        )
        self._play(table)
        raised = [row for row in table.rows if row.error and row.output][-ERRORS:]
        text = "".join(output_html(f"{row.label}: {row.error}", row.output) for row in raised[::-1])
        if self.errors.text != text:
            self.errors.text = text
        self.errors.visible = bool(text)
        self._say(describe(table, is_over=is_over), notes=table.notes)


def _parts(row: RecoveryRow) -> list[BarPart]:
    of = f"{shown(row.cause, longest=90)}; {row.origin}"
    return [
        BarPart(
            start=one.start_s,
            end=one.end_s,
            colour=COLOURS[one.name],
            hatch=HATCHES.get(one.name, ""),
            alpha=0.45 if row.origin == "model" else 1.0,
            told=f"{one.label} {format_seconds(one.end_s - one.start_s)}; {of}",
        )
        for one in row.steps
        if one.name in COLOURS
    ]


def _took(row: RecoveryRow, *, is_over: bool) -> str:
    """Return how long a recovery took; if the run is over, one without an end has failed."""
    if row.down_s is None:
        return "failed" if is_over else "under way"
    return f"{format_seconds(row.down_s)} {'paused' if row.is_planned else 'down'}"


def _above(row: RecoveryRow, *, is_over: bool, is_brief: bool = False) -> str:
    """Return the label above a bar; briefly if there is little room."""
    origin = "" if row.origin == "measured here" else f" ({row.origin})"
    name = shown(row.label, longest=20 if is_brief else 34)
    if row.origin != "model" and (row.is_planned or not is_brief):
        name += f": {shown(row.cause, longest=40)}"
    return (
        f"{name}, {_took(row, is_over=is_over)}"
        + ("" if is_brief or row.wasted_s is None else f", wasted {format_seconds(row.wasted_s)}")
        + origin
    )


def describe(table: RecoveryTable, *, is_over: bool = False) -> str:
    """Return the timelines in words."""
    mine = [row for row in table.rows if row.origin != "model"]
    if not mine:
        return "No recovery."
    newest = [row for row in mine if row.label.startswith("recovery")][-1:] or mine[-1:]
    row = newest[0]
    parts = ", ".join(
        f"{step.label} {format_seconds(step.end_s - step.start_s)}" for step in row.steps
    )
    lost = row.lost_iterations
    times = f" ({parts})" if parts else ""
    redo = f"; {lost} iteration{'s' if lost != 1 else ''} done again" if lost else ""
    return (
        f"{table.total} in all. The newest, {row.label}: {row.cause}; {row.source}; "
        f"{_took(row, is_over=is_over)}{times}{redo}."
    )


WASTED_PARTS: Final = {
    "lost progress": (RED, "right_diagonal_line"),
    "t_ckpt": (ORANGE, ""),
    "1/(2f)": (YELLOW, "dot"),
    "t_rtvl": (BLUE, ""),
}
"""Colour and hatch of each part. Lost progress is what t_ckpt + 1/(2f) is the mean of."""


class WastedView(BarsView):
    """A stacked bar for each: lost progress and retrieval, beside the parts of Eq. (1)."""

    title: ClassVar[str] = "Wasted time of a failure"
    AXIS: ClassVar[str] = "seconds wasted by a failure"

    def _build(self) -> Sequence[Any]:
        return (self._legend(), self._bars())

    def update(self, tables: Tables) -> None:
        table = tables.wasted
        each = table.each_s if table.rows else ()
        dots = [(value, f"one failure: {format_seconds(value)} wasted") for value in each]
        rows = [
            BarRow(
                text=f"{_wasted_name(row)}: {format_seconds(row.total_s)}",
                parts=_wasted_parts(row),
                dots=() if number else dots,
            )
            for number, row in enumerate(table.rows)
        ]
        ends = [*(row.total_s for row in table.rows), *each]
        self._draw_bars(rows, reach=1.04 * max(ends, default=1.0))
        used = {part for row in table.rows for part, _ in row.parts}
        keys = [
            LegendKey(label=part, colour=colour, hatch=hatch)
            for part, (colour, hatch) in WASTED_PARTS.items()
            if part in used
        ]
        mark = [LegendKey(label="each failure", colour="inherit", mark="○")] if each else []
        self._tell([*keys, *mark])
        self._say(describe_wasted(table), notes=table.notes, brief=_brief(table))


def _wasted_name(row: WastedRow) -> str:
    mark = "" if row.origin != "model" else " (model)"
    return shown(row.label, longest=44) + mark


def _wasted_parts(row: WastedRow) -> list[BarPart]:
    ends = itertools.accumulate(seconds for _, seconds in row.parts)
    return [
        BarPart(
            start=end - seconds,
            end=end,
            colour=WASTED_PARTS[label][0],
            hatch=WASTED_PARTS[label][1],
            alpha=0.5 if row.origin == "model" else 1.0,
            told=f"{label} {format_seconds(seconds)}; {row.how}",
        )
        for (label, seconds), end in zip(row.parts, ends, strict=True)
    ]


def _brief(table: WastedTable) -> str:
    """Return what the bars are, for a reader who sees them."""
    if not table.rows:
        return ""
    hows = dict.fromkeys(f"{row.label}: {row.how}" for row in table.rows)
    return (
        "Eq. (1) of the paper: t_ckpt + 1/(2f) is the progress that a failure at any moment loses "
        f"on average, t_rtvl the time to fetch the newest whole version. Here, {'; '.join(hows)}."
    )


def describe_wasted(table: WastedTable) -> str:
    """Return the bars in words."""
    if not table.rows:
        return "No failure has wasted time."
    return (
        "; ".join(
            f"{_wasted_name(row)} {format_seconds(row.total_s)} ("
            + " + ".join(f"{label} {format_seconds(seconds)}" for label, seconds in row.parts)
            + f"; {row.how})"
            for row in table.rows
        )
        + "."
    )


MEMORY_BARS: Final = 24
"""Bars, at most; nodes with the same numbers share one where there are more."""
UNITS: Final = (("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40))
MEMORY_PARTS: Final = (
    ("own shard, whole", "own_bytes", BLUE, ""),
    ("peers' shards, whole", "peers_bytes", SKY, ""),
    ("newer version, being written", "writing_bytes", ORANGE, "right_diagonal_line"),
    ("other buffers: free, or older", "free_bytes", "", ""),
)
"""Label, column, colour and hatch of each part of a bar."""


class MemoryView(BarsView):
    """A stacked bar for each node; only what is whole counts for a recovery."""

    title: ClassVar[str] = "Memory for checkpoints"

    def _build(self) -> Sequence[Any]:
        return (self._legend(), self._bars())

    def update(self, tables: Tables) -> None:
        table = tables.memory
        rows, left_out = fold(table)
        most = max((row.taken_bytes for row in rows), default=0)
        limit = table.limit_bytes
        unit, scale = _unit(max(most, limit or 0))
        self._draw_bars(
            [
                BarRow(
                    text=f"{shown(row.node)}: {format_bytes(row.taken_bytes)}",
                    parts=_memory_parts(row, scale),
                )
                for row in rows
            ],
            reach=1.04 * max(most, limit or 0, 1) / scale,
            unit=unit,
            limit=None if limit is None else limit / scale,
        )
        self._tell(
            LegendKey(label=label, colour=colour, hatch=hatch)
            for label, _, colour, hatch in MEMORY_PARTS
            if rows
        )
        notes = list(table.notes)
        if left_out:
            notes.append(f"{left_out} nodes that use less are not drawn")
        self._say(describe_memory(table), notes=notes)


def describe_memory(table: MemoryTable) -> str:
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
    """Return at most `MEMORY_BARS` bars, one for nodes that are alike, and how many are left."""
    if len(table.rows) <= MEMORY_BARS:
        return list(table.rows), 0
    alike = Counter(replace(row, node="") for row in table.rows)
    first: dict[MemoryRow, str] = {}
    for row in table.rows:
        first.setdefault(replace(row, node=""), row.node)
    largest = sorted(alike, key=lambda row: -row.taken_bytes)
    rows = []
    for row in largest[:MEMORY_BARS]:
        others = f" and {alike[row] - 1} alike" if alike[row] > 1 else ""
        rows.append(replace(row, node=shown(first[row], longest=24) + others))
    return rows, sum(alike[row] for row in largest[MEMORY_BARS:])


def _memory_parts(row: MemoryRow, scale: int) -> list[BarPart]:
    parts, end = [], 0.0
    for label, name, colour, hatch in MEMORY_PARTS:
        size_bytes = getattr(row, name)
        if size_bytes:
            told = f"{label}: {format_bytes(size_bytes)}"
            start, end = end, end + size_bytes / scale
            parts.append(BarPart(start=start, end=end, colour=colour, hatch=hatch, told=told))
    return parts


def _unit(size_bytes: int) -> tuple[str, int]:
    """Return the unit in which a size is a number of at most four digits."""
    return next((unit for unit in UNITS if size_bytes < 1024 * unit[1]), UNITS[-1])
