"""The paper's figures with ours beside them.

The paper is hollow, models are lines or full bars, simulations dots or pale bars, and what was
measured here diamonds or hatched bars. What was put in is dotted, what was fitted dashed.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gemini_lab_widgets.pictures import palette
from gemini_lab_widgets.pictures.board import (
    CHARACTER,
    LEFT,
    WIDTH,
    Board,
    fit,
    inside,
    rows,
)
from gemini_lab_widgets.pictures.picture import Picture, Table, clean
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from gemini_lab_bench.figures.figure import Figure, Origin, Point

TALL: Final = 320.0
EDGE: Final = 64.0
BETWEEN: Final = 5.0
"""Pixels between the values over two bars."""
"""Where the y axis stands."""
KNOWN: Final = {
    **palette.POLICIES,
    "detection": palette.STEPS["detect"],
    "agreement": palette.STEPS["fence"],
    "serialisation": palette.STEPS["serialise"],
    "reservation": palette.STEPS["reserve"],
    "restart": palette.STEPS["start"],
    "retrieval": palette.STEPS["retrieve"],
    "warm-up": palette.STEPS["warm_up"],
    "training that counts": palette.IDLE,
    "done again": palette.STEPS["redo"],
    "slower or standing still": palette.FELT,
    "recovering": palette.BLUE,
}
"""Series that have a colour everywhere."""
MARKERS: Final[dict[Origin, str]] = {"paper": "s", "simulation": "o", "measured": "D"}
LINES: Final[dict[Origin, str]] = {"input": ":", "fitted": "--", "model": "-"}
ORDER: Final[tuple[Origin, ...]] = (
    "input",
    "fitted",
    "model",
    "simulation",
    "paper",
    "measured",
)
"""What is drawn later lies above."""


def draw(figure: Figure) -> Picture:
    """Return the picture of a figure; its values and where each comes from lie folded away."""
    board = Board(title=figure.title, description=repr(figure))
    {"lines": _lines, "bars": _bars, "timeline": _timeline}[figure.kind](board, figure)
    values = Table(head=figure.head, rows=figure.rows())
    sources = dict.fromkeys((p.series, p.origin, p.how) for p in figure.points)
    origins = Table(
        head=("series", "origin", "how"), rows=list(sources), caption="Where each value comes from"
    )
    return board.picture(
        tables=(values, origins),
        plain=repr(figure),
        notes=figure.notes,
        summary="All values, and where each comes from",
    )


def _series(figure: Figure) -> list[str]:
    return list(dict.fromkeys(point.series for point in figure.points))


def _colours(figure: Figure) -> dict[str, str]:
    """Return a colour for each series: its own everywhere, or the next that is free."""
    names = _series(figure)
    taken = {KNOWN[name] for name in names if name in KNOWN}
    free = itertools.cycle([c for c in palette.OTHERS if c not in taken] or palette.OTHERS)
    return {name: KNOWN[name] if name in KNOWN else next(free) for name in names}


def _panel(board: Board, figure: Figure) -> Axes:
    panel = board.axes(TALL, left=EDGE, right=WIDTH - 24, above=30, below=56)
    panel.set_title(clean(figure.y_label), fontweight="normal", color=palette.LIGHT.dim)
    panel.set_xlabel(clean(figure.x_label))
    panel.grid(axis="y", visible=True)
    if figure.log_x:
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if figure.log_y:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return panel


def _lines(board: Board, figure: Figure) -> None:
    """Draw one colour a series; lines for what is computed, markers for all else."""
    panel = _panel(board, figure)
    panel.grid(axis="x", visible=True)
    colours = _colours(figure)
    for origin, series in itertools.product(ORDER, colours):
        points = _in_order(p for p in figure.of(origin) if p.series == series)
        xs, ys = [p.x for p in points], [p.y or 0.0 for p in points]
        if not points:
            continue
        if origin in LINES:
            panel.plot(xs, ys, LINES[origin], color=colours[series], zorder=2)
        else:
            panel.errorbar(
                xs,
                ys,
                yerr=_spread(points),
                capsize=3,
                zorder=3,
                elinewidth=1.2,
                **_marker(origin, colours[series]),
            )
    board.legend([(colours[series], series) for series in colours], left=EDGE)
    keys = [
        (
            Line2D([], [], color=palette.LIGHT.dim, linestyle=LINES[origin])
            if origin in LINES
            else Line2D([], [], **_marker(origin, palette.LIGHT.dim)),
            origin,
        )
        for origin in figure.origins
    ]
    board.legend(keys, left=EDGE)


def _marker(origin: Origin, colour: str) -> dict[str, Any]:
    """Return how a point of this origin looks, in matplotlib's words."""
    return {
        "color": colour,
        "linestyle": "none",
        "marker": MARKERS[origin],
        "markersize": {"paper": 9, "simulation": 5, "measured": 8}[origin],
        "markerfacecolor": "none" if origin == "paper" else colour,
        "markeredgewidth": 1.6,
    }


def _in_order(points: Iterable[Point]) -> list[Point]:
    return sorted((p for p in points if p.y is not None), key=lambda p: p.x)


def _spread(points: list[Point]) -> list[list[float]] | None:
    """Return the lengths of the error bars below and above; `None` if no point has any."""
    if all(point.low is None for point in points):
        return None
    ends = [
        (p.y - p.low, p.high - p.y)
        if p.y is not None and p.low is not None and p.high is not None
        else (0.0, 0.0)
        for p in points
    ]
    return [[max(0.0, low) for low, _ in ends], [max(0.0, high) for _, high in ends]]


def _bars(board: Board, figure: Figure) -> None:
    """Draw groups of bars: one group a category, one bar a series and origin."""
    panel = _panel(board, figure)
    colours = _colours(figure)
    categories = list(dict.fromkeys(str(point.x) for point in figure.points))
    slots, width = _slots(figure)
    for (series, origin), offset in slots.items():
        points = [p for p in figure.points if (p.series, p.origin) == (series, origin)]
        xs = [categories.index(str(p.x)) + offset for p in points]
        panel.bar(
            xs,
            [p.y or 0 for p in points],
            0.9 * width,
            yerr=_spread(points),
            capsize=3,
            error_kw={"ecolor": palette.LIGHT.ink, "elinewidth": 1.2},
            **_face(origin, colours[series]),
        )
    panel.set_xlim(-0.55, len(categories) - 0.45)
    panel.margins(y=0.14)
    panel.autoscale_view(scalex=False)
    pixels = width * (WIDTH - 24 - EDGE) / len(categories)
    widest = max(len(_label(point)) for point in figure.points)
    is_narrow = CHARACTER * 11 * widest + BETWEEN > pixels
    for point in figure.points:
        x = categories.index(str(point.x)) + slots[point.series, point.origin]
        _value(panel, point, x, is_upright=is_narrow)
    labels = [clean(category).replace(", ", ",\n") for category in categories]
    panel.set_xticks(range(len(categories)), labels)
    if not figure.log_y:
        panel.axhline(0, color=palette.LIGHT.rule, linewidth=1)
    if any("\n" in label for label in labels):
        board.y += 16
    if len(colours) > 1:
        board.legend([(colours[series], series) for series in colours], left=EDGE)
    lone = palette.LIGHT.dim if len(colours) > 1 else next(iter(colours.values()))
    keys = [(Patch(**_face(origin, lone)), origin) for origin in figure.origins]
    board.legend(keys, left=EDGE)


def _slots(figure: Figure) -> tuple[dict[tuple[str, Origin], float], float]:
    """Return where each bar of a group stands, from the group's middle, and how wide one is."""
    slots: dict[tuple[str, Origin], float] = {}
    at = 0.0
    for series in _series(figure):
        points = [point for point in figure.points if point.series == series]
        computed = [point for point in points if point.origin in LINES]
        is_shared = len({str(point.x) for point in computed}) == len(computed)
        for origin in dict.fromkeys(point.origin for point in points):
            earlier = [slots[key] for key in slots if key[0] == series and key[1] in LINES]
            if is_shared and origin in LINES and earlier:  # never two of them in one group
                slots[series, origin] = earlier[0]
                continue
            slots[series, origin] = at
            at += 1.0
        at += 0.35
    whole = at - 0.35
    width = min(0.84 / whole, 0.3)
    return {kind: (place - (whole - 1) / 2) * width for kind, place in slots.items()}, width


def _face(origin: Origin, colour: str) -> dict[str, Any]:
    """Return how a bar of this origin looks, in matplotlib's words."""
    face = {
        "paper": "none",
        "input": palette.LIGHT.paper,
        "fitted": palette.LIGHT.paper,
        "model": colour,
        "simulation": to_rgba(colour, 0.4),
        "measured": palette.LIGHT.paper,
    }
    return {
        "facecolor": face[origin],
        "edgecolor": colour,
        "linewidth": 1.4,
        "linestyle": (0, (4, 2)) if origin == "paper" else "-",
        "hatch": {"measured": "////", "input": "....", "fitted": "--"}.get(origin, ""),
    }


def _label(point: Point) -> str:
    return fit(f"{point.y:.3g}" if point.y is not None else point.text or "none", 120)


def _value(panel: Axes, point: Point, x: float, *, is_upright: bool) -> None:
    floor = panel.get_ylim()[0] if panel.get_yscale() == "log" else 0.0
    top = max(point.y or floor, point.high or floor, floor)
    panel.annotate(
        _label(point),
        (x, top),
        xytext=(0, 4),
        textcoords="offset points",
        size=11,
        ha="center",
        va="bottom",
        rotation=90 if is_upright else 0,
    )


def _timeline(board: Board, figure: Figure) -> None:
    """Draw bars laid end to end, one line a category; the series are the steps."""
    lines = list(dict.fromkeys(str(point.x) for point in figure.points))
    colours = _colours(figure)
    panel = board.axes(44.0 * len(lines), right=WIDTH - 90, above=16, below=56)
    rows(panel, lines)
    ends = dict.fromkeys(lines, 0.0)
    longest = max(sum(p.y or 0 for p in figure.points if str(p.x) == row) for row in lines)
    panel.set_xlim(0, longest or 1.0)
    for point, series in _pieces(figure):
        row, length = str(point.x), point.y or 0.0
        is_hollow, colour = point.origin == "paper", colours[series]
        bar = panel.barh(
            lines.index(row),
            length,
            left=ends[row],
            height=0.66,
            linewidth=1.6,
            facecolor=to_rgba(colour, 0.2) if is_hollow else colour,
            edgecolor=colour if is_hollow else palette.LIGHT.paper,
            hatch="...." if point.origin == "input" else "",
        )
        label = f"{length:.3g} {figure.unit}"
        board.tip(bar[0], f"{series}: {label}")
        if fit(label, length / longest * (WIDTH - 90 - LEFT) - 8, size=12) == label:
            fill = palette.LIGHT.paper if is_hollow else colour
            inside(panel, ends[row] + length / 2, lines.index(row), label, colour=fill)
        ends[row] += length
    if max(ends.values()) - min(ends.values()) > 1e-6 * longest:
        for number, row in enumerate(lines):
            panel.annotate(
                f"{ends[row]:.3g} {figure.unit}",
                (ends[row], number),
                (6, 0),
                textcoords="offset points",
                va="center_baseline",
                weight="bold",
            )
    panel.grid(axis="x", visible=True)
    panel.set_xlabel(clean(figure.x_label))
    keys: list[tuple[str | Artist, str]] = [(colours[series], series) for series in colours]
    if figure.of("paper"):
        faint = to_rgba(palette.LIGHT.dim, 0.2)
        keys.append((Patch(facecolor=faint, edgecolor=palette.LIGHT.dim, linewidth=1.6), "paper"))
    if figure.of("input"):
        ink, paper = palette.LIGHT.dim, palette.LIGHT.paper
        dotted = Patch(facecolor=ink, edgecolor=paper, hatch="....")
        keys.append((dotted, "input"))
    board.legend(keys)


def _pieces(figure: Figure) -> Iterator[tuple[Point, str]]:
    for series in _series(figure):
        for point in figure.points:
            if point.series == series and point.y:
                yield point, series
