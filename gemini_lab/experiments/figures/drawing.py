"""How figures are drawn.

The paper is hollow, models are lines or full bars, simulations dots or pale bars, and what was
measured here diamonds or hatched bars.
"""

from collections.abc import Iterable
from typing import Any, Final

from gemini_lab.errors import ConfigError
from gemini_lab.experiments.figures.figure import Figure, Origin, Point

COLOURS: Final = ("#0b6fb8", "#d1600a", "#2b8a3e", "#8a3ea8", "#b3261e", "#7a6a00", "#00838f")
MARKERS: Final[dict[Origin, str]] = {
    "paper": "s", "model": "", "simulation": "o", "measured": "D",
}  # fmt: skip


def draw(figure: Figure) -> Any:
    """The figure as a `matplotlib.figure.Figure`.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure as Canvas  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ConfigError(
            "figures are drawn with matplotlib, which is not installed; "
            "pip install 'gemini-lab[figures]'"
        ) from error
    canvas = Canvas(figsize=(8.4, 4.9), layout="constrained")
    axes = canvas.subplots()
    {"lines": _lines, "bars": _bars, "timeline": _timeline}[figure.kind](axes, figure)
    axes.set_title(f"{figure.title}", fontsize=11, loc="left")
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    if figure.log_y:
        axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    return canvas


def _series(figure: Figure) -> list[str]:
    return list(dict.fromkeys(point.series for point in figure.points))


def _lines(axes: Any, figure: Figure) -> None:
    """One colour a series; lines for models, markers for all else."""
    for colour, series in zip(COLOURS, _series(figure), strict=False):
        for origin in ("model", "simulation", "paper", "measured"):
            points = _in_order(p for p in figure.of(origin) if p.series == series)
            if not points:
                continue
            style: dict[str, Any] = {"color": colour, "label": f"{series} ({origin})"}
            xs, ys = [p.x for p in points], [p.y for p in points]
            if origin == "model":
                axes.plot(xs, ys, linewidth=1.6, **style)
            elif origin == "paper":
                axes.plot(xs, ys, "s", markersize=8, markerfacecolor="none", **style)
            else:
                axes.errorbar(
                    xs, ys, yerr=_spread(points), fmt=MARKERS[origin],
                    markersize=7 if origin == "measured" else 4, capsize=2, **style,
                )  # fmt: skip
    axes.grid(visible=True, alpha=0.25)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _in_order(points: Iterable[Point]) -> list[Point]:
    """Points that have a value, from left to right."""
    return sorted((p for p in points if p.y is not None), key=lambda p: p.x)


def _spread(points: list[Point]) -> list[list[float]] | None:
    """Lengths of the error bars below and above; `None` where no point has any."""
    if all(point.low is None for point in points):
        return None
    ends = [
        (p.y - p.low, p.high - p.y)
        if p.y is not None and p.low is not None and p.high is not None
        else (0.0, 0.0)
        for p in points
    ]
    return [[max(0.0, low) for low, _ in ends], [max(0.0, high) for _, high in ends]]


def _bars(axes: Any, figure: Figure) -> None:
    """Groups of bars: one group a category, one bar a series and origin."""
    categories = list(dict.fromkeys(str(point.x) for point in figure.points))
    kinds = list(dict.fromkeys((p.series, p.origin) for p in figure.points))
    colour = dict(zip(_series(figure), COLOURS, strict=False))
    width = 0.84 / len(kinds)
    for number, (series, origin) in enumerate(kinds):
        points = [p for p in figure.points if (p.series, p.origin) == (series, origin)]
        xs = [categories.index(str(p.x)) - 0.42 + width * (number + 0.5) for p in points]
        face = {
            "paper": "none", "model": colour[series], "simulation": colour[series] + "66",
            "measured": colour[series] + "22",
        }  # fmt: skip
        axes.bar(
            xs, [p.y or 0 for p in points], width * 0.92, yerr=_spread(points), capsize=2,
            facecolor=face[origin], edgecolor=colour[series], label=f"{series} ({origin})",
            linestyle="--" if origin == "paper" else "-",
            hatch="////" if origin == "measured" else "",
        )  # fmt: skip
        for x, point in zip(xs, points, strict=True):
            label = f"{point.y:.3g}" if point.y is not None else point.text or "none"
            floor = axes.get_ylim()[0] if figure.log_y else 0.0
            top = max(point.y or floor, point.high or floor, floor)
            axes.annotate(
                label, (x, top), xytext=(0, 3), ha="center", textcoords="offset points",
                fontsize=7, rotation=0 if width > 0.1 else 90,
            )  # fmt: skip
    labels = [category.replace(", ", ",\n") for category in categories]
    axes.set_xticks(range(len(categories)), labels, fontsize=9)
    if not figure.log_y:
        axes.axhline(0, color="black", linewidth=0.8)
    axes.margins(y=0.18)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _timeline(axes: Any, figure: Figure) -> None:
    """Bars laid end to end, one line a category; the series are the steps."""
    lines = list(dict.fromkeys(str(point.x) for point in figure.points))
    colour = dict(zip(_series(figure), COLOURS, strict=False))
    ends = dict.fromkeys(lines, 0.0)
    longest = max(sum(p.y or 0 for p in figure.points if str(p.x) == row) for row in lines)
    for series in _series(figure):
        for point in (p for p in figure.points if p.series == series and p.y):
            row = str(point.x)
            axes.barh(
                lines.index(row), point.y, left=ends[row], height=0.55, color=colour[series],
                edgecolor="white", hatch="//" if point.origin == "paper" else "",
                label=series if not axes.get_legend_handles_labels()[1].count(series) else None,
            )  # fmt: skip
            if (point.y or 0) > longest / 11:
                axes.annotate(
                    f"{point.y:.3g} {figure.unit}",
                    (ends[row] + (point.y or 0) / 2, lines.index(row)),
                    ha="center", va="center", fontsize=8, color="white", fontweight="bold",
                )  # fmt: skip
            ends[row] += point.y or 0
    alike = max(ends.values()) - min(ends.values()) < 1e-6 * longest
    for number, row in enumerate([] if alike else lines):
        axes.annotate(
            f"{ends[row]:.3g} {figure.unit}", (ends[row], number), xytext=(5, 0), va="center",
            textcoords="offset points", fontsize=9,
        )  # fmt: skip
    axes.margins(x=0.1)
    axes.set_yticks(range(len(lines)), lines, fontsize=9)
    axes.invert_yaxis()
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
