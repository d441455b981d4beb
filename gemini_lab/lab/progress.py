"""A run as it goes, on a terminal or below a cell: a bar, and a line for what goes wrong."""

import sys
import textwrap
from queue import SimpleQueue
from typing import Final

from gemini_lab.display import last_lines
from gemini_lab.lab.bars import Followed, bar_for
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.recovery.faults import is_of_the_network
from gemini_lab.report.recovery import kept_words, part_of
from gemini_lab.report.reducers.recoveries import exit_of
from gemini_lab.units import format_seconds

GLANCE_S: Final = 0.1
LINES: Final = 6
"""Of a worker's last lines, those that are shown when it ends."""


class Repeats:
    """Lets each traceback among lines through once, and of those that repeat it the last line.

    So it does of one that only tells that another rank is gone.
    """

    def __init__(self) -> None:
        self._held: list[str] = []  # the lines of a traceback, before its error
        self._said: set[str] = set()

    def new(self, line: str) -> list[str]:
        """What to show now that there is this line, too."""
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
        """What is left of a traceback that came to no end."""
        held, self._held = self._held, []
        return held


class Shown:
    """A run that is shown from now on.

    Args:
        run: The run.
        total: Its iterations, the bar's full length.
        show_output: Whether to show what rank 0 prints.
    """

    def __init__(self, run: Followed, *, total: int | None, show_output: bool) -> None:
        self._run = run
        self._bar = bar_for(run, total)
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._said: set[str] = set()
        self._repeats = Repeats()
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


def show_progress(run: Followed, *, total: int | None = None, show_output: bool = False) -> None:
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
    """A line on numbers that are not what they should be, or are again; of all ranks, one says."""
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
    """A line on a node whose machine is to go."""
    match told:
        case events.NodeLeaving(name=name):
            return f"    {name} is to go: its ranks move as soon as they can"
        case events.DrainWaiting(name=name, reason=reason):
            return f"    {name} trains on: {reason}"
        case events.NodeDrained(name=name):
            return f"    {name} has no ranks any more: its machine may be taken"


_OfSeats = (
    events.ResizeWanted
    | events.ResizeWaiting
    | events.Resized
    | events.ResizeRefused
    | events.ReplicasPlaced
    | events.ReplicasShort
)


def _of_seats(told: _OfSeats) -> str:
    """A line on how many nodes train, or on who keeps what."""
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
    """A line on how a recovery goes."""
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
    """Lines on a worker that ended early; `None` where nothing is known beside that."""
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
    """A line for people on an entry that they want to hear of, or some; `None` for the others."""
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
