"""What a bench measured on an emulated machine, as points and in words."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gemini_lab_bench.figures.figure import Origin, Point
from gemini_lab_bench.rows import FEW, value_of, with_unit

EMULATED: Final = {
    "link_bytes_per_s": "nodes' links are paced, at {}",
    "layer_s": "layers take an accelerator's time, {} each",
    "copy_bytes_per_s": "sub-buffers are emptied by a paced bus, at {}",
    "zero": "ZeRO's thresholds are scaled down",
}
"""What to say where a result's settings name it, with its value."""


def by_name(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's rows by name."""
    return {row["name"]: row for row in record["rows"]}


def percent(
    record: Mapping[str, Any],
    row: Mapping[str, Any],
    *,
    x: float | str,
    origin: Origin,
    series: str = "Gemini",
) -> Point:
    """Return a row of ratios as percent above 1."""
    how = "the scheduler's prediction from the job's profile"
    if origin == "measured":
        how = how_measured(record, row)
    return of_row(row, series, x, how, told=lambda ratio: 100 * (ratio - 1), origin=origin)


def of_row(
    row: Mapping[str, Any],
    series: str,
    x: float | str,
    how: str,
    *,
    told: Callable[[float], float] = float,
    origin: Origin = "measured",
    **more: Any,  # other fields of the point
) -> Point:
    """Return a row's value and interval as a point, both as `told` tells them."""
    ends = (row.get("low_95"), value_of(row), row.get("high_95"))
    low, y, high = (None if end is None else told(end) for end in ends)
    return Point(series, x, y, origin, how, low=low, high=high, **more)


def how_measured(record: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return how often a row was measured, and beside what."""
    count = len(row["values"])
    of = f"{'mean' if count < FEW else 'median'} of {count} runs with its 95 % interval"
    return f"{of if count > 1 else 'one run, no interval'}; {load(record)}"


def load(record: Mapping[str, Any]) -> str:
    """Return how busy the machine was."""
    machine = record["machine"]
    return (
        f"{machine['cores']} cores, load {machine['load_1_min']:.1f} before and "
        f"{record['load_1_min_after']:.1f} after"
    )


def conditions(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was emulated, and on what machine it ran."""
    settings = next(row["settings"] for row in record["rows"] if row["settings"])
    found = [
        text.format(with_unit(key, settings[key]))
        for key, text in EMULATED.items()
        if key in settings
    ]
    yield "Real runs; emulated: " + "; ".join(found) + "."
    machine = record["machine"]
    yield f"On {machine['system']}, {machine['cores']} cores."
