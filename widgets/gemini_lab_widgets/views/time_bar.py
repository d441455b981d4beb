"""Every second of the run explained, as one bar."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from bokeh.models import Div

from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.headline import percent
from gemini_lab.report.tables.time_breakdown import FAILURES, Part, SpentRow, TimeShares
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import FELT, FONT, GREEN, LIGHT, TRAINING, css, esc, on
from gemini_lab_widgets.pictures.palette import STEPS as COLOURS
from gemini_lab_widgets.views.view import View, hatched

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
    "planned": (COLOURS["reserve"], "cross"),
    "first_start": (GREEN, "cross"),
    "other": (LIGHT.paper, ""),
}
"""Colour and hatch of each part: those of the recoveries' steps where it is one."""
LABELLED: Final = 0.3
"""A part with this share of the bar has room for its label, on a phone too."""
CSS: Final = """
:host { font-family: FONT; color: var(--gl-ink); font-size: 14px; }
.bk-clearfix { display: block; width: 100%; container-type: inline-size; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 600; color: var(--gl-dim); font-size: 13px; }
td, th { padding: 2px 14px 2px 0; vertical-align: baseline; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.how { color: var(--gl-dim); font-size: 13px; width: 99%; }
i { display: inline-block; width: 16px; height: 11px; border: 1px solid var(--gl-rule);
  border-radius: 2px; margin-right: 8px; }
.part { white-space: nowrap; }
.bar { display: flex; height: 72px; margin: 6px 0 2px; border: 1px solid var(--gl-rule); }
.bar span { flex-basis: 0; min-width: 0; overflow: hidden; display: grid; place-items: center; }
.bar span + span { border-left: 1px solid var(--gl-paper); }
.bar b { font-weight: 400; padding: 2px 4px; text-align: center; }
.ends { display: flex; justify-content: space-between; font-size: 13px; margin-bottom: 6px; }
@container (max-width: 560px) { th.how { display: none; }
  td.how { display: block; width: auto; padding: 0 0 4px 20px; }
  tr { display: grid; grid-template-columns: 1fr auto auto; } td.how { grid-column: 1 / -1; } }
""".replace("FONT", FONT)


class SpentView(View):
    """A stacked bar, and beneath it each part with its seconds and where they come from."""

    title: ClassVar[str] = "Every second explained"

    def _build(self) -> Sequence[Any]:
        # Text, so that it follows a slider that moves: hatches on a canvas take 40 ms to draw.
        self.table = Div(disable_math=True, stylesheets=[CSS], sizing_mode="stretch_width")
        return (self.table,)

    def update(self, tables: Tables) -> None:
        table = tables.spent
        self.table.visible = bool(table.rows)
        text = _bar(table) + _table(table)
        if self.table.text != text:
            self.table.text = text
        self._say(describe(table), brief=summary(table))


def _bar(table: TimeShares) -> str:
    """Return the parts end to end; the pointer finds what the table says of each."""
    parts = "".join(_part(row, table) for row in table.rows)
    ends = f"<span>0</span><span>{esc(format_seconds(table.wall_s))}</span>"
    return f"<div class=bar aria-hidden=true>{parts}</div><div class=ends>{ends}</div>"


def _part(row: SpentRow, table: TimeShares) -> str:
    colour, hatch = STYLES[row.part]
    share = percent(table.share(row.part))
    told = f"{row.label}: {format_seconds(row.seconds)}, {share} of the run; {row.source}"
    words = ""
    if row.seconds > LABELLED * table.wall_s:
        ink = "var(--gl-ink)" if colour == LIGHT.paper else css(on(colour))
        ground = f"color:{ink};background:{css(colour)}"  # over a hatch's lines nothing can be read
        words = f"<b style='{ground}'>{esc(row.label)} {esc(share)}</b>"
    look = (
        f"flex-grow:{row.seconds / (table.wall_s or 1.0):.6f};background:{hatched(colour, hatch)}"
    )
    return f"<span title='{esc(told)}' style='{look}'>{words}</span>"


def _table(table: TimeShares) -> str:
    head = (
        "<tr><th>part</th><th class=n>time</th><th class=n>share</th>"
        "<th class=how>where it comes from</th></tr>"
    )
    return f"<table>{head}{''.join(_line(row, table) for row in table.rows)}</table>"


def _line(row: SpentRow, table: TimeShares) -> str:
    patch = f"<i style='background:{hatched(*STYLES[row.part])}'></i>"
    took, share = format_seconds(row.seconds), percent(table.share(row.part))
    return (
        f"<tr><td class=part>{patch}{esc(row.label)}</td><td class=n>{esc(took)}</td>"
        f"<td class=n>{esc(share)}</td><td class=how>{esc(row.source)}</td></tr>"
    )


def summary(table: TimeShares) -> str:
    """Return the bar in one sentence."""
    if not table.rows:
        return ""
    groups = (
        ("training", table.share("training")),
        ("checkpoints", table.share("exposed")),
        ("recoveries", table.share(*FAILURES)),
        *([("planned moves", moved)] if (moved := table.share("planned")) else []),
        ("the first start", table.share("first_start")),
        ("other", table.share("other")),
    )
    shares = ", ".join(f"{name} {percent(share)}" for name, share in groups)
    return f"The run took {format_seconds(table.wall_s)}: {shares}."


def describe(table: TimeShares) -> str:
    """Return the bar in words."""
    if not table.rows:
        return "Nothing to explain yet: no run has started."
    parts = ", ".join(f"{row.label} {format_seconds(row.seconds)}" for row in table.rows)
    return f"{summary(table)} In parts: {parts}."
