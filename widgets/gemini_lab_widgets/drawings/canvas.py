"""What all drawings share: shapes as SVG, colours for light and dark, axes, and a table beside.

Everything is built as a tree and written out at the end, so that no text can become a tag. Colours
are Okabe and Ito's, which colour-blind people tell apart; none carries a meaning alone.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from gemini_lab.units import format_seconds

WIDTH: Final = 760
"""Of every drawing, in its own units; a page scales it down, never up."""
LONGEST: Final = 500
"""Characters of a remark."""
CHARACTER: Final = 0.56
"""Mean width of a character by the font's size."""
LIGHT: Final = (
    "--gl-ink:#1b1b1b;--gl-mark:#1b1b1b;--gl-dim:#565656;--gl-rule:#9a9a9a;--gl-pale:#eef1f4;--gl-paper:#ffffff;"
    "--gl-blue:#0072b2;--gl-sky:#56b4e9;--gl-green:#009e73;--gl-yellow:#d9c400;"
    "--gl-orange:#e69f00;--gl-red:#d55e00;--gl-pink:#cc79a7;--gl-grey:#8c8c8c"
)
DARK: Final = (
    "--gl-ink:#f2f2f2;--gl-mark:#141414;--gl-dim:#bdbdbd;--gl-rule:#7d7d7d;--gl-pale:#2a2f35;--gl-paper:#141414;"
    "--gl-blue:#4aa8e0;--gl-sky:#8ccdf2;--gl-green:#2fc79b;--gl-yellow:#f0e442;"
    "--gl-orange:#f0b030;--gl-red:#f0793a;--gl-pink:#e09cc3;--gl-grey:#a6a6a6"
)
STYLE: Final = (
    f".gl-drawing{{{LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{.gl-drawing{{{DARK}}}}}"
    # JupyterLab and VS Code have themes of their own, which need not be the system's
    f'[data-jp-theme-light="true"] .gl-drawing,.vscode-light .gl-drawing{{{LIGHT}}}'
    f'[data-jp-theme-light="false"] .gl-drawing,.vscode-dark .gl-drawing{{{DARK}}}'
    ".gl-drawing text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;"
    "fill:var(--gl-ink)}"
    ".gl-drawing details{color:var(--gl-dim);margin:.2em 0 .6em;font-family:system-ui,sans-serif}"
)
_COLOUR: Final = re.compile(
    r"ink|mark|dim|rule|pale|paper|blue|sky|green|yellow|orange|red|pink|grey"
)
_FORBIDDEN: Final = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)


def clean(text: object) -> str:
    """`text` in one line, without what XML cannot hold or what turns the direction of writing."""
    return _FORBIDDEN.sub("\ufffd", re.sub("\\s+", " ", str(text)))


def fit(text: object, width: float, *, size: float = 14) -> str:
    """`text`, cut with an ellipsis where it would be wider than `width`."""
    most = max(1, int(width / (CHARACTER * size)))
    whole = clean(text)
    return whole if len(whole) <= most else whole[: most - 1] + "…"


class Canvas:
    """A plane to draw on: x to the right, y down, `WIDTH` wide.

    Args:
        title: What it is, for screen readers and as the page's hint.
        description: What it shows, in words.
    """

    def __init__(self, *, title: str, description: str) -> None:
        self.height = 0.0
        self._root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
        self._root.set("class", "gl-drawing")
        SubElement(self._root, "title").text = clean(title)
        SubElement(self._root, "desc").text = clean(description)
        SubElement(self._root, "style").text = STYLE
        self._paper = self.rect(0, 0, WIDTH, 0, fill="paper")
        self._behind = SubElement(self._root, "g")
        self.height = 0.0

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "",
        stroke: str = "",
        dash: str = "",
        opacity: float = 1.0,
        corner: float = 0,
        tip: str = "",
    ) -> Element:
        """A rectangle; `tip` is shown where the pointer rests on it."""
        self._reach(y + height)
        shape = SubElement(
            self._root, "rect", x=_n(x), y=_n(y), width=_n(max(0.0, width)), height=_n(height)
        )
        if corner:
            shape.set("rx", _n(corner))
        return _paint(shape, fill=fill, stroke=stroke, dash=dash, opacity=opacity, tip=tip)

    def circle(
        self,
        x: float,
        y: float,
        radius: float,
        *,
        fill: str = "",
        stroke: str = "",
        thick: float = 1.5,
        tip: str = "",
    ) -> None:
        """A circle around (x, y)."""
        self._reach(y + radius)
        shape = SubElement(self._root, "circle", cx=_n(x), cy=_n(y), r=_n(radius))
        _paint(shape, fill=fill, stroke=stroke, thick=thick, tip=tip)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        stroke: str = "rule",
        thick: float = 1.5,
        dash: str = "",
        is_behind: bool = False,
    ) -> None:
        """A line through `points`, behind all shapes if wanted."""
        path = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self.path(path, stroke=stroke, thick=thick, dash=dash, is_behind=is_behind)

    def path(
        self,
        d: str,
        *,
        fill: str = "",
        stroke: str = "",
        thick: float = 1.5,
        dash: str = "",
        is_behind: bool = False,
    ) -> None:
        """A path in SVG's own words."""
        shape = SubElement(self._behind if is_behind else self._root, "path", d=d)
        _paint(shape, fill=fill, stroke=stroke, thick=thick, dash=dash)

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        *,
        stroke: str = "blue",
        bow: float = 0.0,
        gap: float = 0.0,
        dash: str = "",
    ) -> None:
        """An arrow that bows to its right by a share of its length and stops `gap` short."""
        (x0, y0), (x1, y1) = start, end
        middle = ((x0 + x1) / 2 - bow * (y1 - y0), (y0 + y1) / 2 + bow * (x1 - x0))
        x0, y0 = _towards((x0, y0), middle, gap)
        tip = _towards((x1, y1), middle, gap)
        x1, y1 = _towards(tip, middle, 7)  # where the head begins
        curve = f"M{_n(x0)} {_n(y0)}Q{_n(middle[0])} {_n(middle[1])} {_n(x1)} {_n(y1)}"
        self.path(curve, stroke=stroke, thick=1.8, dash=dash)
        across = ((tip[1] - y1) * 0.6, (x1 - tip[0]) * 0.6)
        corners = [tip, (x1 + across[0], y1 + across[1]), (x1 - across[0], y1 - across[1])]
        self.path("M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in corners) + "Z", fill=stroke)

    def text(
        self,
        x: float,
        y: float,
        text: object,
        *,
        size: float = 14,
        fill: str = "ink",
        anchor: str = "start",
        bold: bool = False,
        within: float = 0.0,
    ) -> None:
        """A line of text on the base line y, cut to `within` units."""
        self._reach(y + 0.3 * size)
        shape = SubElement(self._root, "text", {"x": _n(x), "y": _n(y), "font-size": _n(size)})
        shape.text = fit(text, within, size=size) if within else clean(text)
        if anchor != "start":
            shape.set("text-anchor", anchor)
        if bold:
            shape.set("font-weight", "600")
        if fill != "ink":
            shape.set("style", f"fill:var(--gl-{fill})")

    def heading(self, text: object, beside: object = "") -> float:
        """The drawing's first line, and a quieter second one; gives where the rest can begin."""
        self.text(12, 26, text, size=17, bold=True, within=WIDTH - 24)
        if beside == "":
            return 40
        return self.notes(47, [str(beside)], size=14) - 4

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str]]) -> float:
        """Colours and what they mean, wrapped at the right edge; gives the last line's y."""
        start = x
        for colour, meaning in entries:
            width = 24 + CHARACTER * 13.5 * len(meaning) + 14
            if x > start and x + width > WIDTH:
                x, y = start, y + 22
            edge = "rule" if colour in {"pale", "paper"} else ""
            self.rect(x, y - 11, 14, 14, fill=colour, stroke=edge, corner=2)
            self.text(x + 20, y + 1, meaning, size=13, fill="dim")
            x += width
        return y

    def notes(
        self, y: float, lines: Sequence[str], *, colour: str = "dim", size: float = 13
    ) -> float:
        """Remarks, each wrapped over the whole width; gives where the next thing can begin."""
        for line in lines:
            for part in _wrap(clean(line)[:LONGEST], int((WIDTH - 24) / (CHARACTER * size))):
                self.text(12, y, part, size=size, fill=colour)
                y += 19
        return y

    def svg(self) -> str:
        """The drawing as SVG that needs nothing else."""
        height = _n(self.height + 10)
        self._root.set("viewBox", f"0 0 {WIDTH} {height}")
        self._root.set("width", str(WIDTH))
        self._root.set("height", height)
        self._root.set("style", "max-width:100%;height:auto")
        self._paper.set("height", height)
        return tostring(self._root, encoding="unicode", short_empty_elements=False)

    def _reach(self, y: float) -> None:
        self.height = max(self.height, y)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """From seconds to places between `left` and `right`."""

    left: float
    right: float
    low_s: float
    high_s: float

    def x(self, at_s: float) -> float:
        """Where a moment lies."""
        share = (at_s - self.low_s) / max(self.high_s - self.low_s, 1e-12)
        return self.left + share * (self.right - self.left)

    def draw(self, canvas: Canvas, *, top: float, bottom: float) -> float:
        """Faint lines from `top` to `bottom` and their times below; gives where these end."""
        for tick_s in ticks(self.low_s, self.high_s):
            x = self.x(tick_s)
            canvas.line([(x, top), (x, bottom + 4)], thick=0.6, is_behind=True)
            canvas.text(
                min(x, WIDTH - 30), bottom + 19, _moment(tick_s), size=13, fill="dim",
                anchor="middle",
            )  # fmt: skip
        return bottom + 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under a head, as HTML where no drawing can be."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a notebook shows of a value.

    Attributes:
        canvas: The drawing.
        table: Its numbers.
        plain: One line, where there is nothing but text.
    """

    canvas: Canvas
    table: Table
    plain: str

    def svg(self) -> str:
        """The drawing alone."""
        return self.canvas.svg()

    def html(self) -> str:
        """The drawing, and its numbers folded below."""
        details = Element("details")
        SubElement(details, "summary").text = "numbers"
        table = SubElement(details, "table")
        for tag, rows in (("th", [self.table.head]), ("td", self.table.rows)):
            for row in rows:
                line = SubElement(table, "tr")
                for cell in row:
                    SubElement(line, tag).text = clean(cell)
        numbers = tostring(details, encoding="unicode", short_empty_elements=False)
        # names with dollar signs are no formulas
        return f'<div class="gl-drawing tex2jax_ignore">{self.svg()}{numbers}</div>'

    def bundle(self) -> dict[str, str]:
        """All forms by their MIME types."""
        return {"text/html": self.html(), "image/svg+xml": self.svg(), "text/plain": self.plain}

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.bundle()


def ticks(low: float, high: float, *, about: int = 6) -> list[float]:
    """Round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _moment(at_s: float) -> str:
    if abs(at_s) < 1e-12:
        return "0"
    if 0.9995 <= abs(at_s) < 120:
        return f"{at_s:.3g} s"
    if abs(at_s) < 1e-2:
        return f"{at_s * 1e3:.3g} ms"
    return format_seconds(at_s)


def _paint(
    shape: Element,
    *,
    fill: str = "",
    stroke: str = "",
    thick: float = 1.5,
    dash: str = "",
    opacity: float = 1.0,
    tip: str = "",
) -> Element:
    for colour in filter(None, (fill, stroke)):
        assert _COLOUR.fullmatch(colour), colour
    style = f"fill:var(--gl-{fill})" if fill else "fill:none"
    if stroke:
        style += f";stroke:var(--gl-{stroke});stroke-width:{thick:g}"
    if dash:
        style += f";stroke-dasharray:{dash}"
    if opacity != 1.0:
        style += f";opacity:{opacity:g}"
    shape.set("style", style)
    if tip:
        SubElement(shape, "title").text = clean(tip)
    return shape


def _towards(
    start: tuple[float, float], end: tuple[float, float], by: float
) -> tuple[float, float]:
    """The point `by` further from `start` towards `end`."""
    distance = math.dist(start, end) or 1.0
    share = by / distance
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])


def _wrap(text: str, most: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word[:most]}".strip()
    return lines


def _n(value: float) -> str:
    """A coordinate, short."""
    return f"{value:.1f}".removesuffix(".0")
