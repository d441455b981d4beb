"""A board to draw on: a heading, and below it panels, legends and remarks, one under the other."""

import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import Affine2D

from gemini_lab.units import format_bytes, format_seconds
from gemini_lab_widgets.pictures.palette import LIGHT, on
from gemini_lab_widgets.pictures.picture import DPI, SMALL, Picture, Table, clean

WIDTH: Final = 760.0
"""Of every picture in pixels; a page scales it down, never up."""
MARGIN: Final = 12.0
LEFT: Final = 190.0
"""Where rows begin that have names beside them."""
RIGHT: Final = WIDTH - 34.0
LINE: Final = 20.0
LONGEST: Final = 500
"""Characters of a remark."""
CHARACTER: Final = 0.56
"""Mean width of a character by the font's size."""


def fit(text: object, width: float, *, size: float = SMALL) -> str:
    """Return `text`, cut with an ellipsis if it would be wider than `width`."""
    most = max(1, int(width / (CHARACTER * size)))
    whole = clean(text)
    return whole if len(whole) <= most else whole[: most - 1] + "…"


class Board:
    """Panels under a heading; each takes its place below what is there already.

    Args:
        title: What it is: the first line, and for screen readers.
        beside: A quieter second line.
        description: What it shows, in words, for who cannot see it.
    """

    def __init__(self, *, title: str, beside: str = "", description: str = "") -> None:
        self.title, self.description = title, description or beside
        self.figure = Figure()
        self.y = 4.0
        self._below_top = Affine2D().scale(1 / DPI, -1 / DPI)
        self.pixels = self._below_top + self.figure.dpi_scale_trans
        self._panels: list[tuple[Axes, float, float, float, float]] = []
        self._tips: dict[str, str] = {}
        self.text(MARGIN, 22, fit(title, WIDTH - 2 * MARGIN, size=17), size=17, bold=True)
        self.y += 30
        if beside:
            self.notes([beside], size=14)
            self.y += 4

    def axes(
        self,
        height: float,
        *,
        left: float = LEFT,
        right: float = RIGHT,
        above: float = 6.0,
        below: float = 26.0,
    ) -> Axes:
        """Add a panel of `height`, with room above and below it for its title and ticks."""
        panel = self.figure.add_axes((0.0, 0.0, 1.0, 1.0), label=f"panel {len(self._panels)}")
        top = self.y + above
        self._panels.append((panel, left, right, top, height))
        self.y = top + height + below
        return panel

    def plane(self, height: float, *, above: float = 6.0) -> Axes:
        """Add a panel over the whole width, in pixels from its top left, without axes."""
        panel = self.axes(height, left=0, right=WIDTH, above=above, below=0)
        panel.set(xlim=(0, WIDTH), ylim=(height, 0))
        panel.axis("off")
        return panel

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = SMALL,
        colour: str = LIGHT.ink,
        bold: bool = False,
    ) -> None:
        """Write a line whose base line is `y` below the current place."""
        self.figure.text(
            x,
            self.y + y,
            text,
            size=size,
            color=colour,
            weight="bold" if bold else "normal",
            transform=self.pixels,
        )

    def notes(self, lines: Iterable[str], *, colour: str = LIGHT.dim, size: float = SMALL) -> None:
        """Write remarks, each wrapped over the whole width."""
        most = int((WIDTH - 2 * MARGIN) / (CHARACTER * size))
        for line in lines:
            text = textwrap.shorten(clean(line), LONGEST, placeholder="…")
            for part in textwrap.wrap(text, most, break_on_hyphens=False):
                self.text(MARGIN, 16, part, size=size, colour=colour)
                self.y += LINE

    def legend(self, entries: Sequence[tuple[str | Artist, str]], *, left: float = MARGIN) -> None:
        """Add what colours or marks mean, in as many columns as there is room for."""
        if not entries:
            return
        meanings = [clean(meaning) for _, meaning in entries]
        widest = 34 + CHARACTER * SMALL * max(map(len, meanings)) + 12
        columns = max(1, min(len(entries), int((WIDTH - left) / widest)))
        rows = -(-len(entries) // columns)
        handles = [_swatch(mark) if isinstance(mark, str) else mark for mark, _ in entries]
        across = list(
            itertools.chain.from_iterable(
                zip(handles[i::columns], meanings[i::columns], strict=True) for i in range(columns)
            )
        )  # matplotlib fills columns, people read rows
        self.figure.legend(
            [handle for handle, _ in across],
            [meaning for _, meaning in across],
            ncols=columns,
            loc="upper left",
            bbox_to_anchor=(left, self.y),
            bbox_transform=self.pixels,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.1,
            handleheight=1.1,
            handletextpad=0.5,
            columnspacing=1.4,
            labelspacing=0.4,
        )
        self.y += LINE * rows + 4

    def tip(self, artist: Artist, text: str) -> None:
        """Show `text` where the pointer rests on `artist`."""
        name = f"tip-{len(self._tips)}"
        artist.set_gid(name)
        self._tips[name] = text

    def picture(self, *, tables: Sequence[Table], plain: str, **more: Any) -> Picture:
        """Return the picture of all that is on the board."""
        height = self.y + 8
        self.figure.set_size_inches(WIDTH / DPI, height / DPI)
        self._below_top.translate(0, height / DPI)
        for panel, left, right, top, tall in self._panels:
            bottom = height - top - tall
            panel.set_position(
                (left / WIDTH, bottom / height, (right - left) / WIDTH, tall / height)
            )
        return Picture(
            figure=self.figure,
            title=self.title,
            description=self.description,
            plain=plain,
            tables=tables,
            tips=self._tips,
            **more,
        )


def _swatch(colour: str) -> Patch:
    is_faint = colour in {LIGHT.pale, LIGHT.paper}
    return Patch(facecolor=colour, edgecolor=LIGHT.rule if is_faint else colour)


def rows(panel: Axes, names: Sequence[str], *, width: float = LEFT - 20) -> None:
    """Name rows 0, 1, ... from the top down, flush with the picture's left edge."""
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.set_yticks(range(len(names)), [fit(name, width) for name in names], ha="left")
    panel.tick_params(axis="y", pad=width + 8, labelcolor=LIGHT.ink)
    panel.spines[["left", "bottom"]].set_visible(False)


def seconds_axis(panel: Axes, end_s: float) -> None:
    """Draw a time axis from 0, with faint lines up from its moments."""
    panel.set_xlim(0, max(end_s, 1e-9))
    panel.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda at_s, _: moment(at_s)))
    panel.grid(axis="x", visible=True)


def laid_end_to_end(
    panel: Axes,
    row: float,
    parts: Sequence[tuple[str, float]],
    *,
    height: float,
    start: float = 0.0,
) -> list[BarContainer]:
    """Draw the parts of a bar, each a colour and a length; return a container each."""
    bars = []
    for colour, length in parts:
        bars.append(
            panel.barh(
                row,
                length,
                left=start,
                height=height,
                color=colour,
                edgecolor=LIGHT.paper,
                linewidth=0.8,
            )
        )
        start += length
    return bars


def bytes_axis(panel: Axes, most_bytes: int) -> None:
    """Draw an axis upwards from 0 in round binary steps, with faint lines across."""
    step_bytes = 2 ** max(0, math.ceil(math.log2(max(most_bytes, 1) / 4)))
    panel.set_yticks(range(0, most_bytes + 1, step_bytes))
    panel.yaxis.set_major_formatter(
        FuncFormatter(lambda size, _: format_bytes(int(size)) if size else "0")
    )
    panel.grid(axis="y", visible=True)


def inside(panel: Axes, x: float, y: float, text: str, *, colour: str, bold: bool = False) -> None:
    """Write text in the middle of a mark of `colour`."""
    panel.text(
        x,
        y,
        text,
        ha="center",
        va="center_baseline",
        size=12,
        color=on(colour),
        weight="bold" if bold else "normal",
    )


def moment(at_s: float) -> str:
    """Return a time on an axis, short."""
    if abs(at_s) < 1e-12:
        return "0"
    if 0.9995 <= abs(at_s) < 120:
        return f"{at_s:.3g} s"
    if abs(at_s) < 1e-2:
        return f"{at_s * 1e3:.3g} ms"
    return format_seconds(at_s)
