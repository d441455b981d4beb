"""Wasted time of a failure: measured, and by the paper's Eq. (1)."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.recoveries import WastedRow, WastedTable
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import BLUE, ORANGE, RED, YELLOW, shown
from gemini_lab_widgets.views.view import BarsView, LegendKey, hover, put, source

PARTS: Final = {
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
    ROW_COLUMNS: ClassVar[dict[str, str]] = {"": "@row", "this part": "@took", "from": "@how"}

    def _build(self) -> Sequence[Any]:
        plot = self._bars()
        self.each = source("row x took")
        dots = plot.scatter("x", "row", marker="circle", size=9, source=self.each, line_width=1.5)
        self._follow(dots.glyph, line_color="ink", fill_color="paper")
        hover(plot, [dots], ("", "one failure"), ("wasted", "@took"))
        return (self._legend(), plot)

    def update(self, tables: Tables) -> None:
        table = tables.wasted
        names = [_name(row) for row in table.rows]
        each = table.each_s if names else ()
        put(
            self.each,
            {
                "row": names[:1] * len(each),
                "x": each,
                "took": [format_seconds(value) for value in each],
            },
        )
        ends = [row.total_s for row in table.rows]
        told = [f"{name}: {format_seconds(end)}" for name, end in zip(names, ends, strict=True)]
        self._draw_bars(
            names,
            [part for row in table.rows for part in _parts(row)],
            texts=told,
            briefs=told,
            reach=1.04 * max([*ends, *each], default=1.0),
        )
        used = {part for row in table.rows for part, _ in row.parts}
        keys = [
            LegendKey(label=part, colour=colour, hatch=hatch)
            for part, (colour, hatch) in PARTS.items()
            if part in used
        ]
        dots = [LegendKey(label="each failure", colour="inherit", mark="○")] if each else []
        self._tell([*keys, *dots])
        self._say(describe(table), notes=table.notes, brief=_brief(table))


def _name(row: WastedRow) -> str:
    mark = "" if row.origin != "model" else " (model)"
    return shown(row.label, longest=44) + mark


def _parts(row: WastedRow) -> Iterator[dict[str, Any]]:
    at_s = 0.0
    for label, seconds in row.parts:
        colour, hatch = PARTS[label]
        yield {
            "row": _name(row),
            "start": at_s,
            "end": at_s + seconds,
            "colour": colour,
            "hatch": hatch or "blank",
            "alpha": 0.5 if row.origin == "model" else 1.0,
            "took": format_seconds(seconds),
            "how": row.how,
        }
        at_s += seconds


def _brief(table: WastedTable) -> str:
    """Return what the bars are, for a reader who sees them."""
    if not table.rows:
        return ""
    hows = dict.fromkeys(f"{row.label}: {row.how}" for row in table.rows)
    return (
        "Eq. (1) of the paper: t_ckpt + 1/(2f) is the progress that a failure at any moment loses "
        f"on average, t_rtvl the time to fetch the newest whole version. Here, {'; '.join(hows)}."
    )


def describe(table: WastedTable) -> str:
    """Return the bars in words."""
    if not table.rows:
        return "Nothing to show yet."
    return (
        "; ".join(
            f"{_name(row)} {format_seconds(row.total_s)} ("
            + " + ".join(f"{label} {format_seconds(seconds)}" for label, seconds in row.parts)
            + f"; {row.how})"
            for row in table.rows
        )
        + "."
    )
