"""How values come to their pictures: another package draws them, and is found by its entry points.

A value knows no picture, and this package imports nothing that draws. What draws declares, in the
group `gemini_lab.display`:

- `ipython`: called with IPython's shell, it says there which values it shows, and how;
- `picture`: called with a value, it gives a `Picture`, or raises `TypeError` where it has none.
"""

import sys
from importlib.metadata import entry_points
from typing import Final, Protocol

from gemini_lab.errors import ConfigError

GROUP: Final = "gemini_lab.display"


class Picture(Protocol):
    """A value as it is shown."""

    def svg(self) -> str:
        """The drawing, with words for screen readers."""

    def png(self) -> bytes:
        """The drawing as the bytes of a PNG file."""

    def html(self, *, is_open: bool = False) -> str:
        """The drawing and, folded below it or not, its numbers."""


def picture(value: object) -> Picture:
    """The picture of a value.

    Raises:
        ConfigError: Nothing is installed that draws.
        TypeError: There is no picture of such a value.
    """
    for found in entry_points(group=GROUP, name="picture"):
        drawn: Picture = found.load()(value)
        return drawn
    raise ConfigError(
        f"nothing that is installed declares 'picture' in the group {GROUP!r}, so there is nothing "
        "that draws; install the package whole: pip install 'gemini-lab[figures]'"
    )


def show_in_ipython() -> None:
    """Have a cell that ends in a value show its picture; without IPython nothing happens.

    Where what draws is not installed, or lacks what it needs itself, values stay lines of text.
    """
    running = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    if (shell := running()) is None:
        return
    for found in entry_points(group=GROUP, name="ipython"):
        try:
            found.load()(shell)
        except ImportError:
            continue
