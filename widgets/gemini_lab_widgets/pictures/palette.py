"""The colours of everything that is drawn, one for each kind of thing.

They are Okabe and Ito's, which colour-blind people tell apart; none carries a meaning alone. Static
pictures and live views take them from here.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
MARK: Final = "#1a1a1a"
"""Text on a light colour, in light and dark."""

FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours that differ between light and dark.

    Attributes:
        dim: Text of less weight.
        rule: Axes and outlines.
        grid: Lines behind the data.
        pale: Areas behind text.
        kinds: What each kind of thing has, by its colour on a light page.
    """

    ink: str
    dim: str
    rule: str
    grid: str
    pale: str
    paper: str
    kinds: Mapping[str, str]

    def of(self, colour: str) -> str:
        """Return an area's colour by its name, or a kind's by its colour on a light page."""
        return self.kinds.get(colour) or str(getattr(self, colour))

    @property
    def sheets(self) -> list[str]:
        """Colours as CSS variables, and the font, for what is shown and all that is in it.

        What is in it cannot say its own font: Bokeh has all of it take on its parent's.
        """
        look = f"background: var(--gl-paper); font-family: {FONT};"
        return [f":host {{ {self.variables} {look} }}"]

    @property
    def variables(self) -> str:
        """Return colours as CSS variables, which `css` and names such as `--gl-ink` refer to."""
        areas = {name: colour for name, colour in asdict(self).items() if name != "kinds"}
        kinds = {_name(light): here for light, here in self.kinds.items()}
        return " ".join(f"--gl-{name}: {colour};" for name, colour in (areas | kinds).items())


ON_DARK: Final = {
    BLUE: "#4aa8e0",
    SKY: "#8ccdf2",
    GREEN: "#2fc79b",
    YELLOW: "#f0e442",
    ORANGE: "#f0b030",
    RED: "#f0793a",
    PINK: "#e09cc3",
    GREY: "#a6a6a6",
    MARK: "#141414",
}
"""What the colour of a kind of thing turns into on a dark page."""
_PAPERS: Final = "#ffffff", "#141414"
LIGHT: Final = Theme(
    ink="#1b1b1b",
    dim="#565656",
    rule="#9a9a9a",
    grid="#e3e6ea",
    pale="#eef1f4",
    paper=_PAPERS[0],
    kinds={colour: colour for colour in (*ON_DARK, _PAPERS[0])},
)
DARK: Final = Theme(
    ink="#f2f2f2",
    dim="#bdbdbd",
    rule="#7d7d7d",
    grid="#33383e",
    pale="#2a2f35",
    paper=_PAPERS[1],
    kinds=ON_DARK | {_PAPERS[0]: _PAPERS[1]},
)

TRAINING: Final = GREY
"""Training's own traffic and time."""
IDLE: Final = GREEN
REPLICAS: Final = (BLUE, SKY, PINK, YELLOW)
"""Checkpoint traffic that idle time hides, replica by replica."""
FELT: Final = ORANGE
"""What of it training waits for."""
FAILURE: Final = RED
STEPS: Final = {
    "detect": ORANGE,
    "fence": GREY,
    "inventory": GREY,
    "plan": GREY,
    "serialise": YELLOW,
    "reserve": SKY,
    "start": GREEN,
    "rejoin": GREEN,
    "retrieve": BLUE,
    "warm_up": PINK,
    "redo": RED,
}
"""The steps of a recovery, named as in the paper's Fig. 14."""
TIERS: Final = {
    "local": BLUE,
    "memory": BLUE,
    "peer": SKY,
    "persistent": ORANGE,
    "start": GREY,
}
"""Where a shard is loaded from."""
POLICIES: Final = {"Gemini": BLUE, "HighFreq": ORANGE, "Strawman": RED}
OTHERS: Final = (BLUE, ORANGE, GREEN, PINK, RED, SKY, YELLOW)
"""What has no colour of its own takes these in turn."""


def css(colour: str) -> str:
    """Return the colour of a kind of thing in a style sheet of a page, in light and dark."""
    return f"var(--gl-{_name(colour)})" if colour in LIGHT.kinds else colour


def _name(colour: str) -> str:
    return colour.removeprefix("#")


def on(colour: str) -> str:
    """Return the colour of text on `colour`: at least 4.5 times as light or dark, as WCAG asks."""
    if colour in {LIGHT.paper, LIGHT.pale}:
        return LIGHT.ink
    return LIGHT.paper if colour == BLUE else MARK


# -- text of a log, made harmless

LONGEST: Final = 40
"""Characters of a name that are shown."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_MATHS: Final = re.compile(r"\$(?=\$)|\\(?=[(\[])")


def esc(text: object, *, longest: int = 500) -> str:
    """Return text of a log for use in HTML, as content or as an attribute's value."""
    return escape(shown(text, longest=longest))


def shown(text: object, *, longest: int = LONGEST) -> str:
    """Return text of a log for a canvas or a list: one line, not too long, no formula.

    Bokeh reads `$$...$$` as a formula, for which it would load a typesetter from the network.
    """
    plain = _MATHS.sub(r"\g<0> ", _CONTROL.sub("\ufffd", str(text)))
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"
