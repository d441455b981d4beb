"""What the marks of a figure mean, as HTML: it wraps where a figure's own legend is cut off."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gemini_lab_widgets.views.palette import FONT, css, esc

_LINE: Final = "var(--gl-paper) 0 1.5px, transparent 1.5px 4px"
_THIN: Final = "var(--gl-paper) 0 1px, transparent 1px 4px"
LINES: Final = {
    "vertical_line": f"repeating-linear-gradient(90deg, {_LINE})",
    "horizontal_line": f"repeating-linear-gradient(0deg, {_LINE})",
    "right_diagonal_line": f"repeating-linear-gradient(-45deg, {_LINE})",
    "dot": "radial-gradient(var(--gl-paper) 1.3px, transparent 1.5px) 0 0 / 5px 5px",
    "cross": f"repeating-linear-gradient(0deg, {_THIN}), repeating-linear-gradient(90deg, {_THIN})",
}
"""Bokeh's hatches in CSS."""
CSS: Final = """
:host { font: 13px FONT; color: var(--gl-ink); }
ul { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 4px 0; padding: 0; }
i { display: inline-block; width: 16px; height: 12px; border: 1px solid var(--gl-rule);
  border-radius: 2px; margin-right: 6px; vertical-align: -1px; }
i.line { height: 0; border: 0; border-top: 3px solid; vertical-align: 3px; }
b { margin-right: 6px; font-weight: 400; }
""".replace("FONT", FONT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One mark.

    Attributes:
        label: What it means.
        colour: Its own; empty for an outline.
        hatch: Bokeh's name of the lines on it.
        mark: A character in place of an area, or `"line"`.
    """

    label: str
    colour: str
    hatch: str = ""
    mark: str = ""


def html(keys: Iterable[Key]) -> str:
    """The list of marks."""
    lines = "".join(f"<li>{_mark(key)}{esc(key.label)}</li>" for key in keys)
    return f"<ul>{lines}</ul>" if lines else ""


def _mark(key: Key) -> str:
    if key.mark == "line":
        return f'<i class="line" style="border-color:{css(key.colour)}"></i>'
    if key.mark:
        return f'<b style="color:{css(key.colour)}" aria-hidden="true">{key.mark}</b>'
    return f'<i style="background:{ground(key.colour, key.hatch)}"></i>'


def ground(colour: str, hatch: str) -> str:
    """A colour, empty for none, under Bokeh's hatch of that name, as a background in CSS."""
    return ", ".join(filter(None, [LINES.get(hatch, ""), css(colour) or "transparent"]))
