"""CPU memory for checkpoints on each node: what is whole, what is being written."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.replica_map import MemoryRow, MemoryTable
from gemini_lab.units import format_bytes
from gemini_lab_widgets.pictures.palette import BLUE, ORANGE, SKY, shown
from gemini_lab_widgets.views.view import BarPart, BarRow, BarsView, LegendKey

MOST: Final = 24
"""Bars, at most; nodes with the same numbers share one where there are more."""
UNITS: Final = (("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40))
PARTS: Final = (
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
                    parts=_parts(row, scale),
                )
                for row in rows
            ],
            reach=1.04 * max(most, limit or 0, 1) / scale,
            unit=unit,
            limit=None if limit is None else limit / scale,
        )
        self._tell(
            LegendKey(label=label, colour=colour, hatch=hatch)
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


def _parts(row: MemoryRow, scale: int) -> list[BarPart]:
    parts, end = [], 0.0
    for label, name, colour, hatch in PARTS:
        size_bytes = getattr(row, name)
        if size_bytes:
            told = f"{label}: {format_bytes(size_bytes)}"
            start, end = end, end + size_bytes / scale
            parts.append(BarPart(start=start, end=end, colour=colour, hatch=hatch, told=told))
    return parts


def _unit(size_bytes: int) -> tuple[str, int]:
    """Return the unit in which a size is a number of at most four digits."""
    return next((unit for unit in UNITS if size_bytes < 1024 * unit[1]), UNITS[-1])
