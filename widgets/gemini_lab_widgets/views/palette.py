"""Colours, light and dark, and how text that comes from a log is made harmless.

The colours are Okabe and Ito's, which colour-blind people tell apart; none carries a meaning alone.
"""

import re
from dataclasses import dataclass
from html import escape
from typing import Final

BLUE: Final = "#0072b2"
SKY: Final = "#56b4e9"
GREEN: Final = "#009e73"
YELLOW: Final = "#d9c400"
ORANGE: Final = "#e69f00"
RED: Final = "#d55e00"
PINK: Final = "#cc79a7"
GREY: Final = "#8c8c8c"

FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
LONGEST: Final = 40
"""Characters of a name that are shown."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_MATHS: Final = re.compile(r"\$(?=\$)|\\(?=[(\[])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours that differ between light and dark.

    Attributes:
        ink: Text.
        dim: Text of less weight.
        rule: Axes and outlines.
        grid: Lines behind the data.
        pale: Areas behind text.
        paper: The page.
        white: On strong colours.
    """

    ink: str
    dim: str
    rule: str
    grid: str
    pale: str
    paper: str
    white: str = "#ffffff"

    @property
    def sheets(self) -> list[str]:
        """The colours as CSS variables, for what is shown and all that is in it."""
        colours = (f"--gl-{name}: {getattr(self, name)};" for name in self.__slots__)
        return [f":host {{ {' '.join(colours)} background: var(--gl-paper); }}"]


LIGHT: Final = Theme(
    ink="#1b1b1b", dim="#565656", rule="#9a9a9a", grid="#e3e6ea", pale="#eef1f4", paper="#ffffff"
)
DARK: Final = Theme(
    ink="#f2f2f2", dim="#bdbdbd", rule="#7d7d7d", grid="#33383e", pale="#2a2f35", paper="#141414"
)


def esc(text: object, *, longest: int = 500) -> str:
    """Text of a log for use in HTML, as content or as an attribute's value."""
    return escape(shown(text, longest=longest))


def shown(text: object, *, longest: int = LONGEST) -> str:
    """Text of a log for use on a canvas or a list: of one line, not too long, and no formula.

    Bokeh reads `$$...$$` as a formula, for which it would load a typesetter from the network.
    """
    plain = _MATHS.sub(r"\g<0> ", _CONTROL.sub("\ufffd", str(text)))
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
