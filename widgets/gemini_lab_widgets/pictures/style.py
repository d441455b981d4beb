"""How matplotlib draws for us, whatever a notebook has set for its own plots."""

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

from gemini_lab.errors import ConfigError
from gemini_lab_widgets.pictures.palette import LIGHT

try:
    import matplotlib as mpl
except ImportError as error:
    raise ConfigError(
        "pictures are drawn with matplotlib, which is not installed; "
        "pip install 'gemini-lab[figures]'"
    ) from error

P = ParamSpec("P")
T = TypeVar("T")
DPI: Final = 72
"""So that a point is a pixel of the SVG."""
SMALL: Final = 13
SETTINGS: Final[dict[str, Any]] = {
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "figure.facecolor": LIGHT.paper,
    "savefig.facecolor": LIGHT.paper,
    "axes.facecolor": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": SMALL,
    "text.color": LIGHT.ink,
    "text.parse_math": False,  # a name with dollar signs is no formula
    "axes.titlesize": SMALL,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": LIGHT.ink,
    "axes.labelsize": SMALL,
    "axes.labelcolor": LIGHT.dim,
    "axes.edgecolor": LIGHT.rule,
    "axes.linewidth": 1.0,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": False,
    "grid.color": LIGHT.grid,
    "grid.linewidth": 1.0,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.color": LIGHT.rule,
    "ytick.color": LIGHT.rule,
    "xtick.labelcolor": LIGHT.dim,
    "ytick.labelcolor": LIGHT.dim,
    "xtick.major.pad": 6,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.labelcolor": LIGHT.dim,
    "lines.linewidth": 2.0,
    "hatch.linewidth": 1.2,
    "path.simplify": True,
    "svg.fonttype": "none",  # text stays text: it can be selected, searched and read aloud
    "svg.hashsalt": "gemini_lab",
}
_ONE_AT_A_TIME: Final = threading.RLock()
"""matplotlib's settings belong to the process: two threads would restore each other's."""


@contextmanager
def styled() -> Iterator[None]:
    """Our settings, for as long as something is drawn or written."""
    with _ONE_AT_A_TIME, mpl.rc_context(), warnings.catch_warnings():
        # the browser has the glyphs that matplotlib's own font lacks
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        yield


def drawn(draw: Callable[P, T]) -> Callable[P, T]:
    """`draw`, with our settings."""

    @functools.wraps(draw)
    def with_settings(*args: P.args, **kwargs: P.kwargs) -> T:
        with styled():
            return draw(*args, **kwargs)

    return with_settings
