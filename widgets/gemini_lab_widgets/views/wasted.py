"""Wasted time of a failure: measured, and by the paper's Eq. (1)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from bokeh.models import FactorRange

from gemini_lab.report.tables import Tables, WastedRow, WastedTable
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import BLUE, ORANGE, RED, YELLOW, shown
from gemini_lab_widgets.views.view import (
    BAR,
    ROOM,
    LegendKey,
    View,
    above,
    hover,
    put,
    source,
    stretch,
)

PARTS: Final = {
    "lost progress": (RED, "right_diagonal_line"),
    "t_ckpt": (ORANGE, None),
    "1/(2f)": (YELLOW, "dot"),
    "t_rtvl": (BLUE, None),
}
"""Colour and hatch of each part. Lost progress is what t_ckpt + 1/(2f) is the mean of."""


class WastedView(View):
    """A stacked bar for each: lost progress and retrieval, beside the parts of Eq. (1)."""

    title: ClassVar[str] = "Wasted time of a failure"

    def _build(self) -> Sequence[Any]:
        self.parts = {part: source("row start end took how alpha") for part in PARTS}
        self.ends = source("row x text")
        self.each = source("row x took")
        self.plot = self._growing(180, y=FactorRange(factors=[], **ROOM))
        self.plot.xaxis.axis_label = "seconds wasted by a failure"
        self.plot.ygrid.visible = False
        bars = [
            self.plot.hbar(
                y="row",
                left="start",
                right="end",
                height=BAR,
                source=self.parts[part],
                fill_alpha="alpha",
                hatch_pattern=hatch,
                hatch_scale=7,
            )
            for part, (_, hatch) in PARTS.items()
        ]
        for bar, (colour, _) in zip(bars, PARTS.values(), strict=True):
            self._follow(bar.glyph, fill_color=colour, line_color=colour, hatch_color="paper")
        dots = self.plot.scatter(
            "x",
            "row",
            marker="circle",
            size=9,
            source=self.each,
            line_width=1.5,
        )
        self._follow(dots.glyph, line_color="ink", fill_color="paper")
        self.plot.yaxis.visible = False
        place = {"x_offset": 1, "y_offset": -3, "text_baseline": "bottom"}
        self._text(self.plot, "x", "row", self.ends, colour="ink", **place)
        hover(self.plot, bars, ("", "@row"), ("this part", "@took"), ("from", "@how"))
        hover(self.plot, [dots], ("", "one failure"), ("wasted", "@took"))
        return (self._legend(), self.plot)

    def update(self, tables: Tables) -> None:
        """Draw a snapshot's wasted time."""
        table = tables.wasted
        names = [_name(row) for row in table.rows]
        for part, data in self.parts.items():
            put(data, _columns(table.rows, names, part))
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
        reach = [max([ends[0], *each]), *ends[1:]] if ends else []
        told = [f"{name}: {format_seconds(end)}" for name, end in zip(names, ends, strict=True)]
        put(self.ends, {"row": above(names), "x": [0.0] * len(names), "text": told})
        used = {part for row in table.rows for part, _ in row.parts}
        keys = [
            LegendKey(label=part, colour=colour, hatch=hatch or "")
            for part, (colour, hatch) in PARTS.items()
            if part in used
        ]
        dots = [LegendKey(label="each failure", colour="inherit", mark="○")] if each else []
        self._tell([*keys, *dots])
        if self.plot.y_range.factors != names[::-1]:
            self.plot.y_range.factors = names[::-1]
            self.plot.min_height = 72 + 52 * max(1, len(names))
        self._show(names, self.plot)
        stretch(self.plot.x_range, 0.0, 1.04 * max(reach, default=1.0) or 1.0)
        self._say(describe(table), notes=table.notes, brief=_brief(table))


def _name(row: WastedRow) -> str:
    mark = "" if row.origin != "model" else " (model)"
    return shown(row.label, longest=44) + mark


def _columns(rows: Sequence[WastedRow], names: Sequence[str], part: str) -> dict[str, list[Any]]:
    """All bars of one part."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("row", "start", "end", "took", "how", "alpha")
    }
    for row, name in zip(rows, names, strict=True):
        at_s = 0.0
        for label, seconds in row.parts:
            if label == part:
                alpha = 0.5 if row.origin == "model" else 1.0
                values = (name, at_s, at_s + seconds, format_seconds(seconds), row.how, alpha)
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
            at_s += seconds
    return columns


def _brief(table: WastedTable) -> str:
    """What the bars are, for those who see them."""
    if not table.rows:
        return ""
    hows = dict.fromkeys(f"{row.label}: {row.how}" for row in table.rows)
    return (
        "Eq. (1) of the paper: t_ckpt + 1/(2f) is the progress that a failure at any moment loses "
        f"on average, t_rtvl the time to fetch the newest whole version. Here, {'; '.join(hows)}."
    )


def describe(table: WastedTable) -> str:
    """The bars in words."""
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
