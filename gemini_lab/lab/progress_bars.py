"""A run as it goes, on a terminal or below a cell: a bar, and a line for what goes wrong."""

import shutil
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Sequence
from html import escape
from queue import SimpleQueue
from typing import Final, Protocol

from tqdm import tqdm

from gemini_lab.display import last_lines
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.recovery.faults import is_of_the_network
from gemini_lab.report.recovery import kept_words, part_of
from gemini_lab.report.reducers.recoveries import exit_of
from gemini_lab.units import format_seconds

CELL_LINES: Final = 200
"""Lines that stay below a cell."""
INDENT: Final = "    "
"""Of lines that a terminal has among those that a script prints."""
TOLD: Final = (INDENT, "!! ", "<< ")
"""How lines on a run begin."""
QUOTED: Final = f"{INDENT}| "
"""How they begin where they show what somebody else said."""
WORDS_ONLY: Final = "{desc}"
WITH_BAR: Final = "{percentage:3.0f}% |{bar:24}| {desc}"
PACED: Final = 32
"""Iterations by which it is told how long the rest will take."""
CELL: Final = "font: 13px/1.6 var(--jp-ui-font-family, system-ui), sans-serif"
BAR: Final = "width: 16em; max-width: 40%; vertical-align: middle; margin-right: .8em"
LINES_STYLE: Final = (
    "margin: 4px 0 0; font-size: 12px; line-height: 1.45; white-space: pre-wrap; "
    "word-break: normal; overflow-wrap: anywhere"  # JupyterLab breaks words anywhere
)


class FollowableRun(Protocol):
    """A run that can be followed as it goes."""

    @property
    def iteration(self) -> int:
        """Newest iteration that every rank has finished."""

    @property
    def phase(self) -> str:
        """The run's phase."""

    @property
    def detail(self) -> str:
        """The step of a start or a recovery; empty if there is no more to say than `phase`."""

    @property
    def total(self) -> int | None:
        """Iterations after which the script's loop ends, if it says so."""

    @property
    def loss(self) -> float | None:
        """Newest loss, if the script logs one."""

    @property
    def failure(self) -> str | None:
        """Why it was given up, if it was."""

    @property
    def members(self) -> Sequence[str]:
        """The node on each position."""

    def is_over_within(self, timeout_s: float) -> bool:
        """Return whether the run is over; waits for that, but not longer than `timeout_s`."""

    def watch(self, watcher: Callable[[Entry], None]) -> Callable[[], None]:
        """Call `watcher` with every event from now on; gives what ends this."""

    def listen(self, listener: Callable[[int, list[str]], None]) -> Callable[[], None]:
        """Call `listener` with a rank and the lines it prints; gives what ends this."""


class ProgressBar(Protocol):
    """A display of a run: on a terminal, or below a cell."""

    def write(self, line: str) -> None:
        """Add a line, which stays."""

    def show(self, run: FollowableRun) -> None:
        """Show how far the run is."""

    def close(self, run: FollowableRun) -> None:
        """Show how it is for the last time."""


class TerminalBar:
    """A bar of tqdm where there is a total, and a line in words; other lines go above it."""

    def __init__(self, total: int | None, initial: int) -> None:
        self._total, self._pace = total, ProgressPace()
        self._bar = tqdm(
            total=total,
            initial=initial,
            bar_format=WORDS_ONLY if total is None else WITH_BAR,
            dynamic_ncols=True,
            disable=None,
        )

    def write(self, line: str) -> None:
        """Add a line above the bar."""
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        self._bar.write("\n".join(laid(each, columns) for each in line.split("\n")))

    def show(self, run: FollowableRun) -> None:
        """Move the bar."""
        self._pace.note(run.iteration, time.monotonic(), is_training=run.phase == "training")
        if self._total is None and run.total is not None:  # the script has said it by now
            self._total = self._bar.total = run.total
            self._bar.bar_format = WITH_BAR
        self._bar.set_description_str(words(run, self._total, self._pace), refresh=False)
        self._bar.n = run.iteration
        self._bar.refresh()

    def close(self, run: FollowableRun) -> None:  # noqa: ARG002 - `wait` says how it ended
        """Leave the bar as it is."""
        self._bar.close()


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

    def display(self, data: dict[str, str], *, raw: bool) -> None:
        """Show it."""

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        """Show this in its place."""


def bar_for(run: FollowableRun, total: int | None) -> ProgressBar:
    """Return a bar below the cell that runs, or on a terminal where none does."""
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
        self._pace = ProgressPace()
        self._shown = ""
        self._handle.display(_bundle("", "starting"), raw=True)

    def write(self, line: str) -> None:
        """Add lines; the newest stay."""
        for each in line.splitlines():
            self._left_out += len(self._newest) == CELL_LINES
            self._newest.append(each.removeprefix(INDENT))

    def show(self, run: FollowableRun) -> None:
        """Show it, if it is news."""
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
        """Show how it ended."""
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
    """A run that is shown from now on.

    Args:
        run: The run.
        total: Its iterations, the bar's full length.
        show_output: Whether to show what rank 0 prints.
    """

    def __init__(self, run: FollowableRun, *, total: int | None, show_output: bool) -> None:
        self._run = run
        self._bar = bar_for(run, total)
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._said: set[str] = set()
        self._repeats = TracebackFilter()
        self._endings = [run.watch(self._see)]
        if show_output:
            self._endings.append(run.listen(self._hear))

    def follow(self) -> None:
        """Show it until it is over."""
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


_OfNumbers = (
    events.Diverged
    | events.LossNotFinite
    | events.LossFinite
    | events.Rewound
    | events.RewindFailed
    | events.UpdatesUnkept
    | events.WrongSums
)


def _of_numbers(told: _OfNumbers) -> str | None:
    """Return a line on numbers that are not as they should be, or are again; one rank says it."""
    match told:
        case events.Diverged():
            likely = textwrap.wrap(f"likely: {told.cause}", 94)
            return "\n".join([f"!! DIVERGED: {told}", *(f"    | {line}" for line in likely)])
        case events.LossNotFinite():
            held = "; no version is saved until it is a number again" if told.is_held else ""
            return f"!! NOT FINITE: {told}{held}"
        case events.LossFinite():
            return f"    losses are numbers again from iteration {told.iteration} on"
        case events.Rewound():
            return None if told.rank else f"<< {told}"
        case events.WrongSums():
            back = f"; training goes back to version {told.version}" if told.goes_back else ""
            return None if told.rank else f"!! WRONG SUMS: {told}{back}"
        case events.RewindFailed():
            return None if told.rank else f"!! {told.reason}"
        case events.UpdatesUnkept():
            return None if told.rank else f"!! NOT PROTECTED: {told}"


def _of_ranks(told: events.RanksApart | events.CodeSeen) -> str | None:
    """Return a line on ranks that do not do what the others do, or did before; or nothing."""
    if isinstance(told, events.RanksApart):
        return f"!! {told.seen}"
    return f"!! OTHER CODE: {told}" if told.changed else None


def _of_leaving(told: events.NodeLeaving | events.DrainWaiting | events.NodeDrained) -> str:
    """Return a line on a node whose machine is to go."""
    match told:
        case events.NodeLeaving(name=name):
            return f"    {name} is to go: its ranks move as soon as they can"
        case events.DrainWaiting(name=name, reason=reason):
            return f"    {name} trains on: {reason}"
        case events.NodeDrained(name=name):
            return f"    {name} has no ranks left: its machine may be taken"


_OfSeats = (
    events.ResizeWanted
    | events.ResizeWaiting
    | events.Resized
    | events.ResizeRefused
    | events.ReplicasPlaced
    | events.ReplicasShort
)


def _of_seats(told: _OfSeats) -> str:
    """Return a line on how many nodes train, or on who keeps what."""
    match told:
        case events.ResizeWanted(nodes=nodes):
            return f"    the run is to have {nodes} nodes"
        case events.ResizeWaiting(nodes=nodes, reason=reason):
            return f"    not {nodes} nodes yet: {reason}"
        case events.Resized() | events.ReplicasPlaced():
            return f"    {told}"
        case events.ReplicasShort(reason=reason):
            return f"!! {reason}"
        case events.ResizeRefused(nodes=nodes, reason=reason):
            return f"!! not with {nodes} nodes, it goes back: {reason}"


def _of_recovery(told: events.OfRecovery) -> str | None:
    """Return a line on how a recovery goes."""
    match told:
        case events.RecoveryStarted(cause=events.DRAIN, lost=lost):
            return f"    the ranks of {', '.join(lost)} move"
        case events.RecoveryStarted(cause=events.RESIZE):
            return "    all ranks have stopped, to go on as another number"
        case events.RecoveryStarted(cause=events.REPLICAS):
            return "    all ranks have stopped, to go on with copies in other places"
        case events.RecoveryStarted(lost=lost, cause=cause):
            where = f" ({', '.join(lost)})" if lost else ""
            return f"    failure {told.recovery}: {cause.replace('_', ' ')}{where}"
        case events.RecoveryPlanned(recovery=0, tier="persistent", version=version):
            return f"    training begins from version {version} of the persistent tier"
        case events.ProcessesKept(ranks=ranks):
            return f"    {kept_words(ranks)}"
        case events.RecoveryWaiting(missing=missing, reason=reason):
            positions = ", ".join(map(str, missing))
            return f"    waiting: {reason or f'no machine for position {positions}'}"
        case events.RecoveryFinished(duration_s=took_s, version=version):
            return f"    training goes on after {format_seconds(took_s)}, from version {version}"
    return None


def _of_a_worker(entry: Entry, gone: events.WorkerExited) -> str | None:
    """Return lines on a worker that ended early; `None` if no more is known than that."""
    who = f"    rank {gone.rank} on {entry.node}"
    if gone.signal is not None:
        return f"{who} was killed ({gone.signal})"
    if not gone.output:
        return None
    exited = exit_of(entry, gone)
    if part_of(exited) == "lost its peers":  # what it printed says no more than that
        return f"{who} ended ({exited.how}), as it lost its peers"
    said = [f"{who} ended ({exited.how}): {exited.error}"]
    return "\n".join([*said, *(f"    | {line}" for line in last_lines(gone.output, LINES))])


def describe(entry: Entry) -> str | None:
    """Return lines for a user on an entry, if it is one that users want to see."""
    match entry.event:
        case events.Injected(failure=failure):
            return f"    injected: {failure.replace('_', ' ')} on {entry.node}"
        case events.WorkerExited() as gone:
            return _of_a_worker(entry, gone)
        case events.WorkerHung(seen=seen) if seen:
            return f"    hung: {seen}"
        case (
            events.Diverged()
            | events.LossNotFinite()
            | events.LossFinite()
            | events.Rewound()
            | events.RewindFailed()
            | events.UpdatesUnkept()
            | events.WrongSums()
        ) as told:
            return _of_numbers(told)
        case events.NodeLeaving() | events.DrainWaiting() | events.NodeDrained() as told:
            return _of_leaving(told)
        case (
            events.ResizeWanted()
            | events.ResizeWaiting()
            | events.Resized()
            | events.ResizeRefused()
            | events.ReplicasPlaced()
            | events.ReplicasShort()
        ) as told:
            return _of_seats(told)
        case events.RootElected(name=name):
            return f"    root agent is on {name}"
        case events.OfRecovery() as told:
            return _of_recovery(told)
        case events.PersistFailed(reason=reason, in_a_row=1):
            return f"    persistent tier: {reason}"
        case events.RanksApart() | events.CodeSeen() as told:
            return _of_ranks(told)
        case events.Unprotected(rank=0):
            return "    the script never called gemini_lab.protect: it ran unprotected"
        case events.Note(text=text):
            return textwrap.indent(text, "    ", lambda _: True)
    return None
