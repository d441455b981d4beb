"""What views take to draw with: the kit's colours, and text from a log made harmless."""

import re
from html import escape
from typing import Final

from gemini_lab_widgets.pictures.palette import (
    BLUE,
    DARK,
    FONT,
    GREEN,
    GREY,
    LIGHT,
    MARK,
    ORANGE,
    PINK,
    RED,
    SKY,
    YELLOW,
    css,
)

__all__ = [
    "BLUE",
    "DARK",
    "FONT",
    "GREEN",
    "GREY",
    "LIGHT",
    "MARK",
    "ORANGE",
    "PINK",
    "RED",
    "SKY",
    "YELLOW",
    "css",
    "esc",
    "shown",
]

LONGEST: Final = 40
"""Characters of a name that are shown."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_MATHS: Final = re.compile(r"\$(?=\$)|\\(?=[(\[])")


def esc(text: object, *, longest: int = 500) -> str:
    """Text of a log for use in HTML, as content or as an attribute's value."""
    return escape(shown(text, longest=longest))


def shown(text: object, *, longest: int = LONGEST) -> str:
    """Text of a log for use on a canvas or a list: of one line, not too long, and no formula.

    Bokeh reads `$$...$$` as a formula, for which it would load a typesetter from the network.
    """
    plain = _MATHS.sub(r"\g<0> ", _CONTROL.sub("\ufffd", str(text)))
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
