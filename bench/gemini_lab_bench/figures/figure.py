"""A figure as data: points that say what they are, and a table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from gemini_lab.simulator.interval import mean_interval

Origin = Literal["paper", "input", "fitted", "model", "simulation", "measured"]
"""Where a value comes from.

paper: the paper's own. input: a paper's value, or what follows from one alone, that was put in.
fitted: a number of ours was chosen so that it comes out. model: a formula's. simulation: the
simulator's. measured: of a real run.
"""
ORIGINS: Final[tuple[Origin, ...]] = (
    "paper",
    "input",
    "fitted",
    "model",
    "simulation",
    "measured",
)
Verdict = Literal["input", "fitted", "within", "known", "undecided", "OUTSIDE"]
"""Of a value beside another: within its figure's tolerance, outside for a reason that is known and
said, or outside. What was put in or fitted proves nothing and is not judged. Of a measured value
its whole interval counts: one that reaches over an end of the tolerance leaves it undecided, and so
does a value without an interval, unless it is outside, and by more than chance can have it."""


@dataclass(frozen=True, slots=True)
class Known:
    """A difference from the paper that has a reason; beyond these errors it is another one."""

    why: str  # the reason
    low: float  # low, high: between which the error lies
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a figure."""

    series: str  # the curve or the kind of bar it belongs to
    x: float | str  # where it stands: a number, or a category's name
    y: float | None  # the value; `None` where there is none, and `text` says why
    origin: Origin  # where it comes from
    # Where in the paper, which formula, what was simulated, or what ran and what of it was
    # emulated.
    how: str
    low: float | None = None  # low, high: ends of its interval, where it has one
    high: float | None = None
    text: str = ""  # instead of the number
    known: Known | None = None  # why it lies outside its figure's tolerance, and how far
    against: str = ""  # where the value stands that it is compared with, if not at `x`
    by_chance: float = 0.0  # how far a value without an interval may lie from what it is a draw of

    @classmethod
    def mean(
        cls,
        series: str,
        x: float | str,
        values: Sequence[float],
        origin: Origin,
        how: str,
        *,
        ends: tuple[float, float] = (-math.inf, math.inf),  # which Student-t does not know
        **more: Any,  # other fields
    ) -> Self:
        """Return the mean of values with its 95 % interval; one value alone has none."""
        mean = mean_interval(values)
        if len(values) > 1:
            more |= {"low": max(ends[0], mean.low), "high": min(ends[1], mean.high)}
        return cls(series, x, mean.mean, origin, how, **more)

    @property
    def shown(self) -> str:
        if self.y is None:
            return self.text or "none"
        spread = ""
        if self.low is not None and self.high is not None and self.low < self.high:
            spread = f" ({self.low:.4g} to {self.high:.4g})"
        return f"{self.y:.4g}{spread}{' ' + self.text if self.text else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperComparison:
    """One value of ours beside the paper's, or a measured one beside a model's."""

    ours: Point  # the point
    beside: Point  # what stands there
    error: float  # by how much ours is larger: a share of the other value, or the difference itself
    verdict: Verdict  # what follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of the paper, with ours beside it."""

    name: str  # short name, such as `"fig10"`
    title: str  # what it shows
    x_label: str  # x_label, y_label: the axes, with units
    y_label: str
    points: tuple[Point, ...]  # all values
    # What has to be known to read it: inputs, fitted numbers, slips of the paper.
    notes: tuple[str, ...] = ()
    # How it is drawn: lines, bars, or bars laid end to end.
    kind: Literal["lines", "bars", "timeline"] = "lines"
    log_x: bool = False  # log_x, log_y: whether an axis is logarithmic
    log_y: bool = False
    unit: str = "s"  # of the values that a timeline writes into its bars
    # Largest error that a value may have; without it, nothing is compared.
    tolerance: float | None = None
    is_absolute: bool = False  # whether errors are differences, as for probabilities, not shares
    seeds: str = "none, nothing is random"  # of all that was drawn at random
    # When and with what its measured values were; empty where there are none.
    measured_with: str = ""

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.of(origin))} {origin}" for origin in self.origins)
        return f"Figure({self.name}: {self.title}; points: {counts})"

    @property
    def origins(self) -> tuple[Origin, ...]:
        return tuple(origin for origin in ORIGINS if self.of(origin))

    def of(self, origin: Origin) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.origin == origin)

    def comparisons(self) -> tuple[PaperComparison, ...]:
        """Return every value of ours that stands where the paper has one.

        What was measured where the paper has none is compared with a model's value there.
        """
        if self.tolerance is None:
            return ()
        paper, model = self._standing("paper"), self._standing("model")
        found = []
        for point in self.points:
            place = (point.series, point.against or str(point.x))
            there = (model | paper if point.origin == "measured" else paper).get(place)
            if point.origin == "paper" or point.y is None or there is None:
                continue
            error, verdict = self._error(point.y, there), self._verdict(point, there)
            found.append(PaperComparison(ours=point, beside=there, error=error, verdict=verdict))
        return tuple(found)

    def _standing(self, origin: Origin) -> dict[tuple[str, str], Point]:
        return {(p.series, str(p.x)): p for p in self.of(origin) if p.y is not None}

    def _error(self, value: float, there: Point) -> float:
        assert there.y is not None
        return value - there.y if self.is_absolute else value / there.y - 1

    def _verdict(self, point: Point, there: Point) -> Verdict:
        if point.origin == "input":
            return "input"
        if point.origin == "fitted":
            return "fitted"
        assert point.y is not None
        assert self.tolerance is not None
        low, high = point.y - point.by_chance, point.y + point.by_chance
        is_sure = point.origin != "measured"
        if not is_sure and point.low is not None and point.high is not None:
            low, high, is_sure = point.low, point.high, True
        ends = self._error(low, there), self._error(high, there)
        verdict = _placed(*ends, tolerance=self.tolerance, known=point.known)
        return verdict if is_sure or verdict == "OUTSIDE" else "undecided"

    @property
    def head(self) -> tuple[str, ...]:
        within = f"{self.tolerance:g}" if self.is_absolute else f"{self.tolerance or 0:.0%}"
        judged = () if self.tolerance is None else ("error", f"within {within}?")
        return ("series", self.x_label, *self.origins, *judged)

    def rows(self) -> list[tuple[str, ...]]:
        """Return series, x, the shown values of `origins` side by side, errors and verdicts."""
        cells: dict[tuple[str, str], dict[str, list[str]]] = {}
        for point in self.points:
            x = point.x if isinstance(point.x, str) else f"{point.x:g}"
            cell = cells.setdefault((point.series, x), {})
            cell.setdefault(point.origin, []).append(point.shown)
        for one in self.comparisons():
            x = one.ours.x if isinstance(one.ours.x, str) else f"{one.ours.x:g}"
            cell = cells[one.ours.series, x]
            cell.setdefault("error", []).append(self.shown_error(one.error))
            cell.setdefault("verdict", []).append(one.verdict)
        columns = self.origins if self.tolerance is None else (*self.origins, "error", "verdict")
        return [
            (series, x, *(" / ".join(cell.get(column, [])) for column in columns))
            for (series, x), cell in cells.items()
        ]

    def shown_error(self, error: float) -> str:
        return f"{error:+.3f}" if self.is_absolute else f"{error:+.1%}"

    def table(self) -> str:
        rows = [self.head, *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )


def _placed(low: float, high: float, *, tolerance: float, known: Known | None) -> Verdict:
    """Return where errors from `low` to `high` lie; both are the same without an interval."""
    if -tolerance <= low and high <= tolerance:
        return "within"
    if known is not None and known.low <= low and high <= known.high:
        return "known"
    if low <= tolerance and high >= -tolerance:
        return "undecided"
    if known is not None and low <= known.high and high >= known.low:
        return "undecided"
    return "OUTSIDE"
