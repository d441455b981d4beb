"""The parts that views share: a heading, figures that follow the theme, and words."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from bokeh.core.properties import field, value
from bokeh.document import Document
from bokeh.layouts import column
from bokeh.models import (
    CategoricalColorMapper,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    Div,
    HoverTool,
    Range1d,
)
from bokeh.plotting import figure

from gemini_lab.display import last_lines
from gemini_lab.report.tables import Tables
from gemini_lab.report.tables.recoveries import FailureMark
from gemini_lab_widgets.pictures.palette import DARK, FONT, GREY, LIGHT, RED, css, esc, shown

WAITS: Final = "waits"
"""The CSS class of a root whose view is not made yet."""
LONGEST_WORDS: Final = 2_000
CSS: Final = """
:host { color: var(--gl-ink); font-family: FONT; }
h3 { font-size: 18px; font-weight: 650; margin: 0 0 2px 0; }
p { font-size: 14px; line-height: 1.4; margin: 0 0 4px 0; color: var(--gl-dim); }
p b, td b { color: var(--gl-ink); }
""".replace("FONT", FONT)
"""Of all text beside the figures."""

INPUT: Final = """
:host { font-family: FONT; }
label, .bk-input-group { color: var(--gl-ink); font-size: 14px; }
.bk-input { color: var(--gl-ink); background-color: var(--gl-pale); font-size: 14px;
  border-color: var(--gl-rule); }
.bk-menu { color: var(--gl-ink); background-color: var(--gl-pale); }
""".replace("FONT", FONT)
COUNT: Final = """
const steps = [[1e6, 1e6, " M"], [1e4, 1e3, " k"], [0, 1, ""]];
const [, size, name] = steps.find(([least]) => Math.abs(tick) >= least);
return (tick / size).toLocaleString("en", {maximumFractionDigits: 3}) + name;
"""
"""Large whole numbers in few characters, such as 2.5 M."""

EDGE: Final = ".bk-Canvas { clip-path: inset(1px 0 0 1px); }"
"""Bokeh clears a canvas from half a pixel on: what it drew there amid the layout stays."""
_LINE: Final = "var(--gl-paper) 0 1.5px, transparent 1.5px 4px"
_THIN: Final = "var(--gl-paper) 0 1px, transparent 1px 4px"
HATCH_LINES: Final = {
    "vertical_line": f"repeating-linear-gradient(90deg, {_LINE})",
    "horizontal_line": f"repeating-linear-gradient(0deg, {_LINE})",
    "right_diagonal_line": f"repeating-linear-gradient(-45deg, {_LINE})",
    "dot": "radial-gradient(var(--gl-paper) 1.3px, transparent 1.5px) 0 0 / 5px 5px",
    "cross": f"repeating-linear-gradient(0deg, {_THIN}), repeating-linear-gradient(90deg, {_THIN})",
}
"""Bokeh's hatches in CSS."""
LEGEND_CSS: Final = """
:host { font: 13px FONT; color: var(--gl-ink); }
ul { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 4px 0; padding: 0; }
i { display: inline-block; width: 16px; height: 12px; border: 1px solid var(--gl-rule);
  border-radius: 2px; margin-right: 6px; vertical-align: -1px; }
i.line { height: 0; border: 0; border-top: 3px solid; vertical-align: 3px; }
b { margin-right: 6px; font-weight: 400; }
""".replace("FONT", FONT)
OUTPUT_CSS: Final = f"""
.bk-clearfix {{ display: block; width: 100%; }}
p.error {{ font-size: 14px; font-weight: 600; color: var(--gl-ink); margin: 8px 0 4px;
  overflow-wrap: anywhere; }}
p.error::before {{ content: "✕"; color: {css(RED)}; margin-right: 6px; }}
pre.output {{ font: 12.5px/1.45 ui-monospace, 'DejaVu Sans Mono', monospace; color: var(--gl-ink);
  background: var(--gl-pale); border-left: 5px solid {css(RED)}; border-radius: 6px;
  margin: 0 0 10px; padding: 8px 12px; white-space: pre-wrap; overflow-wrap: anywhere; }}
"""
FAILURE_COLUMNS: Final = "x text colour fade"
_FEW: Final = 12
"""So many lines hide nothing; more are paler, as what they cross is what people look at."""
_PALEST: Final = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendKey:
    """One mark.

    Attributes:
        colour: Its own; empty for an outline.
        hatch: Bokeh's name of the lines on it.
        mark: A character in place of an area, or `"line"`.
    """

    label: str
    colour: str
    hatch: str = ""
    mark: str = ""


def legend_html(keys: Iterable[LegendKey]) -> str:
    """Return the list of marks."""
    lines = "".join(f"<li>{_mark(key)}{esc(key.label)}</li>" for key in keys)
    return f"<ul>{lines}</ul>" if lines else ""


def _mark(key: LegendKey) -> str:
    if key.mark == "line":
        return f'<i class="line" style="border-color:{css(key.colour)}"></i>'
    if key.mark:
        return f'<b style="color:{css(key.colour)}" aria-hidden="true">{key.mark}</b>'
    return f'<i style="background:{hatched(key.colour, key.hatch)}"></i>'


def hatched(colour: str, hatch: str) -> str:
    """Return a colour, empty for none, under Bokeh's hatch of that name, as a background in CSS."""
    return ", ".join(filter(None, [HATCH_LINES.get(hatch, ""), css(colour) or "transparent"]))


def count_iterations(plot: Any) -> None:
    """Show iterations on a figure's x axis."""
    plot.xaxis.axis_label = "iteration"
    plot.xaxis.formatter = CustomJSTickFormatter(code=COUNT)


class View:
    """One part of the tables, drawn.

    Args:
        root: An empty column, whose first CSS class says so until `attach` is called.

    Attributes:
        words: The same in words, for those who cannot see it.
        keys: What its marks mean.
    """

    title: ClassVar[str]

    def __init__(self, *, root: Any = None) -> None:
        self.words = ""
        self.keys: tuple[LegendKey, ...] = ()
        self._follows: list[tuple[Any, str, Any, Any]] = []
        self._figures: list[Any] = []
        self._kinds = CategoricalColorMapper(
            factors=[*LIGHT.kinds], palette=[*LIGHT.kinds.values()], nan_color="#00000000"
        )
        self._change(self._kinds, "palette", [*LIGHT.kinds.values()], [*DARK.kinds.values()])
        self._head = Div(stylesheets=[CSS], sizing_mode="stretch_width", disable_math=True)
        self._parts = [self._head, *self._build()]
        self.root = root or column(*self._parts, sizing_mode="stretch_width")
        self._follow(self.root, stylesheets="sheets")
        self.root.html_attributes = {"role": "region", "aria-label": self.title}
        self._say("")

    def _build(self) -> Sequence[Any]:
        """Make the figures."""
        raise NotImplementedError

    def update(self, tables: Tables) -> None:
        """Draw a snapshot."""
        raise NotImplementedError

    def set_class(self, name: str) -> None:
        """Tell the page's style sheet what of the view there is to see."""
        waits = [one for one in self.root.css_classes if one == WAITS]
        self.root.css_classes = [*waits, *filter(None, [name])]

    def attach(self) -> None:
        """Put the figures into a root that was there before them."""
        self.root.update(children=self._parts, css_classes=self.root.css_classes[1:])

    def join(self, document: Document) -> None:
        """Connect the view with a page of its own, which has an address."""

    # -- light and dark ------------------------------------------------------------------------

    def _follow(self, model: Any, **colours: str) -> None:
        """Give properties of a model colours of the theme, now and whenever it changes.

        Each is the name of an area's, or the colour in light of a kind of thing.
        """
        for name, colour in colours.items():
            light, night = (
                theme.sheets if colour == "sheets" else theme.of(colour) for theme in (LIGHT, DARK)
            )
            self._change(model, name, light, night)

    def _change(self, model: Any, name: str, light: Any, night: Any) -> None:
        self._follows.append((model, name, light, night))
        setattr(model, name, light)

    def _kind(self, column: str) -> Any:
        """Return a column of kinds' colours on a light page, in the theme's."""
        return field(column, self._kinds)

    # -- parts ---------------------------------------------------------------------------------

    def _figure(self, *, height: int, x: Any = None, y: Any = None, **options: Any) -> Any:
        """Return an empty figure in the view's style, with ranges that stand still."""
        plot = figure(
            height=height,
            sizing_mode="stretch_width",
            toolbar_location=None,
            tools="",
            x_range=Range1d(0, 1) if x is None else x,
            y_range=Range1d(0, 1) if y is None else y,
            background_fill_color=None,
            border_fill_color=None,
            outline_line_color=None,
            stylesheets=[EDGE],
            **options,
        )
        plot.min_border = 6
        for axis in plot.axis:
            axis.axis_label_text_font_style = "normal"
            axis.axis_label_text_font_size = axis.major_label_text_font_size = "13px"
            axis.axis_label_text_font = axis.major_label_text_font = FONT
            axis.minor_tick_line_color = None
            self._follow(axis, axis_label_text_color="dim", major_label_text_color="ink")
            self._follow(axis, axis_line_color="rule", major_tick_line_color="rule")
        for grid in plot.grid:
            self._follow(grid, grid_line_color="grid")
        self._figures.append(plot)
        return plot

    def _text(
        self, plot: Any, x: str, y: str | float, data: Any, *, colour: str = "", **options: Any
    ) -> Any:
        """Write the column `text` in a colour of the theme, or as `options` say."""
        style = {"text_font": value(FONT), "text_font_size": value("13px"), "text": "text"}
        glyphs = plot.text(x=x, y=y, source=data, **(style | options))
        glyphs.nonselection_glyph = glyphs.selection_glyph = None
        if colour:
            self._follow(glyphs.glyph, text_color=colour)
        return glyphs

    def _legend(self) -> Any:
        """Return the place in which `_tell` explains the marks of the figures."""
        self._keys = Div(
            stylesheets=[LEGEND_CSS], sizing_mode="stretch_width", disable_math=True, visible=False
        )
        return self._keys

    def _tell(self, keys: Iterable[LegendKey]) -> None:
        """Explain the marks that can be seen now."""
        self.keys = tuple(keys)
        text = legend_html(self.keys)
        if self._keys.text != text:
            self._keys.text = text
        self._keys.visible = bool(text)

    def _show(self, drawn: Sequence[Any], plot: Any) -> None:
        """Show a figure if there is anything in it; a page gives a view without it less room."""
        plot.visible = bool(drawn)
        self.set_class("" if drawn else "nothing")

    def _say(self, words: str, *, notes: Sequence[str] = (), brief: str = "") -> None:
        """Show a description in words, which stands for the figures where these are not seen.

        Args:
            words: Plain text; names in it need no escaping.
            notes: Remarks beneath it.
            brief: What to show in place of `words` where the figure can be seen.
        """
        self.words = shown(words, longest=LONGEST_WORDS)
        lines = [esc(line, longest=LONGEST_WORDS) for line in (brief or words, *notes)]
        text = f"<h3>{esc(self.title)}</h3>" + "".join(f"<p>{line}</p>" for line in lines if line)
        if self._head.text != text:
            self._head.text = text
        told = shown(" ".join((self.words, *notes)), longest=LONGEST_WORDS)
        attributes = {"role": "img", "aria-label": f"{self.title}: {told}"}
        for plot in self._figures:
            if plot.html_attributes != attributes:
                plot.html_attributes = attributes


BARS_CSS: Final = """
.plot { position: relative; padding: 2px 0 22px; margin: 4px 8px 0 0; }
.tick { position: absolute; top: 0; bottom: 16px; border-left: 1px solid var(--gl-grid); }
.tick span { position: absolute; top: 100%; transform: translateX(-50%); font-size: 13px; }
.limit { position: absolute; top: 0; bottom: 18px; border-left: 3px dashed RED; }
.row { position: relative; margin-bottom: 7px; font-size: 13px; overflow-wrap: anywhere; }
.row .brief { display: none; }
.track { position: relative; height: 18px; margin-top: 1px; }
.track i { position: absolute; top: 0; bottom: 0; min-width: 1px; box-sizing: border-box; }
.track i.hollow { border: 1px solid var(--gl-rule); }
.track b { position: absolute; top: 6px; width: 8px; height: 8px; margin-left: -5px;
  border: 1.5px solid var(--gl-ink); border-radius: 50%; background: var(--gl-paper); }
.axis { text-align: center; font-size: 13px; margin: 2px 0 0; }
.bk-clearfix { display: block; width: 100%; container-type: inline-size; }
@container (max-width: 440px) { .row .text:has(+ .brief) { display: none; }
  .row .brief { display: inline; } }
""".replace("RED", css(RED))
TICKS: Final = 6
"""Of an axis, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    """A part of a bar, from where to where."""

    start: float
    end: float
    colour: str  # empty for an outline
    told: str  # what the pointer shows
    hatch: str = ""
    alpha: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """A bar and its label."""

    text: str
    parts: Sequence[BarPart]
    brief: str = ""  # the label in a narrow card, if it is another one
    dots: Sequence[tuple[float, str]] = ()  # marks on the bar, each with what the pointer shows


class BarsView(View):
    """A bar of parts end to end for each row of a table, its label above it.

    It is text, so that it follows a slider that moves: hatches on a canvas take 40 ms to draw.
    """

    AXIS: ClassVar[str]

    def _bars(self) -> Any:
        self.bars = Div(
            stylesheets=[CSS + BARS_CSS], sizing_mode="stretch_width", disable_math=True
        )
        self._figures.append(self.bars)
        return self.bars

    def _draw_bars(
        self, rows: Sequence[BarRow], *, reach: float, unit: str = "", limit: float | None = None
    ) -> None:
        """Draw rows on an axis that ends at `reach`; a line marks the `limit`."""
        reach = reach or 1.0
        axis = f"<p class=axis>{esc(unit or self.AXIS)}</p>"
        mark = (
            ""
            if limit is None
            else f"<div class=limit style='left:{100 * limit / reach:.3f}%'></div>"
        )
        ticks = "".join(
            f"<div class=tick style='left:{100 * at / reach:.3f}%'><span>{at:g}</span></div>"
            for at in ticks_to(reach)
        )
        text = "".join(_row(row, reach) for row in rows)
        text = f"<div class=plot>{ticks}{mark}{text}</div>{axis}" if rows else ""
        if self.bars.text != text:
            self.bars.text = text
        self._show(rows, self.bars)


def _row(row: BarRow, reach: float) -> str:
    brief = f"<span class=brief>{esc(row.brief)}</span>" if row.brief else ""
    parts = "".join(
        f"<i title='{esc(part.told)}'{'' if part.colour else ' class=hollow'} style='"
        f"left:{100 * part.start / reach:.3f}%;width:{100 * (part.end - part.start) / reach:.3f}%;"
        f"background:{hatched(part.colour, part.hatch)};opacity:{part.alpha:g}'></i>"
        for part in row.parts
    )
    dots = "".join(
        f"<b title='{esc(told)}' style='left:{100 * at / reach:.3f}%'></b>" for at, told in row.dots
    )
    return (
        f"<div class=row><span class=text>{esc(row.text)}</span>{brief}"
        f"<div class=track>{parts}{dots}</div></div>"
    )


def ticks_to(reach: float) -> list[float]:
    """Return round numbers from 0 to the end of an axis."""
    step = 10.0 ** math.floor(math.log10(reach / TICKS))
    step *= next(times for times in (1, 2, 5, 10) if reach / (step * times) < TICKS)
    return [step * number for number in range(int(reach / step) + 1)]


def put(source: ColumnDataSource, data: Mapping[str, Sequence[Any]]) -> None:
    """Give a source new columns, if they differ from what it has."""
    columns = {name: list(values) for name, values in data.items()}
    if columns != dict(source.data):
        source.data = columns


def source(columns: str) -> ColumnDataSource:
    """Return an empty source with these columns, their names set apart by spaces."""
    return ColumnDataSource({name: [] for name in columns.split()})


def stretch(span: Any, start: float, end: float) -> None:
    """Move a range, if it is elsewhere."""
    if span.start != start:
        span.start = start
    if span.end != end:
        span.end = end


def hover(plot: Any, renderers: Sequence[Any], *rows: tuple[str, str]) -> None:
    """Show these rows where the pointer is; values are escaped by Bokeh."""
    tool = HoverTool(renderers=list(renderers), tooltips=list(rows), point_policy="follow_mouse")
    plot.add_tools(tool)


FOLLOW_THEME: Final = """
    const recolour = () => {
        const isDark = document.documentElement.dataset.theme === "dark"
        for (const [model, name, light, dark] of follows) model[name] = isDark ? dark : light
    }
    document.addEventListener("gemini-theme", recolour)
    recolour()
"""


def switch(view: View) -> CustomJS:
    """Return what recolours a view in the browser, now and at each change of the page's theme."""
    follows = [list(one) for one in view._follows]  # noqa: SLF001 - its own kind
    return CustomJS(args={"follows": follows}, code=FOLLOW_THEME)


def output_html(error: str, output: Sequence[str]) -> str:
    """Return a worker's error, and its last lines beneath; empty if it printed nothing."""
    lines = "\n".join(esc(line) for line in last_lines(output))
    said = f"<p class=error>{esc(error)}</p>" if error else ""
    return said + (f"<pre class=output>{lines}</pre>" if lines else "")


def failure_columns(marks: Sequence[FailureMark]) -> dict[str, list[Any]]:
    """Return the columns of failures: red for failures, grey for what was asked for."""
    fade = min(1.0, max(_PALEST, _FEW / max(1, len(marks))))
    return {
        "x": [mark.iteration for mark in marks],
        "text": [shown(mark.text, longest=80) for mark in marks],
        "colour": [GREY if mark.is_planned else RED for mark in marks],
        "fade": [fade] * len(marks),
    }


def last_iteration(marks: Sequence[FailureMark], iteration: int) -> int:
    """Return the last iteration to draw: `iteration`, or a mark's that is later."""
    return max([iteration, *(mark.iteration for mark in marks)])


def failures_in_words(marks: Sequence[FailureMark]) -> str:
    """Return how many there are: `2 failures and 1 planned move`."""
    count = Counter(mark.is_planned for mark in marks)
    said = [
        f"{count[is_planned]:,} {one}{'s' if count[is_planned] != 1 else ''}"
        for is_planned, one in ((False, "failure"), (True, "planned move"))
        if count[is_planned]
    ]
    return " and ".join(said) or "no failures"
