"""Iteration times with checkpoints on their way and without, and where failures were."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from bokeh.layouts import row
from bokeh.models import FactorRange

from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.headline import percent
from gemini_lab.report.tables.iterations import IterationSeries, IterationTable, Overhead
from gemini_lab.units import format_seconds
from gemini_lab_widgets.pictures.palette import BLUE, GREY, ORANGE, shown
from gemini_lab_widgets.views.view import (
    FAILURE_COLUMNS,
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

COLOURS: Final = {"with": BLUE, "without": ORANGE, "first": GREY}
MARKERS: Final = {"with": "circle", "without": "triangle", "first": "diamond"}
SIGNS: Final = {"with": "●", "without": "▲", "first": "◆"}
LEGEND: Final = {
    "with": "a version was on its way",
    "without": "without checkpoints",
    "first": "first after a start",
}
OUTLIER: Final = 3.0
"""A point above so many medians is drawn at the upper edge."""
FEW_TICKS: Final = 4
"""In a figure of half a card: more run into one another."""
LABELS: Final = 3
"""Series of other runs that are shown, at most."""


class IterationsView(View):
    """Points with medians on the left, the medians with their intervals on the right."""

    title: ClassVar[str] = "Iteration time"

    def _build(self) -> Sequence[Any]:
        self.points = {kind: source("x y took name fill") for kind in COLOURS}
        self.marks = source(f"{FAILURE_COLUMNS} top")
        self.medians = source("name low high median colour marker text count")
        self.plot, self.side = self._every_one(), self._middles()
        both = row(self.plot, self.side, sizing_mode="stretch_width")
        both.styles = {"flex-wrap": "wrap"}  # `|=` would change a default, which is not sent
        self.plot.styles = self.side.styles = {"flex": "1 1 310px"}
        return (self._legend(), both)

    def _every_one(self) -> Any:
        plot = self._figure(height=320)
        plot.min_width = 310
        count_iterations(plot)
        plot.yaxis.axis_label = "seconds"
        plot.xaxis.ticker.desired_num_ticks = FEW_TICKS
        lines = plot.segment(
            x0="x",
            y0=0,
            x1="x",
            y1="top",
            source=self.marks,
            line_color=self._kind("colour"),
            line_alpha="fade",
            line_width=1.5,
            line_dash=[5, 4],
        )
        flags = plot.scatter(
            "x",
            "top",
            marker="inverted_triangle",
            size=13,
            source=self.marks,
            color=self._kind("colour"),
        )
        dots = [
            plot.scatter("x", "y", marker=MARKERS[kind], size=8, source=data, fill_alpha="fill")
            for kind, data in self.points.items()
        ]
        for kind, one in zip(self.points, dots, strict=True):
            self._follow(one.glyph, line_color=COLOURS[kind], fill_color=COLOURS[kind])
        hover(plot, dots, ("iteration", "@x"), ("kind", "@name"), ("took", "@took"))
        hover(plot, [lines, flags], ("iteration", "@x"), ("then", "@text"))
        return plot

    def _middles(self) -> Any:
        plot = self._figure(height=100, y=FactorRange(factors=[]))
        plot.min_width = 310
        plot.xaxis.axis_label = "median, 95 % (s)"
        plot.xaxis.ticker.desired_num_ticks = FEW_TICKS
        plot.ygrid.visible = False
        bars = plot.segment(
            x0="low",
            x1="high",
            y0="name",
            y1="name",
            source=self.medians,
            line_color=self._kind("colour"),
            line_width=5,
            line_alpha=0.55,
        )
        dots = plot.scatter(
            "median",
            "name",
            marker="marker",
            size=13,
            source=self.medians,
            color=self._kind("colour"),
        )
        over = {"y_offset": -12, "text_align": "center"}
        self._text(plot, "median", "name", self.medians, colour="ink", **over)
        said = (("kind", "@name"), ("median", "@text"), ("iterations", "@count"))
        hover(plot, [bars, dots], *said)
        return plot

    def update(self, tables: Tables) -> None:
        table = tables.iterations
        series = _chosen(table)
        top = _top(series)
        for kind, data in self.points.items():
            put(data, _points([one for one in series if one.kind == kind], top))
        self._tell(
            LegendKey(label=LEGEND[kind], colour=COLOURS[kind], mark=SIGNS[kind])
            for kind in COLOURS
            if any(one.kind == kind for one in series)
        )
        put(
            self.marks,
            {**failure_columns(table.marks), "top": [top * 0.985] * len(table.marks)},
        )
        self._medians([one for one in series if one.kind != "first"])
        numbers = [number for one in series for number in one.numbers]
        last = last_iteration(table.marks, max(numbers, default=1))
        stretch(self.plot.x_range, 0.0, last * 1.02 + 0.5)
        stretch(self.plot.y_range, 0.0, top)
        out = sum(value > top for one in series for value in one.durations_s)
        notes = list(table.notes)
        if out:
            points = "point lies" if out == 1 else "points lie"
            notes.append(f"{out} {points} above the upper edge, and at the edge in the figure")
        if any(one.count > len(one.numbers) for one in series):
            drawn, count = len(numbers), sum(one.count for one in series)
            notes.append(f"{drawn:,} of {count:,} iterations are drawn, the longest among them")
        self._show(numbers, self.plot)
        self._say(describe(table), notes=notes if numbers else ())

    def _medians(self, series: Sequence[IterationSeries]) -> None:
        known = [
            (one, one.median_s, one.low_s, one.high_s)
            for one in series
            if one.median_s is not None and one.low_s is not None and one.high_s is not None
        ]
        put(
            self.medians,
            {
                "name": [_stacked(one) for one, *_ in known],
                "median": [median_s for _, median_s, _, _ in known],
                "low": [low_s for *_, low_s, _ in known],
                "high": [high_s for *_, high_s in known],
                "colour": [COLOURS[one.kind] for one, *_ in known],
                "marker": [MARKERS[one.kind] for one, *_ in known],
                "text": [format_seconds(median_s) for _, median_s, _, _ in known],
                "count": [one.count for one, *_ in known],
            },
        )
        names = [_stacked(one) for one, *_ in known][::-1]
        if self.side.y_range.factors != names:
            self.side.y_range.factors = names
            self.side.height = 64 + 48 * max(1, len(names))
        low = min((low_s for *_, low_s, _ in known), default=0.0)
        high = max((high_s for *_, high_s in known), default=1.0)
        margin = max((high - low) * 0.35, high * 0.02)
        stretch(self.side.x_range, max(0.0, low - margin), high + margin)
        self.side.visible = bool(known)


def _chosen(table: IterationTable) -> list[IterationSeries]:
    return list(table.series[: 3 + LABELS])


def _name(series: IterationSeries) -> str:
    return shown(series.name, longest=30)


def _stacked(series: IterationSeries) -> str:
    run, _, kind = series.name.partition(": ")
    return f"{shown(run, longest=24)}\n{shown(kind, longest=30)}" if kind else _name(series)


def _top(series: Sequence[IterationSeries]) -> float:
    """Return the upper edge: all points, but for those that would press the others flat."""
    largest = max((value for one in series for value in one.durations_s), default=1.0)
    medians = [one.median_s for one in series if one.median_s is not None and one.kind != "first"]
    edge = OUTLIER * max(medians) if medians else largest
    return 1.12 * min(largest, edge) or 1.0


def _points(series: Sequence[IterationSeries], top: float) -> dict[str, list[Any]]:
    rows = [
        (one, number, value)
        for one in series
        for number, value in zip(one.numbers, one.durations_s, strict=True)
    ]
    return {
        "x": [number for _, number, _ in rows],
        "y": [min(value, top * 0.985) for _, _, value in rows],
        "took": [format_seconds(value) for _, _, value in rows],
        "name": [_name(one) for one, _, _ in rows],
        "fill": [0.0 if one.run else 0.75 for one, _, _ in rows],
    }


def _cost(cost: Overhead) -> str:
    """Return what checkpoints cost against iterations without, or the time waited for them."""
    if cost.low is None:
        share = percent(cost.share)
        return f"updates waited for checkpoints, {share} of the iterations' other time"
    between = f" (95 %: {cost.low:+.1%} to {cost.high:+.1%})"
    return f"checkpoints add {cost.share:+.1%}{between}, {cost.how}"


def describe(table: IterationTable) -> str:
    """Return the medians in words."""
    parts = [
        f"{one.name}: median {format_seconds(one.median_s)} of {one.count:,}"
        for one in table.series
        if one.median_s is not None
    ]
    if not parts:
        return "No iteration has ended yet."
    if table.overhead is not None:
        parts.append(_cost(table.overhead))
    parts.append(f"{failures_in_words(table.marks)} marked" if table.marks else "no failures")
    return "; ".join(parts) + "."
