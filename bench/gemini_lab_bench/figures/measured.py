"""The paper's figures from what was measured here: bench results, with the paper's values beside.

A bench writes what it measured (`gemini-lab bench schemes --json FILE`); here that file becomes
figures.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gemini_lab.errors import ConfigError
from gemini_lab.units import format_bytes
from gemini_lab_bench.figures import eq1, fig11, killed, provenance, scaled_down
from gemini_lab_bench.figures.emulated import by_name, conditions, load, of_row, percent
from gemini_lab_bench.figures.figure import Figure, Origin, Point
from gemini_lab_bench.rows import spread_of, value_of

PAPER_GBIT_PER_S: Final = 100
"""The paper's link that is as much faster than its store."""
SHORT: Final = 0.15


def eleventh(record: Mapping[str, Any]) -> Figure:
    """Fig. 11: how much sooner a version is whole at peers than in the store, by nodes."""
    rows = by_name(record)
    measured = [row for name, row in rows.items() if ": reduction" in name]
    points = [point for row in measured for point in _reduced(rows, row)]
    points += [
        Point(f"the paper, {PAPER_GBIT_PER_S} Gbit/s", nodes, y, "paper", "Fig. 11")
        for nodes, y in fig11.PAPER[PAPER_GBIT_PER_S].items()
    ]
    settings = measured[0]["settings"]
    link, store = (settings[f"{what}_bytes_per_s"] for what in ("link", "store"))
    return Figure(
        name="fig11-measured",
        title="Fig. 11 for real, scaled down: checkpoint time, remote store by peers",
        x_label="nodes, N",
        y_label="times faster",
        points=tuple(points),
        notes=(
            (
                f"Real nodes; emulated: links of {format_bytes(link)}/s, a store of "
                f"{format_bytes(store)}/s for all, an accelerator's time in the layers. Both times "
                "last from an iteration's end until the version is whole on the last rank, and are "
                "by byte: a shard has a MiB for small state, which in a model so small is much."
            ),
            (
                "Model: N x link / store, of the rates that were set alone. The paper's line is "
                f"its {PAPER_GBIT_PER_S} Gbit/s, of which its formula gives checkpoints 85 %. "
                f"Tolerance: {SHORT:.0%}, as much as the paper leaves of the link to all else."
            ),
            f"{record['machine']['system']}, {load(record)}.",
        ),
        tolerance=SHORT,
    )


def _reduced(rows: Mapping[str, Any], row: Mapping[str, Any]) -> list[Point]:
    """Return the formula's value and the measured one of one number of nodes."""
    nodes, count = row["settings"]["nodes"], len(row["values"])
    formula = value_of(rows[f"{nodes} nodes: by the formula"])
    how = f"{count} turn{'s' * (count > 1)}, each the median of several versions"
    return [
        Point("here", nodes, formula, "model", "N x link / store"),
        of_row(row, "here", nodes, how),
    ]


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
            "scheduler: stops fitting",
            value_of(row),
            y,
            "model",
            "idle time at which its chunks no longer fit, from the roomiest profile alone",
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
                f"Tolerance: {FAR:g} points from the scheduler's prediction, five times what "
                "counts as felt."
            ),
            *conditions(record),
        ),
        tolerance=FAR,
        is_absolute=True,
    )


def _layer(row: Mapping[str, Any]) -> float:
    return float(row["settings"]["layer_s"])


def figures(path: Path) -> tuple[Figure, ...]:
    """Return the figures that the results in `path` are good for.

    Raises:
        ConfigError: The file holds no results, or those of a bench without a figure.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; {WAY_OUT}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON ({error}); {WAY_OUT}") from error
    bench = record.get("bench") if isinstance(record, dict) else None
    if not isinstance(bench, str) or "rows" not in record:
        raise ConfigError(f"{path} holds no bench's results; {WAY_OUT}")
    if bench not in MAKERS:
        raise ConfigError(
            f"{path} holds results of {bench!r}, of which nothing is drawn; {WAY_OUT}"
        )
    try:
        return tuple(
            replace(
                make(record),
                seeds=provenance.seeds_of(record),
                measured_with=provenance.measured_with(record),
            )
            for make in MAKERS[bench]
        )
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        raise ConfigError(
            f"{path} lacks something of the results of {bench!r} ({error!r}); {WAY_OUT}"
        ) from error


MAKERS: Final = {
    "schemes": (
        scaled_down.seventh,
        scaled_down.eighth,
        scaled_down.thirteenth_a,
        scaled_down.thirteenth_b,
        scaled_down.sixteenth,
        scaled_down.sixteenth_in_order,
    ),
    "contention": (contention,),
    "losses": (killed.ninth,),
    "baselines": (killed.tenth, killed.twelfth),
    "goodput": (killed.fifteenth,),
    "reduction": (eleventh,),
    "wasted": (eq1.of_real_failures,),
}
"""What is drawn of which bench's results."""

WAY_OUT: Final = (
    f"make some by `gemini-lab bench NAME --json FILE`, where NAME is one of {', '.join(MAKERS)}"
)
