"""The errors of gemini_lab, drawn as a tree.

    GeminiError
    ├── ConfigError        a setting cannot work: found before anything starts
    ├── UnsupportedError   the engine or script has something that cannot be protected
    ├── CapacityError      memory, disk or nodes are short
    ├── LaunchError        nodes could not be started
    │   └── MissingError   for what they need is not there: the same call fails again
    ├── IntegrityError     bytes are not the bytes that were written
    ├── UnreadError        bytes that were written cannot be read now: that proves no damage
    ├── MessageError       another process said something that is no message
    ├── CannotGoOnError    a worker's process cannot be kept: another one starts in its place
    └── RunFailedError     a run ended without finishing

A message says what was asked, what stood against it (with numbers), and the way out.
"""

import shutil
import textwrap
from typing import ClassVar, Final


class GeminiError(Exception):
    """Anything that gemini_lab itself raises."""

    # Whether the same call may succeed later, on other machines or with more memory.
    may_pass: ClassVar[bool] = False

    def __init__(self, *args: object) -> None:
        """Keep what is said; a text from outside that is in it is not printed by the megabyte."""
        super().__init__(*(shortened(a, LONGEST) if isinstance(a, str) else a for a in args))


class ConfigError(GeminiError, ValueError):
    """A setting, or a combination of settings, cannot work."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows; IPython calls it by this name. Scripts show a traceback."""
        return [in_lines(f"{type(self).__name__}: {self}")]


class UnsupportedError(GeminiError):
    """The training engine uses something whose state cannot be protected."""


class CapacityError(GeminiError):
    """Memory, disk or nodes do not suffice for what was asked."""

    may_pass = True


class LaunchError(GeminiError):
    """Nodes, or a service that they need, could not be started or reached."""

    may_pass = True


class MissingError(LaunchError):
    """A program, a host or a right that nodes need is not there."""

    may_pass = False


class IntegrityError(GeminiError):
    """Stored bytes differ from the bytes that were written, or are incomplete."""


class UnreadError(GeminiError):
    """Stored bytes cannot be read now. This proves no damage: another try may read them."""

    may_pass = True


class MessageError(GeminiError):
    """Message that cannot be decoded, or is not of this version."""


class CannotGoOnError(GeminiError):
    """A worker's process ends, and another one starts in its place."""


class RunFailedError(GeminiError):
    """A run ended without finishing its script."""


WIDE: Final = 80
"""Characters of a line, at most: JupyterLab and terminals break longer ones within a word."""


def kind_of(value: object) -> str:
    """Name a value's type for a message: `an int`, `a str`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


LONGEST: Final = 8_000
"""Characters of an error of ours, and of any text that a message carries, at most."""
SHOWN: Final = 80
"""Characters of a value in a message, at most: who gave it knows the rest."""
TOLD: Final = 2_000
"""The same of a text that somebody else wrote: another library's error, a script's."""


def shown(value: object, most: int = SHOWN) -> str:
    """Return a value as a message shows it: as `repr` does, and cut where that is long."""
    if isinstance(value, int) and abs(value).bit_length() > 4 * most:
        return f"a whole number of {abs(value).bit_length()} bits"  # Python refuses to print some
    if isinstance(value, str | bytes):
        value = value[: most + 1]  # the rest costs nothing then
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shortened(text: str, most: int = TOLD) -> str:
    """Return a text with its middle left out where it is longer than a message may carry."""
    if len(text) <= most:
        return text
    head, tail = most * 3 // 4, most // 8
    left_out = len(text) - head - tail
    return f"{text[:head]} ... ({left_out:,} characters are left out here) ... {text[-tail:]}"


def in_lines(text: str) -> str:
    """Break a sentence between words for a notebook or a terminal."""
    wide = min(WIDE, shutil.get_terminal_size().columns)
    return textwrap.fill(text, wide, break_long_words=False, break_on_hyphens=False)
