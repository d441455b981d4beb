"""Where checkpoint traffic no longer fits, from what `gemini-lab bench contention` measured."""

from collections.abc import Mapping
from typing import Any, Final

from gemini_lab_bench.figures.emulated import conditions, percent
from gemini_lab_bench.figures.figure import Figure, Origin, Point
from gemini_lab_bench.rows import spread_of, value_of

FAR: Final = 10.0
"""Tolerance in points; the figure's note gives the reason."""


def contention(record: Mapping[str, Any]) -> Figure:
    """Iteration times from much idle time to hardly any, measured and as the scheduler predicts."""
    rows = [row for row in record["rows"] if row["unit"] == ""]
    rooms = {_layer(r): value_of(r) for r in rows if r["name"] == "idle / checkpoint"}
    origins: dict[str, Origin] = {
        "gemini / none": "measured",
        "gemini / none, as predicted": "model",
    }
    points = [
        percent(record, row, x=rooms[_layer(row)], origin=origins[row["name"]])
        for row in rows
        if row["name"] in origins
    ]
    tops = [point.high or 0.0 for point in points]
    points += [
        Point(
            series="scheduler: stops fitting",
            x=value_of(row),
            y=y,
            origin="model",
            how="idle time at which its chunks no longer fit, from the roomiest profile alone",
        )
        for row in rows
        if row["name"].startswith("stops fitting")
        for y in (0.0, max(tops))
    ]
    notes = [
        f"{row['name']} {spread_of(row, '.2f')}"
        for row in rows
        if row["name"].startswith(("stops fitting", "felt"))
    ]
    return Figure(
        name="contention",
        title="When checkpoint traffic no longer fits",
        x_label="network idle time / checkpoint time",
        y_label="added to an iteration, %",
        points=tuple(points),
        notes=(
            *notes,
            (
                f"Tolerance: {FAR:g} points beside the scheduler's prediction, five times what "
                "counts as felt."
            ),
            *conditions(record),
        ),
        tolerance=FAR,
        is_absolute=True,
    )


def _layer(row: Mapping[str, Any]) -> float:
    return float(row["settings"]["layer_s"])
