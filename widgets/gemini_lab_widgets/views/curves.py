"""Values that the script logged, such as its loss, with failures and earlier runs."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from bokeh.models import CustomJS, Div, Range1d, Select

from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.headline import said
from gemini_lab.report.tables.iterations import Curve, CurveTable, Match
from gemini_lab_widgets.pictures.palette import (
    BLUE,
    FONT,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    css,
    esc,
    shown,
)
from gemini_lab_widgets.views.view import (
    FAILURE_COLUMNS,
    INPUT,
    LegendKey,
    View,
    count_iterations,
    failure_columns,
    failures_in_words,
    hover,
    last_iteration,
    put,
    source,
    stretch,
)

OTHERS: Final = (ORANGE, GREY, PINK, GREEN, SKY)
"""Earlier runs are drawn in these, as bands: where both agree, the run's own line lies amid one."""
DRAWN: Final = "name colour is_own is_other"
"""Columns of a curve and of its end: two of them are how strongly it is drawn, as which."""
CSS: Final = f"""
:host {{ font-family: {FONT}; color: var(--gl-ink); }}
p {{ margin: 0 0 6px; padding: 6px 12px; font-size: 15px; background: var(--gl-pale);
  border-left: 5px solid {css(GREEN)}; border-radius: 6px; }}
p.differs {{ border-left-color: {css(RED)}; font-weight: 600; }}
p::before {{ content: "✓"; color: {css(GREEN)}; font-weight: 700; margin-right: 8px; }}
p.differs::before {{ content: "✕"; color: {css(RED)}; }}
"""
COPY: Final = """
    for (const [all, some] of pairs) {
        const is_chosen = (_, row) => all.data.name[row] === select.value
        const columns = Object.entries(all.data)
        const kept = columns.map(([one, values]) => [one, Array.from(values).filter(is_chosen)])
        some.setv({data: Object.fromEntries(kept)}, {sync: false})
    }
"""
LOOK: Final = """
    const {name, low, high} = spans.data
    const at = Array.from(name).indexOf(select.value)
    axis.axis_label = select.value
    if (at >= 0) range.setv({start: low[at], end: high[at]})
"""


class CurvesView(View):
    """A line for each run; which value is chosen in the browser, so a saved page can, too.

    What is drawn is copied there from what there is. (A filter in its place fails in the browser
    whenever a table becomes shorter.)
    """

    title: ClassVar[str] = "Loss"

    def _build(self) -> Sequence[Any]:
        self.lines, self.drawn_lines = (source(f"xs ys run {DRAWN}") for _ in "ab")
        self.ends, self.drawn_ends = (source(f"x y {DRAWN}") for _ in "ab")
        self.marks = source(FAILURE_COLUMNS)
        self.spans = source("name low high")
        self.verdict = Div(disable_math=True, stylesheets=[CSS], sizing_mode="stretch_width")
        self.select = Select(title="value", options=[], value="", width=180, visible=False)
        self.select.stylesheets = [INPUT]
        self.plot = self._drawn()
        pairs = [[self.lines, self.drawn_lines], [self.ends, self.drawn_ends]]
        copy = CustomJS(args={"select": self.select, "pairs": pairs}, code=COPY)
        axes = {"axis": self.plot.yaxis[0], "range": self.plot.y_range}
        look = CustomJS(args={"select": self.select, "spans": self.spans, **axes}, code=LOOK)
        self.select.js_on_change("value", copy, look)
        self.ends.js_on_change("data", copy)
        return (self.verdict, self.select, self._legend(), self.plot)

    def _drawn(self) -> Any:
        plot = self._figure(height=300)
        count_iterations(plot)
        plot.extra_y_ranges = {"share": Range1d(0, 1)}
        where = {"source": self.marks, "y_range_name": "share", "color": self._kind("colour")}
        line = {"line_dash": [5, 4], "line_width": 1.5, "alpha": "fade"}
        marks = [
            plot.segment(x0="x", x1="x", y0=0, y1=1, **line, **where),
            plot.scatter("x", 0.97, marker="inverted_triangle", size=13, **where),
        ]
        lines: dict[str, Any] = {"source": self.drawn_lines}
        ends: dict[str, Any] = {"source": self.drawn_ends, "size": 8}
        band = plot.multi_line(
            "xs",
            "ys",
            line_color=self._kind("colour"),
            line_width=8,
            line_alpha="is_other",
            **lines,
        )
        plot.scatter("x", "y", color=self._kind("colour"), alpha="is_other", **ends)
        edge = plot.multi_line("xs", "ys", line_width=4.5, line_alpha="is_own", **lines)
        own = plot.multi_line("xs", "ys", line_width=2, line_alpha="is_own", **lines)
        end = plot.scatter("x", "y", alpha="is_own", **ends)
        self._follow(edge.glyph, line_color="paper")  # the line stays visible on a band
        self._follow(own.glyph, line_color=BLUE)
        self._follow(end.glyph, fill_color=BLUE, line_color="paper")
        hover(
            plot,
            [band],
            ("run", "@run"),
            ("iteration", "$data_x{0}"),
            ("mean", "$data_y{0.0[000]}"),
        )
        hover(plot, marks, ("iteration", "@x"), ("then", "@text"))
        return plot

    def update(self, tables: Tables) -> None:
        table = tables.curves
        # Earlier runs first: what is drawn later lies above.
        found = [*(one for one in table.curves if one.run), *(c for c in table.curves if not c.run)]
        names = [shown(one.name) for one in table.curves if not one.run]
        self._choose(names)
        chosen = [one for one in found if shown(one.name) == self.select.value]
        for lines, ends, curves in (
            (self.drawn_lines, self.drawn_ends, chosen),
            (self.lines, self.ends, found),
        ):
            put(lines, _lines(curves, found))
            put(ends, _ends(curves, found))
        put(self.marks, failure_columns(table.marks))
        bounds = {
            name: _bounds([one for one in found if shown(one.name) == name]) for name in names
        }
        low, high = zip(*bounds.values(), strict=True) if bounds else ((), ())
        put(self.spans, {"name": list(bounds), "low": low, "high": high})
        stretch(self.plot.y_range, *bounds.get(self.select.value, (0.0, 1.0)))
        last = max((one.numbers[-1] for one in found if one.numbers), default=1)
        stretch(self.plot.x_range, 0.0, last_iteration(table.marks, last) * 1.02 + 0.5)
        self._show(names, self.plot)
        runs = {_run(one): _colour(one, found) for one in found}
        self._tell(LegendKey(label=run, colour=runs[run], mark="line") for run in runs)
        self._verdict(table.matches)
        self._say(describe(table), notes=table.notes, brief=_brief(table))

    def _choose(self, names: Sequence[str]) -> None:
        """Offer the names; the first is shown until the user chooses."""
        if self.select.options != list(names):
            self.select.options = list(names)
        if self.select.value not in names:
            self.select.value = names[0] if names else ""
        self.select.visible = len(names) > 1
        if self.plot.yaxis[0].axis_label != self.select.value:
            self.plot.yaxis[0].axis_label = self.select.value

    def _verdict(self, matches: Sequence[Match]) -> None:
        kinds = [("" if one.first is None else " class=differs", sentence(one)) for one in matches]
        text = "".join(f"<p{kind}>{esc(words)}</p>" for kind, words in kinds)
        if self.verdict.text != text:
            self.verdict.text = text
        self.verdict.visible = bool(text)


def _lines(curves: Sequence[Curve], found: Sequence[Curve]) -> dict[str, list[Any]]:
    return {
        "xs": [list(one.numbers) for one in curves],
        "ys": [list(one.means) for one in curves],
        "name": [shown(one.name) for one in curves],
        "run": [_run(one) for one in curves],
        "colour": [_colour(one, found) for one in curves],
        "is_own": [float(not one.run) for one in curves],
        "is_other": [float(bool(one.run)) for one in curves],
    }


def _ends(curves: Sequence[Curve], found: Sequence[Curve]) -> dict[str, list[Any]]:
    ends = [one for one in curves if one.numbers]
    return {
        "x": [one.numbers[-1] for one in ends],
        "y": [one.means[-1] for one in ends],
        "name": [shown(one.name) for one in ends],
        "colour": [_colour(one, found) for one in ends],
        "is_own": [float(not one.run) for one in ends],
        "is_other": [float(bool(one.run)) for one in ends],
    }


def _run(curve: Curve) -> str:
    return shown(curve.run) if curve.run else "this run"


def _colour(curve: Curve, found: Sequence[Curve]) -> str:
    if not curve.run:
        return BLUE
    runs = list(dict.fromkeys(one.run for one in found if one.run))
    return OTHERS[runs.index(curve.run) % len(OTHERS)]


def _bounds(found: Sequence[Curve]) -> tuple[float, float]:
    """Return the lower and upper edge for some curves, with a margin."""
    values = [mean for one in found for mean in one.means]
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    return low - margin, high + margin


def sentence(match: Match) -> str:
    """Return whether a value was the same in an earlier run, as a sentence."""
    words = said(match)
    return f"{words[0].upper()}{words[1:]}."


def _brief(table: CurveTable) -> str:
    """Return what is drawn, for a reader who sees it."""
    if not table.curves:
        return ""
    over = f", the mean over {table.ranks:,} ranks" if table.ranks > 1 else ""
    beside = len({one.run for one in table.curves if one.run})
    other = "; the wide band beneath it is the run that it is compared with" if beside else ""
    if beside > 1:
        other = f"; the wide bands beneath it are the {beside} runs that it is compared with"
    marked = f"; {failures_in_words(table.marks)} marked" if table.marks else ""
    return f"What the script logged in each iteration{over}{marked}{other}."


def describe(table: CurveTable) -> str:
    """Return the curves in words."""
    mine = [one for one in table.curves if not one.run and one.numbers]
    if not mine and table.is_simulated:
        return "A simulation computes times, not losses: no model was trained here."
    if not mine:
        return "Nothing logged yet; protected.log(loss=...) before the step brings it here."
    parts = [
        f"{one.name}: {one.means[0]:.4g} in iteration {one.numbers[0]:,}, "
        f"{one.means[-1]:.4g} in iteration {one.numbers[-1]:,}"
        for one in mine
    ]
    where = ", ".join(str(one.iteration) for one in table.marks[:12])
    failures = f"{failures_in_words(table.marks)}: in iterations {where}"
    verdicts = " ".join(sentence(one) for one in table.matches)
    return f"{'; '.join([*parts, *([failures] if table.marks else [])])}. {verdicts}".strip()
