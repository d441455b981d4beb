"""What shows how far a run is: a bar on a terminal, or one below a notebook's cell."""

import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Sequence
from html import escape
from typing import Final, Protocol

from tqdm import tqdm

from gemini_lab.log.entry import Entry
from gemini_lab.units import format_seconds

CELL_LINES: Final = 200
"""Lines that stay below a cell."""
INDENT: Final = "    "
"""Of lines that a terminal has among those that a script prints."""
TOLD: Final = (INDENT, "!! ", "<< ")
"""How lines on a run begin."""
QUOTED: Final = f"{INDENT}| "
"""How they begin where they show what somebody else said."""
PACED: Final = 32
"""Iterations by which it is told how long the rest will take."""
CELL: Final = "font: 13px/1.6 var(--jp-ui-font-family, system-ui), sans-serif"
BAR: Final = "width: 16em; max-width: 40%; vertical-align: middle; margin-right: .8em"
LINES_STYLE: Final = (
    "margin: 4px 0 0; font-size: 12px; line-height: 1.45; white-space: pre-wrap; "
    "word-break: normal; overflow-wrap: anywhere"  # JupyterLab breaks words anywhere
)


class Followed(Protocol):
    """What can be followed as it goes: a `Run`."""

    @property
    def iteration(self) -> int:
        """Newest iteration that every rank has finished."""

    @property
    def phase(self) -> str:
        """What is going on."""

    @property
    def failure(self) -> str | None:
        """Why it was given up, if it was."""

    @property
    def members(self) -> Sequence[str]:
        """The node on each position."""

    def is_over_within(self, timeout_s: float) -> bool:
        """Whether the run is over; waits for that, but not longer than `timeout_s`."""

    def watch(self, watcher: Callable[[Entry], None]) -> Callable[[], None]:
        """Call `watcher` with every event from now on; gives what ends this."""

    def listen(self, listener: Callable[[int, list[str]], None]) -> Callable[[], None]:
        """Call `listener` with a rank and the lines it prints; gives what ends this."""


class Bar(Protocol):
    """What shows a run: on a terminal, or below a cell."""

    def write(self, line: str) -> None:
        """Add a line, which stays."""

    def show(self, run: Followed) -> None:
        """Show how far the run is."""

    def close(self, run: Followed) -> None:
        """Show how it is for the last time."""


class TerminalBar:
    """A bar of tqdm where there is a total, and a line in words; other lines go above it."""

    def __init__(self, total: int | None, initial: int) -> None:
        self._total, self._pace = total, Pace()
        self._bar = tqdm(
            total=total,
            initial=initial,
            bar_format="{desc}" if total is None else "{percentage:3.0f}% |{bar:24}| {desc}",
            dynamic_ncols=True,
            disable=None,
        )

    def write(self, line: str) -> None:
        """Add a line above the bar."""
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        self._bar.write("\n".join(laid(each, columns) for each in line.split("\n")))

    def show(self, run: Followed) -> None:
        """Move the bar."""
        self._pace.note(run.iteration, time.monotonic(), is_training=run.phase == "training")
        self._bar.set_description_str(words(run, self._total, self._pace), refresh=False)
        self._bar.n = run.iteration
        self._bar.refresh()

    def close(self, run: Followed) -> None:  # noqa: ARG002 - whoever waits says how it ended
        """Leave the bar as it is."""
        self._bar.close()


def laid(line: str, columns: int | None) -> str:
    """A line as so many columns show it: what is told of a run is broken between words."""
    is_told = line.startswith(TOLD) and not line.startswith(QUOTED)
    if columns is None or len(line) < columns or not is_told:
        return line
    return textwrap.fill(
        line,
        columns - 1,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


class Handle(Protocol):
    """What stands below a cell, as IPython's `DisplayHandle`."""

    def display(self, data: dict[str, str], *, raw: bool) -> None:
        """Show it."""

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        """Show this in its place."""


def bar_for(run: Followed, total: int | None) -> Bar:
    """A bar below the cell that runs, or on a terminal where none does."""
    if not type(sys.stderr).__module__.startswith("ipykernel"):
        return TerminalBar(total, run.iteration)
    from IPython.display import DisplayHandle  # noqa: PLC0415 - only a kernel has it

    return CellBar(DisplayHandle(), total)


class CellBar:
    """A bar below a cell, which goes on while other cells run.

    It is plain HTML, so a saved notebook keeps it as it was last.

    Args:
        handle: What stands below the cell.
        total: The run's iterations, where that is known.
    """

    def __init__(self, handle: Handle, total: int | None) -> None:
        self._handle, self._total = handle, total
        self._newest: deque[str] = deque(maxlen=CELL_LINES)
        self._left_out = 0
        self._pace = Pace()
        self._shown = ""
        self._handle.display(_bundle("", "starting"), raw=True)

    def write(self, line: str) -> None:
        """Add lines; the newest stay."""
        for each in line.splitlines():
            self._left_out += len(self._newest) == CELL_LINES
            self._newest.append(each.removeprefix(INDENT))

    def show(self, run: Followed) -> None:
        """Show it, if it is news."""
        self._pace.note(run.iteration, time.monotonic(), is_training=run.phase == "training")
        plain = words(run, self._total, self._pace)
        if run.failure is not None:
            plain = f"{_done(run, self._total)}, failed: {run.failure}"
        html = self._html(run, plain)
        if html != self._shown:
            self._shown = html
            self._handle.update(_bundle(html, plain), raw=True)

    def close(self, run: Followed) -> None:
        """Show how it ended."""
        self.show(run)

    def _html(self, run: Followed, words: str) -> str:
        size = "" if self._total is None else f" max={self._total} value={run.iteration}"
        bar = f'<progress{size} aria-label="iterations done" style="{BAR}"></progress>'
        if run.phase == "over" and self._total is None:
            bar = ""  # one without an end would look as if it went on
        before = f"({self._left_out} lines before)\n" if self._left_out else ""
        lines = escape(before + "\n".join(self._newest))
        said = f'<pre style="{LINES_STYLE}">{lines}</pre>' if lines else ""
        return f'<div style="{CELL}">{bar}{escape(words)}{said}</div>'


class Pace:
    """How fast iterations are done, of the newest ones."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=PACED)

    def note(self, iteration: int, at_s: float, *, is_training: bool) -> None:
        """Take in how far a run is now; what a failure cost is no pace."""
        if not is_training or (self._seen and iteration < self._seen[-1][1]):
            self._seen.clear()
        if is_training and (not self._seen or iteration > self._seen[-1][1]):
            self._seen.append((at_s, iteration))

    def left_s(self, total: int | None) -> float | None:
        """Seconds until `total` iterations are done; `None` where that cannot be said."""
        if total is None or self.each_s is None:
            return None
        return max(0.0, (total - self._seen[-1][1]) * self.each_s)

    @property
    def each_s(self) -> float | None:
        """Seconds an iteration; `None` where that cannot be said."""
        if len(self._seen) < 2:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last_s - first_s) / (last - first)


def words(run: Followed, total: int | None, pace: Pace) -> str:
    """How far a run is, in one line."""
    parts = [_done(run, total), run.phase]
    if run.phase != "over":
        each_s, left_s = pace.each_s, pace.left_s(total)
        parts += [] if each_s is None else [f"one in {format_seconds(each_s)}"]
        parts += [] if left_s is None else [f"about {format_seconds(round(left_s))} to go"]
        parts += [f"on {', '.join(run.members)}"] if run.members else []
    return " · ".join(parts)


def _done(run: Followed, total: int | None) -> str:
    return f"{run.iteration}{'' if total is None else f' of {total}'} iterations"


def _bundle(html: str, plain: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": plain}
