"""One line on standard error that says what takes long: on a terminal, and in a pipe."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from gemini_lab.display import readable

QUIET_S: Final = 2.0
"""A pipe gets a line of what takes longer, and then others, after twice the time each."""
SELDOM_S: Final = 60.0
"""It gets no fewer than this, where anything changes."""


class StatusLine:
    """One line on standard error that changes while something takes long.

    A terminal shows it in place. A pipe or a file gets it as lines, ever less often.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_live, self._clock = sys.stderr.isatty(), clock
        self._shown, self._pause_s = "", QUIET_S
        self._due_s = clock() + QUIET_S

    def show(self, text: str) -> None:
        """Show `text` in the place of what was shown before."""
        text = readable(text)
        if text == self._shown:
            return
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1  # a longer line could not be replaced
            self._put(("\r\x1b[K" if self._shown else "") + text[:width])
        elif self._clock() < self._due_s:
            return
        else:
            self._pause_s = min(2 * self._pause_s, SELDOM_S)
            self._due_s = self._clock() + self._pause_s
            self._put(f"{text}\n")
        self._shown = text

    def write(self, line: str) -> None:
        """Print a line that stays, on standard output."""
        shown = self._shown
        self.clear()
        print(line, flush=True)  # noqa: T201 - for the user
        if self._is_live and shown:
            self.show(shown)

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._is_live and self._shown:
            self._put("\r\x1b[K")
            self._shown = ""

    def end(self) -> None:
        """Leave the line on a terminal as it is; what is printed next begins below it."""
        if self._is_live and self._shown:
            self._put("\n")
            self._shown = ""

    def _put(self, text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)  # noqa: T201 - for the user


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """Show what takes seconds now; on a terminal the line goes when the block ends."""
    line, text = StatusLine(), f"{doing} ..."
    line.show(text)
    later = threading.Timer(QUIET_S, line.show, [text])  # for a pipe
    later.daemon = True
    later.start()
    try:
        yield
    finally:
        later.cancel()
        line.clear()
