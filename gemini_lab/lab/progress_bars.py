"""A run as it goes, on a terminal or below a cell: a bar, and a line for what goes wrong."""

import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from html import escape
from queue import SimpleQueue
from typing import Any, Final, Protocol

from gemini_lab.display import last_lines
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.recovery.faults import is_of_the_network
from gemini_lab.report.recovery import kept_words, part_of
from gemini_lab.report.reducers.recoveries import exit_of
from gemini_lab.status_line import StatusLine
from gemini_lab.units import format_seconds

CELL_LINES: Final = 200
"""Lines that stay below a cell."""
INDENT: Final = "    "
"""Of lines that a terminal has among those that a script prints."""
TOLD: Final = (INDENT, "!! ", "<< ")
"""How lines on a run begin."""
QUOTED: Final = f"{INDENT}| "
"""How they begin where they show what somebody else said."""
BAR_LENGTH: Final = 24
PACED: Final = 32
"""Iterations by which it is told how long the rest will take."""
CELL: Final = "font: 13px/1.6 var(--jp-ui-font-family, system-ui), sans-serif"
BAR: Final = "width: 16em; max-width: 40%; vertical-align: middle; margin-right: .8em"
LINES_STYLE: Final = (
    "margin: 4px 0 0; font-size: 12px; line-height: 1.45; white-space: pre-wrap; "
    "word-break: normal; overflow-wrap: anywhere"  # JupyterLab breaks words anywhere
)


class FollowableRun(Protocol):
    """The part of a `FollowedRun` that a bar shows."""

    @property
    def iteration(self) -> int: ...
    @property
    def phase(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def total(self) -> int | None: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def failure(self) -> str | None: ...
    @property
    def members(self) -> Sequence[str]: ...
    def is_over_within(self, timeout_s: float) -> bool: ...
    def watch(self, watcher: Callable[[Entry], None]) -> Callable[[], None]: ...
    def listen(self, listener: Callable[[int, list[str]], None]) -> Callable[[], None]: ...


class ProgressBar(Protocol):
    """A display of a run: on a terminal, or below a cell."""

    def write(self, line: str) -> None:
        """Add a line, which stays."""

    def show(self, run: FollowableRun) -> None:
        """Show how far the run is."""

    def close(self, run: FollowableRun) -> None:
        """Show how it is for the last time."""


class TerminalBar:
    """A bar where there is a total, and a line in words; other lines go above it."""

    def __init__(self, total: int | None) -> None:
        self._total, self._pace, self._line = total, ProgressPace(), StatusLine()

    def write(self, line: str) -> None:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        self._line.write("\n".join(laid(each, columns) for each in line.split("\n")))

    def show(self, run: FollowableRun) -> None:
        self._pace.note(run.iteration, time.monotonic(), is_training=run.phase == "training")
        self._total = self._total or run.total  # the script may say it by now
        self._line.show(bar(run.iteration, self._total) + words(run, self._total, self._pace))

    def close(self, run: FollowableRun) -> None:
        self.show(run)
        self._line.end()


def bar(done: int, total: int | None) -> str:
    """Return how much of `total` is done, as a bar; nothing if there is no total."""
    if total is None:
        return ""
    share = min(done / max(total, 1), 1.0)
    return f"{share:4.0%} |{'█' * int(share * BAR_LENGTH):{BAR_LENGTH}}| "


def laid(line: str, columns: int | None) -> str:
    """Return a line as so many columns show it: what is told of a run is broken between words."""
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
    """A display below a cell, as IPython's `DisplayHandle`."""

    def display(self, data: dict[str, str], *, raw: bool) -> None: ...
    def update(self, data: dict[str, str], *, raw: bool) -> None: ...


def bar_for(total: int | None) -> ProgressBar:
    """Return a bar below the cell that runs, or on a terminal where none does."""
    if not type(sys.stderr).__module__.startswith("ipykernel"):
        return TerminalBar(total)
    from IPython.display import DisplayHandle  # noqa: PLC0415 - only a kernel has it

    return CellBar(DisplayHandle(), total)


class CellBar:
    """A bar below a cell, which goes on while other cells run.

    It is plain HTML, so a saved notebook keeps it as it was last.
    """

    def __init__(self, handle: Handle, total: int | None) -> None:
        self._handle, self._total = handle, total
        self._newest: deque[str] = deque(maxlen=CELL_LINES)
        self._left_out = 0
        self._pace = ProgressPace()
        self._shown = ""
        self._handle.display(_bundle("", "starting"), raw=True)

    def write(self, line: str) -> None:
        for each in line.splitlines():
            self._left_out += len(self._newest) == CELL_LINES
            self._newest.append(each.removeprefix(INDENT))

    def show(self, run: FollowableRun) -> None:
        self._pace.note(run.iteration, time.monotonic(), is_training=run.phase == "training")
        self._total = self._total or run.total
        plain = words(run, self._total, self._pace)
        if run.failure is not None:
            plain = f"{_done(run, self._total)}, failed: {run.failure}"
        html = self._html(run, plain)
        if html != self._shown:
            self._shown = html
            self._handle.update(_bundle(html, plain), raw=True)

    def close(self, run: FollowableRun) -> None:
        self.show(run)

    def _html(self, run: FollowableRun, words: str) -> str:
        size = "" if self._total is None else f" max={self._total} value={run.iteration}"
        bar = f'<progress{size} aria-label="iterations done" style="{BAR}"></progress>'
        if run.phase == "over" and self._total is None:
            bar = ""  # one without an end would look as if it went on
        before = f"({self._left_out} lines before)\n" if self._left_out else ""
        lines = escape(before + "\n".join(self._newest))
        said = f'<pre style="{LINES_STYLE}">{lines}</pre>' if lines else ""
        return f'<div style="{CELL}">{bar}{escape(words)}{said}</div>'


class ProgressPace:
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
        """Return seconds until `total` iterations are done; `None` where that cannot be said."""
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


def words(run: FollowableRun, total: int | None, pace: ProgressPace) -> str:
    """Return how far a run is, in one line."""
    phase = f"{run.phase}: {run.detail}" if run.detail else run.phase
    parts = [_done(run, total), phase]
    if run.phase != "over":
        parts += [] if run.loss is None else [f"loss {run.loss:.4g}"]
        each_s, left_s = pace.each_s, pace.left_s(total)
        parts += [] if each_s is None else [f"one in {format_seconds(each_s)}"]
        parts += [] if left_s is None else [f"about {format_seconds(round(left_s))} to go"]
        parts += [f"on {', '.join(run.members)}"] if run.members else []
    return " · ".join(parts)


def _done(run: FollowableRun, total: int | None) -> str:
    return f"{run.iteration}{'' if total is None else f' of {total}'} iterations"


def _bundle(html: str, plain: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": plain}


# -- what is said of a run -------------------------------------------------------------------------

GLANCE_S: Final = 0.1
LINES: Final = 6
"""Of a worker's last lines, those that are shown when it ends."""
HELD: Final = "; no version is saved until it is a number again"


class TracebackFilter:
    """Lets each traceback among lines through once, and of those that repeat it the last line.

    So it does of one that only tells that another rank is gone.
    """

    def __init__(self) -> None:
        self._held: list[str] = []  # the lines of a traceback, before its error
        self._said: set[str] = set()

    def new(self, line: str) -> list[str]:
        """Return the lines to show after this one has come."""
        if line.startswith("Traceback (most recent call last)"):
            before, self._held = self._held, [line]
            return before
        if not self._held:
            return [line]
        self._held.append(line)
        if line.startswith(" ") or not line:
            return []
        whole = self.rest()
        if is_of_the_network(line):
            return [f"rank 0 lost its peers: {line}"]
        told = "\n".join(whole)
        if told in self._said:
            return [f"{line} (the same again)"]
        self._said.add(told)
        return whole

    def rest(self) -> list[str]:
        """Return the lines that are left of a traceback that came to no end."""
        held, self._held = self._held, []
        return held


class Shown:
    """A run that is shown from now on."""

    def __init__(self, run: FollowableRun, *, total: int | None, show_output: bool) -> None:
        self._run = run
        self._bar = bar_for(total)
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._said: set[str] = set()
        self._repeats = TracebackFilter()
        self._endings = [run.watch(self._see)]
        if show_output:
            self._endings.append(run.listen(self._hear))

    def follow(self) -> None:
        is_last = False
        try:
            while not is_last:
                is_last = self._run.is_over_within(GLANCE_S)
                while not self._lines.empty():
                    self._bar.write(self._lines.get())
                sys.stdout.flush()  # who follows a file sees a line when it is said
                self._bar.show(self._run)
        finally:
            for end in self._endings:
                end()
            for line in self._repeats.rest():
                self._bar.write(line)
            self._bar.close(self._run)

    def _see(self, entry: Entry) -> None:
        """Say it; what was said once with more lines beneath is said again without them."""
        if told := describe(entry):
            head, *beneath = told.splitlines()
            below = "\n".join(beneath)
            self._lines.put(head if below in self._said or not below else told)
            self._said.add(below)

    def _hear(self, rank: int, said: list[str]) -> None:
        for line in said if rank == 0 else ():
            for new in self._repeats.new(line):
                self._lines.put(new)


def show_progress(
    run: FollowableRun, *, total: int | None = None, show_output: bool = False
) -> None:
    """Show `run` from this thread until it is over; see `FollowedRun.progress`.

    A file that a terminal's output was sent to gets the lines without the bar.
    """
    Shown(run, total=total, show_output=show_output).follow()


def _gone(gone: events.WorkerExited, node: str) -> str | None:
    """Return lines on a worker that ended early; `None` if no more is known than that."""
    who = f"    rank {gone.rank} on {node}"
    if gone.signal is not None:
        return f"{who} was killed ({gone.signal})"
    if not gone.output:
        return None
    exited = exit_of(Entry(at_s=0.0, node=node, event=gone), gone)
    if part_of(exited) == "lost its peers":  # what it printed says no more than that
        return f"{who} ended ({exited.how}), as it lost its peers"
    said = [f"{who} ended ({exited.how}): {exited.error}"]
    return "\n".join([*said, *(f"    | {line}" for line in last_lines(gone.output, LINES))])


def _diverged(told: events.Diverged) -> str:
    likely = textwrap.wrap(f"likely: {told.cause}", 94)
    return "\n".join([f"!! DIVERGED: {told}", *(f"    | {line}" for line in likely)])


def _begun(told: events.RecoveryStarted) -> str:
    names = ", ".join(told.lost)
    where = f" ({names})" if names else ""
    planned = {
        events.DRAIN: f"the ranks of {names} move",
        events.RESIZE: "all ranks have stopped, to go on as another number",
        events.REPLICAS: "all ranks have stopped, to continue with copies in other places",
    }
    failed = f"failure {told.recovery}: {told.cause.replace('_', ' ')}{where}"
    return f"    {planned.get(told.cause, failed)}"


def _waiting(told: events.RecoveryWaiting) -> str:
    positions = ", ".join(map(str, told.missing))
    return f"    waiting: {told.reason or f'no machine for position {positions}'}"


def _first(line: Callable[[Any], str]) -> Callable[[Any, str], str | None]:
    """Return a line of rank 0 alone, as all ranks say the same."""
    return lambda told, _: None if told.rank else line(told)


_LINES: Final[Mapping[type[events.Event], Callable[[Any, str], str | None]]] = {
    events.Injected: lambda told, node: f"    injected: {told.failure.replace('_', ' ')} on {node}",
    events.WorkerExited: _gone,
    events.WorkerHung: lambda told, _: f"    hung: {told.seen}" if told.seen else None,
    events.Diverged: lambda told, _: _diverged(told),
    events.LossNotFinite: lambda told, _: f"!! NOT FINITE: {told}{HELD * told.is_held}",
    events.LossFinite: lambda told, _: (
        f"    losses are numbers again from iteration {told.iteration} on"
    ),
    events.Rewound: _first(lambda told: f"<< {told}"),
    events.RewindFailed: _first(lambda told: f"!! {told.reason}"),
    events.UpdatesUnkept: _first(lambda told: f"!! NOT PROTECTED: {told}"),
    events.WrongSums: _first(
        lambda told: (
            f"!! WRONG SUMS: {told}"
            + (f"; training goes back to version {told.version}" if told.goes_back else "")
        )
    ),
    events.RanksApart: lambda told, _: f"!! {told.seen}",
    events.CodeSeen: lambda told, _: f"!! OTHER CODE: {told}" if told.changed else None,
    events.RankSlow: lambda told, _: f"{'   ' if told.is_over else '!!'} {told}",
    events.NodeAiling: lambda told, _: f"{'   ' if told.is_over else '!!'} {told}",
    events.NodeLeaving: lambda told, _: (
        f"    {told.name} is to go: its ranks move as soon as they can"
    ),
    events.DrainWaiting: lambda told, _: f"    {told.name} trains on: {told.reason}",
    events.NodeDrained: lambda told, _: (
        f"    {told.name} has no ranks left: its machine may be taken"
    ),
    events.ResizeWanted: lambda told, _: f"    the run is to have {told.nodes} nodes",
    events.ResizeWaiting: lambda told, _: f"    not {told.nodes} nodes yet: {told.reason}",
    events.Resized: lambda told, _: f"    {told}",
    events.ResizeRefused: lambda told, _: (
        f"!! not with {told.nodes} nodes, it goes back: {told.reason}"
    ),
    events.ReplicasPlaced: lambda told, _: f"    {told}",
    events.ReplicasShort: lambda told, _: f"!! {told.reason}",
    events.RootElected: lambda told, _: f"    root agent is on {told.name}",
    events.RecoveryStarted: lambda told, _: _begun(told),
    events.RecoveryPlanned: lambda told, _: (
        f"    training begins from version {told.version} of the persistent tier"
        if told.recovery == 0 and told.tier == "persistent"
        else None
    ),
    events.ProcessesKept: lambda told, _: f"    {kept_words(told.ranks)}",
    events.RecoveryWaiting: lambda told, _: _waiting(told),
    events.RecoveryFinished: lambda told, _: (
        f"    training goes on after {format_seconds(told.duration_s)}, from version {told.version}"
    ),
    events.PersistFailed: lambda told, _: (
        f"    persistent tier: {told.reason}" if told.in_a_row == 1 else None
    ),
    events.Unprotected: _first(
        lambda _: "    the script never called gemini_lab.protect: it ran unprotected"
    ),
    events.Note: lambda told, _: textwrap.indent(told.text, "    ", lambda _: True),
}
"""What a user is told of each kind of event, given it and its node; `None` for nothing."""


def describe(entry: Entry) -> str | None:
    """Return lines for a user on an entry, if it is one that users want to see."""
    line = _LINES.get(type(entry.event))
    return None if line is None else line(entry.event, entry.node)
