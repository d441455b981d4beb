"""Figs. 7, 8 and 16 scaled down, and where network contention begins: drawn from bench results.

A bench writes what it measured (`gemini-lab bench schemes --json FILE`); here that file becomes
figures, with the paper's values beside. As the two differ in scale, both are shares of an iteration
without checkpoints.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gemini_lab.errors import ConfigError
from gemini_lab.experiments.bench import FEW, spread_of, value_of
from gemini_lab.experiments.figures import fig08, fig16, killed
from gemini_lab.experiments.figures.figure import Figure, Origin, Point
from gemini_lab.experiments.figures.models_100b import IDLE_S, ITERATION_S

HERE: Final = "GPT 0.5 M, 2 nodes, here"
PARTS: Final = dict(zip(fig08.SERIES, ("idle before", "checkpoint", "idle left"), strict=True))
EMULATED: Final = {
    "link_bytes_per_s": "nodes' links are paced",
    "layer_s": "layers take an accelerator's time",
    "copy_bytes_per_s": "sub-buffers are emptied by a paced bus",
    "zero": "ZeRO's thresholds are scaled down",
}
"""What to say where a result's settings name it."""


def figures(path: Path) -> tuple[Figure, ...]:
    """The figures that the results in `path` are good for.

    Raises:
        ConfigError: The file holds no results, or those of a bench without a figure.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return tuple(make(record) for make in MAKERS[record["bench"]])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} holds no results to draw ({error!r}); make some by `gemini-lab bench NAME "
            f"--json FILE`, where NAME is one of {', '.join(MAKERS)}"
        ) from error


def seventh(record: Mapping[str, Any]) -> Figure:
    """Fig. 7: what checkpoints add to an iteration."""
    points = [
        Point(
            series="Gemini",
            x=f"{name} 100B, 16 p4d",
            y=100 * (gemini / none - 1),
            origin="paper",
            how="Fig. 7, pixels",
        )
        for name, (none, gemini) in ITERATION_S.items()
    ]
    points.append(_added(record, "gemini", series="Gemini", x=HERE))
    return _bars(
        record,
        name="fig07-measured",
        title="Fig. 7, scaled down: what checkpoints add",
        y_label="added to an iteration, %",
        points=points,
    )


def eighth(record: Mapping[str, Any]) -> Figure:
    """Fig. 8: network idle time before, checkpoint time, idle time left."""
    rows = _rows(record)
    iteration_s = value_of(rows["none"])
    points = []
    for series, part in PARTS.items():
        for name, seconds in IDLE_S.items():
            share = seconds[list(PARTS).index(series)] / ITERATION_S[name][0]
            points.append(
                Point(
                    series=series,
                    x=f"{name} 100B, 16 p4d",
                    y=100 * share,
                    origin="paper",
                    how="Figs. 7 and 8, pixels",
                )
            )
        row, share = rows[f"gemini, {part}"], 100 / iteration_s
        points.append(
            Point(
                series=series,
                x=HERE,
                y=share * value_of(row),
                low=None if (low := row.get("low_95")) is None else share * low,
                high=None if (high := row.get("high_95")) is None else share * high,
                origin="measured",
                how=_how(record, row),
            )
        )
    return _bars(
        record,
        name="fig08-measured",
        title="Fig. 8, scaled down: network idle time",
        y_label="% of an iteration without checkpoints",
        points=points,
        note="Measured checkpoint time lasts from a span's first chunk to its last, with the "
        "pauses between chunks; what training's collectives took meanwhile is left out.",
    )


def sixteenth(record: Mapping[str, Any]) -> Figure:
    """Fig. 16: five schemes on one link."""
    none_s = fig16.PAPER["none"][1]
    assert none_s is not None
    points = []
    for scheme, (name, seconds) in fig16.PAPER.items():
        if scheme != "none":
            points += [
                Point(
                    series="added",
                    x=name,
                    origin="paper",
                    how="Fig. 16, pixels",
                    y=None if seconds is None else 100 * (seconds / none_s - 1),
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
    )


def contention(record: Mapping[str, Any]) -> Figure:
    """Iteration times from much idle time to hardly any, measured and as the scheduler predicts."""
    rows = [row for row in record["rows"] if row["unit"] == ""]
    rooms = {_layer(r): value_of(r) for r in rows if r["name"] == "idle / checkpoint"}
    origins: dict[str, Origin] = {
        "gemini / none": "measured",
        "gemini / none, as predicted": "model",
    }
    points = [
        _point(record, row, x=rooms[_layer(row)], origin=origins[row["name"]])
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
        notes=(*notes, *_conditions(record)),
    )


def _layer(row: Mapping[str, Any]) -> float:
    return float(row["settings"]["layer_s"])


def _rows(record: Mapping[str, Any]) -> dict[str, Any]:
    return {row["name"]: row for row in record["rows"]}


def _added(record: Mapping[str, Any], scheme: str, *, series: str, x: str) -> Point:
    """What a scheme added to an iteration, in percent; a refused scheme added nothing."""
    rows = _rows(record)
    if reason := rows[scheme]["settings"].get("refused"):
        return Point(series=series, x=x, y=None, origin="measured", how=reason, text="refused")
    return _point(record, rows[f"{scheme} / none"], x=x, origin="measured", series=series)


def _point(
    record: Mapping[str, Any],
    row: Mapping[str, Any],
    *,
    x: float | str,
    origin: Origin,
    series: str = "Gemini",
) -> Point:
    """A row of ratios as percent above 1."""
    ends = (row.get("low_95"), value_of(row), row.get("high_95"))
    low, middle, high = (None if end is None else 100 * (end - 1) for end in ends)
    how = "the scheduler's prediction from the job's profile"
    if origin == "measured":
        how = _how(record, row)
    return Point(series=series, x=x, y=middle, low=low, high=high, origin=origin, how=how)


def _how(record: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    machine = record["machine"]
    return (
        f"{'mean' if len(row['values']) < FEW else 'median'} of {len(row['values'])} runs with its "
        f"95 % interval; {machine['cores']} cores, "
        f"load {machine['load_1_min']:.1f} before and {record['load_1_min_after']:.1f} after"
    )


def _bars(
    record: Mapping[str, Any],
    *,
    name: str,
    title: str,
    y_label: str,
    points: list[Point],
    note: str = "",
) -> Figure:
    notes = [*_conditions(record), note] if note else [*_conditions(record)]
    return Figure(
        name=name,
        title=title,
        x_label="job" if "16" not in name else "scheme",
        y_label=y_label,
        points=tuple(points),
        notes=tuple(notes),
        kind="bars",
    )


def _conditions(record: Mapping[str, Any]) -> Iterator[str]:
    """What was emulated, and on what machine it ran."""
    settings = next(row["settings"] for row in record["rows"] if row["settings"])
    found = [f"{text} ({settings[key]})" for key, text in EMULATED.items() if key in settings]
    yield "Real runs; emulated: " + "; ".join(found) + "."
    machine = record["machine"]
    yield f"On {machine['system']}, {machine['cores']} cores."


MAKERS: Final = {
    "schemes": (seventh, eighth, sixteenth),
    "contention": (contention,),
    "losses": (killed.ninth,),
    "baselines": (killed.tenth, killed.twelfth),
}
"""What is drawn of which bench's results."""
