"""Recoveries as timelines: this run's, earlier ones', and the persistent baseline on one axis."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from bokeh.models import Div

from gemini_lab.report.recovery import STEPS
from gemini_lab.report.reducers.course import ENDED
from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.recoveries import RecoveryRow, RecoveryTable
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import STEPS as COLOURS
from gemini_lab_widgets.pictures.palette import shown
from gemini_lab_widgets.views.view import CSS, OUTPUT_CSS, BarsView, LegendKey, output_html

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
    AXIS: ClassVar[str] = "seconds since the failure"
    ROW_COLUMNS: ClassVar[dict[str, str]] = {
        "recovery": "@row",
        "cause": "@cause",
        "step": "@step",
        "took": "@took",
        "origin": "@origin",
    }

    def _build(self) -> Sequence[Any]:
        self.errors = Div(
            disable_math=True, stylesheets=[CSS, OUTPUT_CSS], sizing_mode="stretch_width"
        )
        return (self._legend(), self._bars(), self.errors)

    def update(self, tables: Tables) -> None:
        table = tables.recoveries
        is_over = tables.status.phase in ENDED
        ends = [max((step.end_s for step in row.steps), default=0.0) for row in table.rows]
        self._draw_bars(
            [_name(row) for row in table.rows],
            [part for row in table.rows for part in _parts(row)],
            texts=[_above(row, is_over=is_over) for row in table.rows],
            briefs=[_above(row, is_over=is_over, is_brief=True) for row in table.rows],
            reach=1.02 * max(ends, default=1.0),
        )
        used = {one.step for row in table.rows for one in row.steps}
        self._tell(
            LegendKey(label=label, colour=COLOURS[step], hatch=HATCHES.get(step, ""))
            for step, label in STEPS.items()
            if step in used
        )
        raised = [row for row in table.rows if row.error and row.output][-ERRORS:]
        text = "".join(output_html(f"{row.label}: {row.error}", row.output) for row in raised[::-1])
        if self.errors.text != text:
            self.errors.text = text
        self.errors.visible = bool(text)
        self._say(describe(table, is_over=is_over), notes=table.notes)


def _name(row: RecoveryRow) -> str:
    return f"{shown(row.label, longest=34)} ({row.origin.removesuffix(' here')})"


def _parts(row: RecoveryRow) -> Iterator[dict[str, Any]]:
    for one in row.steps:
        if one.step in COLOURS:
            yield {
                "row": _name(row),
                "start": one.start_s,
                "end": one.end_s,
                "colour": COLOURS[one.step],
                "hatch": HATCHES.get(one.step, "blank"),
                "alpha": 0.45 if row.origin == "model" else 1.0,
                "step": one.label,
                "took": format_seconds(one.end_s - one.start_s),
                "cause": shown(row.cause, longest=90),
                "origin": row.origin,
            }


def _lasts(*, is_over: bool) -> str:
    """Return what became of a recovery without an end: if the run is over, it never ended."""
    return "came to nothing" if is_over else "under way"


def _above(row: RecoveryRow, *, is_over: bool, is_brief: bool = False) -> str:
    """Return the label above a bar; briefly if there is little room."""
    origin = "" if row.origin == "measured here" else f" ({row.origin})"
    name = shown(row.label, longest=20 if is_brief else 34)
    if row.down_s is None:
        return f"{name}: {_lasts(is_over=is_over)}{origin}"
    is_untold = is_brief or row.wasted_s is None
    wasted = "" if is_untold else f", wasted {format_seconds(row.wasted_s or 0.0)}"
    return f"{name}: {format_seconds(row.down_s)} down{wasted}{origin}"


def describe(table: RecoveryTable, *, is_over: bool = False) -> str:
    """Return the timelines in words."""
    mine = [row for row in table.rows if row.origin != "model"]
    if not mine:
        return "No recovery yet."
    newest = [row for row in mine if row.label.startswith("recovery")][-1:] or mine[-1:]
    row = newest[0]
    lasted = _lasts(is_over=is_over)
    if row.down_s is not None:
        lasted = f"{format_seconds(row.down_s)} down"
    parts = ", ".join(
        f"{step.label} {format_seconds(step.end_s - step.start_s)}" for step in row.steps
    )
    lost = row.lost_iterations
    times = f" ({parts})" if parts else ""
    redo = f"; {lost} iteration{'s' if lost != 1 else ''} done again" if lost else ""
    return (
        f"{table.total} so far. The newest, {row.label}: {row.cause}; {row.source}; "
        f"{lasted}{times}{redo}."
    )
