"""What a bench measured: rows of values, their spread, and the table of them for people."""

import math
import random
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from gemini_lab.errors import ConfigError
from gemini_lab.simulator.interval import mean_interval
from gemini_lab.units import format_bytes, format_seconds

RESAMPLES: Final = 1000
"""How many samples the interval of a median is made of."""
FEW: Final = 10
"""Fewer values are told by their mean: a bootstrap of the median covers 75 % at 3 values."""


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity that was measured some times."""

    name: str  # what was measured
    values: tuple[float, ...]  # every measurement
    unit: str = "s"  # of the values
    # What it was measured with: sizes, rates, conditions.
    settings: dict[str, Any] = field(default_factory=dict)
    why_not: str = ""  # why there are no values
    # Its 95 % interval where the values are not what spreads, as with a ratio of means.
    bounds: tuple[float, float] | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def value(self) -> float:
        """The median, or the mean of few values: what `interval` is of."""
        return statistics.fmean(self.values) if len(self.values) < FEW else self.median

    @property
    def interval(self) -> tuple[float, float]:
        """95 %: of the median by bootstrap, of the mean of few by Student-t; endless for one."""
        if self.bounds is not None:
            return self.bounds
        if len(self.values) >= FEW:
            return bootstrap_interval(self.values)
        mean = mean_interval(self.values)
        return mean.low, mean.high

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain JSON values; an interval without ends is left out."""
        found = asdict(self)
        if not self.values:
            return found
        found |= {"median": self.median, "value": self.value}
        if math.isfinite(sum(self.interval)):
            found["low_95"], found["high_95"] = self.interval
        return found


def single(name: str, value: float, settings: dict[str, Any] | None = None) -> Row:
    """Return the row of one value without a unit, such as a count or a share."""
    return Row(name=name, values=(float(value),), unit="", settings=settings or {})


def value_of(row: Mapping[str, Any]) -> float:
    """Return what the interval of a row in a bench's file is of; in old files always the median."""
    return float(row.get("value", row["median"]))


def spread_of(row: Mapping[str, Any], digits: str) -> str:
    """Return a row's value with its interval, if it has one."""
    value = f"{value_of(row):{digits}}"
    if "low_95" not in row:
        return value
    return f"{value} ({row['low_95']:{digits}} to {row['high_95']:{digits}})"


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median by bootstrap, always the same for the same values."""
    if not values:
        raise ConfigError("there is nothing to measure in 0 values; use at least 1 repeat")
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def growth(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent of values' growth with sizes: the slope through their logarithms.

    1 is linear, 2 is quadratic.
    """
    import numpy as np  # noqa: PLC0415 - only growth needs it

    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def table(rows: Sequence[Row]) -> str:
    """Return the rows for people, in lines of at most 100 characters.

    What a row was measured with stands below it, as far as the row above had it otherwise.
    """
    lines = [f"{'measured':<52}{'value':>12}  {'95 % interval':<27}{'repeats':>7}"]
    above: dict[str, Any] = {}
    for row in rows:
        if row.values:
            lines.append(
                f"{row.name:<52}{_digits(row.value):>12}  {_within(row):<27}"
                f"{len(row.values):>7}".rstrip()
            )
        else:
            lines += _below(f"{row.name}: no value: {row.why_not}", indent=0)
        other = [_setting(k, v) for k, v in row.settings.items() if above.get(k) != v]
        if other:
            lines += _below(f"with {', '.join(other)}", indent=4)
        above = row.settings or above
    if any(0 < len(row.values) < FEW for row in rows):
        lines.append(f"value: median (bootstrap); of fewer than {FEW} values the mean (Student-t)")
    return "\n".join(lines)


def _within(row: Row) -> str:
    """Return a row's interval and unit; one value alone has no interval."""
    low, high = row.interval
    return f"{_digits(low)} to {_digits(high)} {row.unit}" if math.isfinite(high) else row.unit


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _below(text: str, *, indent: int) -> list[str]:
    return textwrap.wrap(
        text, 100, initial_indent=" " * indent, subsequent_indent=" " * (indent + 4)
    )


def _setting(name: str, value: Any) -> str:
    unit = _unit(name, value)
    return f"{name.removesuffix(unit)} {with_unit(name, value)}"


def with_unit(name: str, value: Any) -> str:
    """Return a setting's value for people, in the unit that its name ends in: `38.1 MiB/s`."""
    match _unit(name, value):
        case "_bytes_per_s":
            return f"{format_bytes(value)}/s"
        case "_bytes":
            return format_bytes(value)
        case "_s":
            return format_seconds(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _unit(name: str, value: Any) -> str:
    units = ("_bytes_per_s", "_bytes", "_s") if isinstance(value, (int, float)) else ()
    return next((unit for unit in units if name.endswith(unit)), "")
