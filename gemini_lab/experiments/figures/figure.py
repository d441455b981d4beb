"""A figure as data: points that say what they are, and a table."""

from dataclasses import dataclass
from typing import Final, Literal

Origin = Literal["paper", "model", "simulation", "measured"]
ORIGINS: Final[tuple[Origin, ...]] = ("paper", "model", "simulation", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a figure.

    Attributes:
        series: The curve or the kind of bar it belongs to.
        x: Where it stands: a number, or a category's name.
        y: The value; `None` where there is none, and `text` says why.
        origin: From the paper, from a formula, from the simulator, or measured in a real run.
        how: Where in the paper, which formula, what was simulated, or what ran and what of it was
            emulated.
        low, high: Ends of its interval, where it has one.
        text: Instead of the number.
    """

    series: str
    x: float | str
    y: float | None
    origin: Origin
    how: str
    low: float | None = None
    high: float | None = None
    text: str = ""

    @property
    def shown(self) -> str:
        """The value for people, with its interval."""
        if self.y is None:
            return self.text or "none"
        spread = ""
        if self.low is not None and self.high is not None:
            spread = f" ({self.low:.4g} to {self.high:.4g})"
        return f"{self.y:.4g}{spread}{' ' + self.text if self.text else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of the paper, with ours beside it.

    Attributes:
        name: Short name, such as `"fig10"`.
        title: What it shows.
        x_label, y_label: The axes, with units.
        points: All values.
        notes: What has to be known to read it: inputs, fitted numbers, slips of the paper.
        kind: How it is drawn: lines, bars, or bars laid end to end.
        log_y: Whether the y axis is logarithmic.
        unit: Of the values that a timeline writes into its bars.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()
    kind: Literal["lines", "bars", "timeline"] = "lines"
    log_y: bool = False
    unit: str = "s"

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.of(origin))} {origin}" for origin in self.origins)
        return f"Figure({self.name}: {self.title}; points: {counts})"

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The kinds of values that it has."""
        return tuple(origin for origin in ORIGINS if self.of(origin))

    def of(self, origin: Origin) -> tuple[Point, ...]:
        """The points of one origin."""
        return tuple(point for point in self.points if point.origin == origin)

    def rows(self) -> list[tuple[str, ...]]:
        """Series, x, and the shown values of each of `origins`, side by side."""
        cells: dict[tuple[str, str], dict[str, list[str]]] = {}
        for point in self.points:
            x = point.x if isinstance(point.x, str) else f"{point.x:g}"
            cell = cells.setdefault((point.series, x), {})
            cell.setdefault(point.origin, []).append(point.shown)
        return [
            (series, x, *(" / ".join(cell.get(origin, [])) for origin in self.origins))
            for (series, x), cell in cells.items()
        ]

    def table(self) -> str:
        """`rows` as text."""
        head = ("series", self.x_label, *self.origins)
        rows = [head, *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )
