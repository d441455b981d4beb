"""Text for terminals, and pictures of values that another package draws.

That package is found by its entry points.
A value knows no picture, and this package imports nothing that draws. What draws declares, in the
group `gemini_lab.display`:

- `ipython`: called with IPython's shell, it says there which values it shows, and how;
- `picture`: called with a value, it gives a `Drawable`, or raises `TypeError` where it has none.
"""

import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

from gemini_lab.errors import ConfigError, in_lines

GROUP: Final = "gemini_lab.display"
NO_FORMULAS: Final = "mathjax_ignore tex2jax_ignore"
"""The class of HTML in which two dollar signs are dollars: of MathJax 3 and of MathJax 2."""
COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[mK]")
"""What colours a terminal's text, or empties the rest of its line."""
_NO_LETTER: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, with ESC and line ends; DEL; C1
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # order, no width
    "\ud800-\udfff\U000e0000-\U000e007f]"  # bytes that were no text; tags
)


def readable(text: str, *, has_lines: bool = False) -> str:
    r"""Return a text from a log, a script or another machine as letters and nothing else.

    A terminal would obey what is no letter: set its title, empty the screen, fill the clipboard,
    read from right to left, or begin a line that somebody else seems to have written. Such
    characters are shown as Python writes them, such as `\x1b`. Colours go, tabs become spaces.

    Args:
        text: Where it comes from does not matter; a second time changes nothing.
        has_lines: Whether line ends stay, because whoever prints it marks each line.
    """
    if text.isprintable():
        return text
    text = COLOUR.sub("", text).expandtabs(4)
    if has_lines:
        return "\n".join(_NO_LETTER.sub(_escaped, line) for line in text.split("\n"))
    return _NO_LETTER.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def tell(text: str) -> None:
    """Print text of one line or more, whoever its words come from."""
    print(readable(text, has_lines=True), flush=True)  # noqa: T201 - for who asked


def complain(text: str) -> None:
    """Print what stands against a command; a line below the first shows that it belongs to it."""
    head, *below = readable(text, has_lines=True).split("\n")
    if sys.stderr.isatty():  # which would break a line within a word
        head = in_lines(head)
    lines = [head, *(line if line[:1] in {"", " "} else f"  {line}" for line in below)]
    print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201 - for who asked


@contextmanager
def interrupt_says(told: Callable[[], str], *, now: str = "") -> Iterator[None]:
    """Give a `KeyboardInterrupt` that leaves the block a text, unless it has one.

    Args:
        told: Returns the text, for the handler to print: what was ended, what is kept, and how to
            go on.
        now: Printed at once, if the handler comes later.
    """
    try:
        yield
    except KeyboardInterrupt as already:
        if now:
            complain(now)
        raise KeyboardInterrupt(str(already) or told()) from None


LAST_LINES: Final = 12
"""Of a worker's output, those that are shown."""
LONGEST_LINE: Final = 300
"""Characters of a line that are shown; a traceback's lines are shorter."""
_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)(: |$)")
_FRAME: Final = re.compile(r'\s+File "(?!.*(site-packages|lib/python|<frozen)).*", line \d+')
"""A line of a traceback that names a place in a file of the user's own."""


def error_line(output: Sequence[str]) -> str:
    """The line of a worker's output that says what went wrong.

    That is the last one that looks like the end of a traceback (`ValueError: ...`), else the last
    one with anything on it; empty where nothing was printed.
    """
    said = [line for line in map(_plain, output) if line]
    raised = [line for line in said if _RAISED.match(line)]
    return (raised or said or [""])[-1]


def last_lines(output: Sequence[str], most: int = LAST_LINES) -> Iterator[str]:
    """The end of a worker's output, without colours and control characters, in order.

    Where a traceback ends deep in a library, its last frame in the user's own files comes first.
    """
    said = [_plain(line) for line in output]
    while said and not said[-1]:
        said.pop()
    before = len(said) - most
    if before > 0:
        yield f"... {before} line{'' if before == 1 else 's'} before"
        own = max((n for n, line in enumerate(said) if _FRAME.match(line)), default=len(said))
        if own < before:
            yield from (*said[own : min(own + 2, before)], "...")
    yield from said[-most:]


def _plain(line: str) -> str:
    text = readable(line).rstrip()
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + "…"


_WIDTH: Final = 80


def columns(meanings: Mapping[str, str]) -> str:
    """Each name with its meaning, which goes on below itself where a line does not take it."""
    indent = 4 + max(map(len, meanings), default=0)
    return "\n".join(
        line
        for name, text in meanings.items()
        for line in textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=f"  {name}".ljust(indent),
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
    )


class Drawable(Protocol):
    """A value as it is shown."""

    def svg(self) -> str:
        """Return the drawing, with words for screen readers."""

    def png(self) -> bytes:
        """Return the drawing as the bytes of a PNG file."""

    def html(self, *, is_open: bool = False) -> str:
        """Return the drawing and, folded below it or not, its numbers."""


def picture(value: object) -> Drawable:
    """Return the picture of a value.

    Raises:
        ConfigError: Nothing is installed that draws.
        TypeError: There is no picture of such a value.
    """
    for found in entry_points(group=GROUP, name="picture"):
        drawn: Drawable = found.load()(value)
        return drawn
    raise ConfigError(
        f"nothing that is installed declares 'picture' in the group {GROUP!r}, so there is nothing "
        "that draws; install the package whole: pip install 'gemini-lab[figures]'"
    )


def show_in_ipython() -> None:
    """Show a value's picture in cells that end in it; do nothing without IPython.

    Where what draws is not installed, or lacks what it needs itself, values stay lines of text.
    """
    if (shell := _shell()) is None:
        return
    for found in entry_points(group=GROUP, name="ipython"):
        try:
            found.load()(shell)
        except ImportError:
            continue


def in_notebook() -> bool:
    """Return whether there are cells below which a value can be shown."""
    return _shell() is not None


def show_below_cell(value: object) -> bool:
    """Show a value where a cell's output stands; `False` where there are no cells."""
    if not in_notebook():
        return False
    from IPython.display import display  # noqa: PLC0415 - it is there where a shell is

    display(value)
    return True


def _shell() -> Any:
    """IPython's shell, if this runs in one."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
