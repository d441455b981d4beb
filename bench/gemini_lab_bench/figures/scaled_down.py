"""Figs. 7, 8, 13 and 16 scaled down, from what `gemini-lab bench schemes` measured.

The paper's values stand beside. As the two differ in scale, both are shares of an iteration without
checkpoints.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gemini_lab_bench.figures import fig08, fig16, models_100b, models_p3dn
from gemini_lab_bench.figures.emulated import by_name, conditions, how_measured, of_row, percent
from gemini_lab_bench.figures.figure import Figure, Point
from gemini_lab_bench.rows import value_of

HERE: Final = "GPT 0.5 M, 2 nodes, here"
PARTS: Final = dict(zip(fig08.SERIES, ("idle before", "checkpoint", "idle left"), strict=True))
ADDED: Final = 5.0
LEFT: Final = 5.0
ROOM: Final = 22.0
SCALED: Final = 7.0
"""Tolerances in points; the figures' notes give the reason of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Paper:
    """The paper's values of models on one kind of machine."""

    where: str  # what to say of them beside a model's name
    figures: str  # where the idle times are from
    iteration_s: Mapping[str, tuple[float, float]]  # without checkpoints, and with Gemini, by model
    # Idle time before, checkpoint time and, where it was drawn, idle time left.
    idle_s: Mapping[str, tuple[float, ...]]

    @property
    def series(self) -> tuple[str, ...]:
        return fig08.SERIES[: len(next(iter(self.idle_s.values())))]


LARGE: Final = _Paper(
    where=" 100B, 16 p4d",
    figures="Figs. 7 and 8",
    iteration_s=models_100b.ITERATION_S,
    idle_s=models_100b.IDLE_S,
)
SMALL: Final = _Paper(
    where=", 16 p3dn",
    figures="Figs. 13a and 13b",
    iteration_s=models_p3dn.ITERATION_S,
    idle_s=models_p3dn.IDLE_S,
)


def seventh(record: Mapping[str, Any]) -> Figure:
    """Fig. 7: what checkpoints add to an iteration."""
    return _adding(record, LARGE, number="7")


def eighth(record: Mapping[str, Any]) -> Figure:
    """Fig. 8: network idle time before, checkpoint time, idle time left."""
    return _idling(record, LARGE, number="8")


def thirteenth_a(record: Mapping[str, Any]) -> Figure:
    """Fig. 13a: what checkpoints add to an iteration of smaller models on slower links."""
    return _adding(record, SMALL, number="13a")


def thirteenth_b(record: Mapping[str, Any]) -> Figure:
    """Fig. 13b: network idle time before, and checkpoint time."""
    return _idling(record, SMALL, number="13b")


def _adding(record: Mapping[str, Any], paper: _Paper, *, number: str) -> Figure:
    points = [
        Point(
            "Gemini",
            f"{name}{paper.where}",
            100 * (gemini / none - 1),
            "paper",
            f"Fig. {number}, pixels",
        )
        for name, (none, gemini) in paper.iteration_s.items()
    ]
    points.append(
        replace(_added(record, "gemini", series="Gemini", x=HERE), against=str(points[0].x))
    )
    return _bars(
        record,
        name=f"fig{number:0>2}-measured",
        title=f"Fig. {number}, scaled down: what checkpoints add",
        y_label="added to an iteration, %",
        points=points,
        tolerance=ADDED,
        note=f"Compared with {points[0].x}. Tolerance: {ADDED:g} points; the paper's error bars "
        "reach 4 % of an iteration, and what is more than those is an overhead.",
    )


def _idling(record: Mapping[str, Any], paper: _Paper, *, number: str) -> Figure:
    rows, points = by_name(record), _shares(record, paper)
    before, checkpoint = (rows[f"gemini, {PARTS[series]}"] for series in fig08.SERIES[:2])
    if paper.series == fig08.SERIES:
        label = "% of an iteration without checkpoints"
        tolerance, why = LEFT, "chunks that fit shift no collective"
        points.append(
            Point(
                fig08.SERIES[2],
                HERE,
                100 / value_of(rows["none"]) * (value_of(before) - value_of(checkpoint)),
                "model",
                "idle time before - checkpoint time, both as measured",
            )
        )
    else:
        label = "% of an iteration without checkpoints, or of idle time"
        tolerance, why = ROOM, "so much beyond the paper's fullest bar, none would fit"
        points += _filling(record, before, checkpoint, paper)
    return _bars(
        record,
        name=f"fig{number:0>2}-measured",
        title=f"Fig. {number}, scaled down: network idle time",
        y_label=label,
        points=points,
        tolerance=tolerance,
        note="Measured checkpoint time lasts from a span's first chunk to its last, with the "
        "pauses between chunks; what training's collectives took meanwhile is left out. Idle time "
        f"and checkpoint time are set up, and not judged. Tolerance: {tolerance:g} points; {why}.",
    )


def _shares(record: Mapping[str, Any], paper: _Paper) -> list[Point]:
    """Return the paper's idle and checkpoint times and those here, in percent of an iteration."""
    rows, points = by_name(record), list[Point]()
    share = 100 / value_of(rows["none"])
    for place, series in enumerate(paper.series):
        points += [
            Point(
                series,
                f"{name}{paper.where}",
                100 * seconds[place] / paper.iteration_s[name][0],
                "paper",
                f"{paper.figures}, pixels",
            )
            for name, seconds in paper.idle_s.items()
        ]
        row = rows[f"gemini, {PARTS[series]}"]
        how = how_measured(record, row)
        points.append(of_row(row, series, HERE, how, told=lambda value: share * value))
    return points


def _filling(
    record: Mapping[str, Any],
    before: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
    paper: _Paper,
) -> list[Point]:
    """Return how much of the idle time checkpoints take, in percent."""
    series = "checkpoint time, % of idle time"
    name, (idle_s, checkpoint_s, *_) = max(
        paper.idle_s.items(), key=lambda item: item[1][1] / item[1][0]
    )
    runs = zip(checkpoint["values"], before["values"], strict=True)
    shares = [100 * taken / idle for taken, idle in runs]
    x, how = f"{name}{paper.where}", f"{paper.figures}, pixels; its fullest"
    return [
        Point(series, x, 100 * checkpoint_s / idle_s, "paper", how),
        Point.mean(series, HERE, shares, "measured", how_measured(record, before), against=x),
    ]


def sixteenth(record: Mapping[str, Any]) -> Figure:
    """Fig. 16: five schemes on one link."""
    none_s = fig16.PAPER["none"][1]
    assert none_s is not None
    points = []
    for scheme, (name, seconds) in fig16.PAPER.items():
        if scheme != "none":
            points += [
                Point(
                    "added",
                    name,
                    None if seconds is None else 100 * (seconds / none_s - 1),
                    "paper",
                    "Fig. 16, pixels",
                    text="" if seconds else "OOM",
                ),
                _added(record, scheme, series="added", x=name),
            ]
    return _bars(
        record,
        name="fig16-measured",
        title="Fig. 16, scaled down: what each scheme adds",
        y_label="added to an iteration, %",
        points=points,
        tolerance=SCALED,
        note=f"Tolerance: {SCALED:g} points; a checkpoint takes the link for a seventh of an "
        "iteration (the paper's: a tenth), which blocking adds, and this machine adds some of its "
        "own.",
    )


def sixteenth_in_order(record: Mapping[str, Any]) -> Figure:
    """Fig. 16: which of two schemes adds more."""
    rows = by_name(record)
    schemes = [one for one, (_, seconds) in fig16.PAPER.items() if seconds and one != "none"]
    schemes.sort(key=lambda one: fig16.PAPER[one][1] or 0.0, reverse=True)
    points = []
    for more, less in itertools.combinations(schemes, 2):
        turns = [*zip(*(rows[f"{one} / none"]["values"] for one in (more, less)), strict=True)]
        shares = [100.0 * (above > below) for above, below in turns]
        series, x = "turns", " > ".join(fig16.PAPER[one][0] for one in (more, less))
        points += [
            Point(series, x, 100.0, "paper", "Fig. 16, pixels"),
            Point.mean(series, x, shares, "measured", f"in each of {len(turns)} turns"),
        ]
    return _bars(
        record,
        name="fig16-order",
        title="Fig. 16, scaled down: which of two schemes adds more",
        y_label="% of the turns",
        points=points,
        tolerance=SCALED,
        note=f"Tolerance: {SCALED:g} points.",
    )


def _added(record: Mapping[str, Any], scheme: str, *, series: str, x: str) -> Point:
    """Return what a scheme added to an iteration, in percent; a refused scheme added nothing."""
    rows = by_name(record)
    if reason := rows[scheme]["settings"].get("refused"):
        return Point(series, x, None, "measured", reason, text="refused")
    return percent(record, rows[f"{scheme} / none"], x=x, origin="measured", series=series)


def _bars(
    record: Mapping[str, Any],
    *,
    name: str,
    title: str,
    y_label: str,
    points: list[Point],
    tolerance: float,
    note: str,
) -> Figure:
    return Figure(
        name=name,
        title=title,
        x_label="job" if "16" not in name else "scheme",
        y_label=y_label,
        points=tuple(points),
        notes=(*conditions(record), note),
        kind="bars",
        tolerance=tolerance,
        is_absolute=True,
    )
