"""Every second of the run explained, as one bar."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar, Final

from bokeh.models import Div

from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.headline import percent
from gemini_lab.report.tables.spent import FAILURES, Part, SpentRow, SpentTable
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import FELT, FONT, GREEN, LIGHT, TRAINING, esc, on
from gemini_lab_widgets.pictures.palette import STEPS as COLOURS
from gemini_lab_widgets.views.view import View, hatched, hover, put, source, stretch

STYLES: Final[dict[Part, tuple[str, str]]] = {
    "training": (TRAINING, ""),
    "exposed": (FELT, "dot"),
    "redo": (COLOURS["redo"], "right_diagonal_line"),
    "detect": (COLOURS["detect"], ""),
    "fence": (COLOURS["fence"], "vertical_line"),
    "serialise": (COLOURS["serialise"], ""),
    "start": (COLOURS["start"], ""),
    "retrieve": (COLOURS["retrieve"], ""),
    "warm_up": (COLOURS["warm_up"], ""),
    "waiting": (COLOURS["reserve"], ""),
    "first_start": (GREEN, "cross"),
    "other": (LIGHT.paper, ""),
}
"""Colour and hatch of each part: those of the recoveries' steps where it is one."""
UNITS: Final = (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0), ("seconds", 1.0))
AT_LEAST: Final = 4
"""Of a unit, for it to be used."""
LABELLED: Final = 0.3
"""A part with this share of the bar has room for its label, on a phone too."""
CSS: Final = """
:host { font-family: FONT; color: var(--gl-ink); font-size: 14px; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 600; color: var(--gl-dim); font-size: 13px; }
td, th { padding: 2px 14px 2px 0; vertical-align: baseline; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.how { color: var(--gl-dim); font-size: 13px; width: 99%; }
i { display: inline-block; width: 16px; height: 11px; border: 1px solid var(--gl-rule);
  border-radius: 2px; margin-right: 8px; }
.part { white-space: nowrap; }
@media (max-width: 640px) { th.how { display: none; }
  td.how { display: block; width: auto; padding: 0 0 4px 20px; }
  tr { display: grid; grid-template-columns: 1fr auto auto; } td.how { grid-column: 1 / -1; } }
""".replace("FONT", FONT)


class SpentView(View):
    """A stacked bar, and beneath it each part with its seconds and where they come from."""

    title: ClassVar[str] = "Every second explained"

    def _build(self) -> Sequence[Any]:
        self.parts = source("start end label took share how colour hatch")
        self.labels = source("x ink ground text")
        self.plot = self._figure(height=118, y=(0, 1))
        self.plot.yaxis.visible = self.plot.ygrid.visible = False
        bars = self.plot.hbar(
            y=0.5,
            left="start",
            right="end",
            height=0.8,
            source=self.parts,
            fill_color=self._kind("colour"),
            hatch_pattern="hatch",
            hatch_scale=7,
            line_width=1,
        )
        self._follow(bars.glyph, line_color="paper", hatch_color="paper")
        style: dict[str, Any] = {
            "text_align": "center",
            "text_baseline": "middle",
            "text_color": self._kind("ink"),
            "background_fill_color": self._kind(
                "ground"
            ),  # over the lines of a hatch nothing can be read
            "background_fill_alpha": 1.0,
            "padding": 2,
        }
        self._text(self.plot, "x", 0.5, self.labels, **style)
        rows = (("", "@label"), ("took", "@took"), ("of the run", "@share"), ("from", "@how"))
        hover(self.plot, [bars], *rows)
        self.table = Div(disable_math=True, stylesheets=[CSS], sizing_mode="stretch_width")
        return (self.plot, self.table)

    def update(self, tables: Tables) -> None:
        table = tables.spent
        unit, unit_s = _unit(table.wall_s)
        self.plot.xaxis.axis_label = f"{unit}, by what they went into"
        ends = list(accumulate(row.seconds / unit_s for row in table.rows))
        starts = [0.0, *ends[:-1]][: len(ends)]
        put(self.parts, _columns(table, starts, ends))
        wide = [
            (start, end, row)
            for start, end, row in zip(starts, ends, table.rows, strict=True)
            if row.seconds > LABELLED * table.wall_s
        ]
        put(
            self.labels,
            {
                "x": [(start + end) / 2 for start, end, _ in wide],
                "ink": [on(STYLES[row.part][0]) for *_, row in wide],
                "ground": [STYLES[row.part][0] for *_, row in wide],
                "text": [f"{row.label} {percent(table.share(row.part))}" for _, _, row in wide],
            },
        )
        stretch(self.plot.x_range, 0.0, table.wall_s / unit_s or 1.0)
        self.plot.visible = self.table.visible = bool(table.rows)
        text = _table(table)
        if self.table.text != text:
            self.table.text = text
        self._say(describe(table), brief=summary(table))


def _unit(wall_s: float) -> tuple[str, float]:
    """Return the unit that gives an axis short numbers, and its seconds."""
    return next((one for one in UNITS if wall_s >= AT_LEAST * one[1]), UNITS[-1])


def _columns(
    table: SpentTable, starts: Sequence[float], ends: Sequence[float]
) -> dict[str, Sequence[Any]]:
    rows = table.rows
    return {
        "start": starts,
        "end": ends,
        "label": [row.label for row in rows],
        "took": [format_seconds(row.seconds) for row in rows],
        "share": [percent(table.share(row.part)) for row in rows],
        "how": [row.source for row in rows],
        "colour": [STYLES[row.part][0] for row in rows],
        "hatch": [STYLES[row.part][1] or "blank" for row in rows],
    }


def _table(table: SpentTable) -> str:
    head = (
        "<tr><th>part</th><th class=n>time</th><th class=n>share</th>"
        "<th class=how>where it comes from</th></tr>"
    )
    return f"<table>{head}{''.join(_line(row, table) for row in table.rows)}</table>"


def _line(row: SpentRow, table: SpentTable) -> str:
    patch = f"<i style='background:{hatched(*STYLES[row.part])}'></i>"
    took, share = format_seconds(row.seconds), percent(table.share(row.part))
    return (
        f"<tr><td class=part>{patch}{esc(row.label)}</td><td class=n>{esc(took)}</td>"
        f"<td class=n>{esc(share)}</td><td class=how>{esc(row.source)}</td></tr>"
    )


def summary(table: SpentTable) -> str:
    """Return the bar in one sentence."""
    if not table.rows:
        return ""
    groups = (
        ("training", table.share("training")),
        ("checkpoints", table.share("exposed")),
        ("failures", table.share(*FAILURES)),
        ("the first start", table.share("first_start")),
        ("other", table.share("other")),
    )
    shares = ", ".join(f"{name} {percent(share)}" for name, share in groups)
    return f"The run took {format_seconds(table.wall_s)}: {shares}."


def describe(table: SpentTable) -> str:
    """Return the bar in words."""
    if not table.rows:
        return "Nothing to explain yet: no run has started."
    parts = ", ".join(f"{row.label} {format_seconds(row.seconds)}" for row in table.rows)
    return f"{summary(table)} In parts: {parts}."
