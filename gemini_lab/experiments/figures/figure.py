"""A figure as data: points that say what they are, a table, and a drawing."""

import base64
import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from gemini_lab.errors import ConfigError

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

    def draw(self) -> Any:
        """The figure as a `matplotlib.figure.Figure`; needs the extra `figures`."""
        from gemini_lab.experiments.figures.drawing import draw  # noqa: PLC0415 - matplotlib is optional

        return draw(self)

    def write(self, folder: Path) -> tuple[Path, ...]:
        """Write it as HTML, PNG and CSV into `folder`; gives their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = tuple(folder / f"{self.name}.{suffix}" for suffix in ("html", "png", "csv"))
        image = self.png()
        paths[0].write_text(self.page(image), encoding="utf-8")
        paths[1].write_bytes(image)
        with paths[2].open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("series", "x", "y", "low", "high", "text", "origin", "how"))
            for p in self.points:
                writer.writerow((p.series, p.x, p.y, p.low, p.high, p.text, p.origin, p.how))
        return paths

    def png(self) -> bytes:
        """The drawing as the bytes of a PNG file."""
        buffer = io.BytesIO()
        self.draw().savefig(buffer, format="png", dpi=140)
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        """The drawing, where matplotlib is installed; the values lie folded away under it."""
        try:
            picture = self._image(self.png())
        except ConfigError:
            picture = f"<h3>{html.escape(self.title)}</h3>"
        return (
            f"{picture}{self._notes()}<details><summary>All values, and where each comes from"
            f"</summary>{self._tables()}</details>"
        )

    def page(self, image: bytes) -> str:
        """A page of HTML that needs no other file."""
        title = html.escape(f"{self.name}: {self.title}")
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{STYLE}</style></head><body><h1>{title}</h1>"
            f"{self._image(image)}{self._tables()}<h2>Notes</h2>{self._notes()}</body></html>"
        )

    def _image(self, image: bytes) -> str:
        data, alt = base64.b64encode(image).decode(), html.escape(f"{self.name}: {self.title}")
        return f'<img alt="{alt}" src="data:image/png;base64,{data}" style="max-width:100%">'

    def _notes(self) -> str:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return f"<ul>{notes}</ul>" if notes else ""

    def _tables(self) -> str:
        sources = dict.fromkeys((p.series, p.origin, p.how) for p in self.points)
        return (
            html_table(("series", self.x_label, *self.origins), self.rows())
            + "<h2>Where each value comes from</h2>"
            + html_table(("series", "origin", "how"), list(sources))
        )


STYLE: Final = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
    "img{max-width:100%}table{border-collapse:collapse;margin:1rem 0}"
    "td,th{border:1px solid #bbb;padding:.25rem .6rem;text-align:left;vertical-align:top}"
    "th{background:#eee}"
)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in HTML."""
    lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    return f"<table>{''.join(lines)}</table>"
