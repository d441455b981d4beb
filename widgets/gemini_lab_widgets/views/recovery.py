"""Recoveries as timelines: this run's, earlier ones', and the persistent baseline on one axis."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from bokeh.models import CustomJS, Div, FactorRange

from gemini_lab.report.reducers.course import ENDED
from gemini_lab.report.tables import STEPS, RecoveryRow, RecoveryTable, Tables
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import STEPS as COLOURS
from gemini_lab_widgets.pictures.palette import shown
from gemini_lab_widgets.views.view import (
    BAR,
    CSS,
    OUTPUT_CSS,
    ROOM,
    LegendKey,
    View,
    above,
    hover,
    output_html,
    put,
    source,
    stretch,
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
"""What tells steps of one colour apart, and the progress that is lost from the time that passes."""


FIT: Final = """
    const width = cb_obj.outer_width
    if (width > 0) glyph.text = { field: width < 440 ? "brief" : "text" }
"""
"""A narrow figure has no room for long texts."""


class RecoveryView(View):
    """A bar for each recovery; its steps have the names of the paper's Fig. 14."""

    title: ClassVar[str] = "Recoveries"

    def _build(self) -> Sequence[Any]:
        columns = "row start end step took cause origin alpha"
        self.steps = {step: source(columns) for step in STEPS}
        self.ends = source("row x text brief")
        self.plot = self._growing(200, y=FactorRange(factors=[], **ROOM))
        self.plot.xaxis.axis_label = "seconds since the failure"
        self.plot.ygrid.visible = False
        self._bars = {
            step: self.plot.hbar(
                y="row",
                left="start",
                right="end",
                height=BAR,
                source=self.steps[step],
                fill_alpha="alpha",
                hatch_pattern=HATCHES.get(step),
                hatch_scale=6,
            )
            for step in STEPS
        }
        for step, bar in self._bars.items():
            colour = COLOURS[step]
            self._follow(bar.glyph, fill_color=colour, line_color=colour, hatch_color="paper")
        self.plot.yaxis.visible = False
        place = {"x_offset": 1, "y_offset": -3, "text_baseline": "bottom"}
        texts = self._text(self.plot, "x", "row", self.ends, colour="ink", **place)
        fit = CustomJS(args={"glyph": texts.glyph}, code=FIT)
        self.plot.js_on_change("outer_width", fit)
        hover(
            self.plot,
            list(self._bars.values()),
            ("recovery", "@row"),
            ("cause", "@cause"),
            ("step", "@step"),
            ("took", "@took"),
            ("origin", "@origin"),
        )
        self.errors = Div(
            disable_math=True, stylesheets=[CSS, OUTPUT_CSS], sizing_mode="stretch_width"
        )
        return (self._legend(), self.plot, self.errors)

    def update(self, tables: Tables) -> None:
        """Draw a snapshot's recoveries."""
        table = tables.recoveries
        names = [_name(row) for row in table.rows]
        for step, data in self.steps.items():
            put(data, _columns(table.rows, names, step))
        used = {one.step for row in table.rows for one in row.steps}
        self._tell(
            LegendKey(label=label, colour=COLOURS[step], hatch=HATCHES.get(step, ""))
            for step, label in STEPS.items()
            if step in used
        )
        ends = [max((step.end_s for step in row.steps), default=0.0) for row in table.rows]
        is_over = tables.status.phase in ENDED
        told = [_above(row, is_over=is_over) for row in table.rows]
        brief = [_above(row, is_over=is_over, is_brief=True) for row in table.rows]
        put(self.ends, {"row": above(names), "x": [0.0] * len(names), "text": told, "brief": brief})
        if self.plot.y_range.factors != names[::-1]:
            self.plot.y_range.factors = names[::-1]
            self.plot.min_height = 72 + 52 * max(1, len(names))
        self._show(names, self.plot)
        stretch(self.plot.x_range, 0.0, 1.02 * max(ends, default=1.0) or 1.0)
        text = "".join(
            output_html(f"{row.label}: {row.error}", row.output) for row in _raised(table)[::-1]
        )
        if self.errors.text != text:
            self.errors.text = text
        self.errors.visible = bool(text)
        self._say(describe(table, is_over=is_over), notes=table.notes)


def _raised(table: RecoveryTable) -> list[RecoveryRow]:
    """The newest recoveries from a worker that ended by itself, in order of time."""
    return [row for row in table.rows if row.error and row.output][-ERRORS:]


def _name(row: RecoveryRow) -> str:
    return f"{shown(row.label, longest=34)} ({row.origin.removesuffix(' here')})"


def _columns(rows: Sequence[RecoveryRow], names: Sequence[str], step: str) -> dict[str, list[Any]]:
    """All bars of one step."""
    found = [
        (row, name, one)
        for row, name in zip(rows, names, strict=True)
        for one in row.steps
        if one.step == step
    ]
    return {
        "row": [name for _, name, _ in found],
        "start": [one.start_s for _, _, one in found],
        "end": [one.end_s for _, _, one in found],
        "step": [one.label for _, _, one in found],
        "took": [format_seconds(one.end_s - one.start_s) for _, _, one in found],
        "cause": [shown(row.cause, longest=90) for row, _, _ in found],
        "origin": [row.origin for row, _, _ in found],
        "alpha": [0.45 if row.origin == "model" else 1.0 for row, _, _ in found],
    }


def _lasts(*, is_over: bool) -> str:
    """What became of a recovery whose end nobody told: where the run is over, it never ended."""
    return "came to nothing" if is_over else "under way"


def _above(row: RecoveryRow, *, is_over: bool, is_brief: bool = False) -> str:
    """What stands above a bar; briefly, where there is little room."""
    origin = "" if row.origin == "measured here" else f" ({row.origin})"
    name = shown(row.label, longest=20 if is_brief else 34)
    if row.down_s is None:
        return f"{name}: {_lasts(is_over=is_over)}{origin}"
    is_untold = is_brief or row.wasted_s is None
    wasted = "" if is_untold else f", wasted {format_seconds(row.wasted_s or 0.0)}"
    return f"{name}: {format_seconds(row.down_s)} down{wasted}{origin}"


def describe(table: RecoveryTable, *, is_over: bool = False) -> str:
    """The timelines in words."""
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
