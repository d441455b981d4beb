"""A run as it goes, on a terminal or below a cell: a bar, and a line for what goes wrong."""

import math
import sys
import textwrap
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, Protocol

from tqdm.auto import tqdm

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.report.culprits import part_of
from gemini_lab.report.output import last_lines
from gemini_lab.report.reducers.recoveries import exit_of
from gemini_lab.units import format_seconds

LINES: Final = 6
"""Of a worker's last lines, those that are shown when it ends."""


class Followed(Protocol):
    """What can be followed as it goes: a `Run`."""

    @property
    def iteration(self) -> int:
        """Newest iteration that every rank has finished."""

    @property
    def phase(self) -> str:
        """What is going on."""

    @property
    def members(self) -> Sequence[str]:
        """The node on each position."""

    def is_over_within(self, timeout_s: float) -> bool:
        """Whether the run is over; waits for that, but not longer than `timeout_s`."""

    def watch(self, watcher: Callable[[Entry], None]) -> Callable[[], None]:
        """Call `watcher` with every event from now on; gives what ends this."""

    def listen(self, listener: Callable[[int, list[str]], None]) -> Callable[[], None]:
        """Call `listener` with a rank and the lines it prints; gives what ends this."""


def show_progress(
    run: Followed, *, total: int | None, until: int | None, show_output: bool, glance_s: float = 0.1
) -> None:
    """Follow `run` from this thread; see `Run.progress`.

    A file that a terminal's output was sent to gets the lines without the bar.
    """
    goal = math.inf if until is None else until
    lines: SimpleQueue[str] = SimpleQueue()

    shown: set[str] = set()

    def see(entry: Entry) -> None:
        """Say it; what was said once with more lines beneath is said again without them."""
        if told := describe(entry):
            head, *beneath = told.splitlines()
            below = "\n".join(beneath)
            lines.put(head if below in shown or not below else told)
            shown.add(below)

    def hear(rank: int, said: list[str]) -> None:
        for line in said if rank == 0 else ():
            lines.put(line)

    endings = [run.watch(see)]
    if show_output:
        endings.append(run.listen(hear))
    is_cell = type(sys.stderr).__module__.startswith("ipykernel")
    try:
        with tqdm(
            total=total,
            initial=run.iteration,
            unit="iteration",
            dynamic_ncols=True,
            disable=False if is_cell else None,
        ) as bar:
            is_last = False
            while not is_last:
                is_last = run.is_over_within(glance_s) or run.iteration >= goal
                while not lines.empty():
                    bar.write(lines.get())
                sys.stdout.flush()  # who follows a file sees a line when it is said
                bar.set_postfix_str(f"{run.phase}, nodes {' '.join(run.members)}")
                bar.update(run.iteration - bar.n)
    finally:
        for end in endings:
            end()


_OfNumbers = (
    events.Diverged
    | events.LossNotFinite
    | events.LossFinite
    | events.Rewound
    | events.RewindFailed
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
            return None if told.rank else f"<< went back: {told}"
        case events.RewindFailed():
            return None if told.rank else f"!! {told.reason}"


def _of_leaving(told: events.NodeLeaving | events.DrainWaiting | events.NodeDrained) -> str:
    """A line on a node whose machine is to go."""
    match told:
        case events.NodeLeaving(name=name):
            return f"    {name} is to go: its ranks move as soon as they can"
        case events.DrainWaiting(name=name, reason=reason):
            return f"    {name} trains on: {reason}"
        case events.NodeDrained(name=name):
            return f"    {name} has no ranks any more: its machine may be taken"


def _of_recovery(told: events.OfRecovery) -> str | None:
    """A line on how a recovery goes."""
    match told:
        case events.RecoveryStarted(cause=events.DRAIN, lost=lost):
            return f"    the ranks of {', '.join(lost)} move"
        case events.RecoveryStarted(lost=lost, cause=cause):
            where = f" ({', '.join(lost)})" if lost else ""
            return f"    failure {told.recovery}: {cause.replace('_', ' ')}{where}"
        case events.RecoveryWaiting(missing=missing, reason=reason):
            positions = ", ".join(map(str, missing))
            return f"    waiting: {reason or f'no machine for position {positions}'}"
        case events.RecoveryFinished(duration_s=took_s, version=version):
            return f"    training goes on after {format_seconds(took_s)}, from version {version}"
    return None


def describe(entry: Entry) -> str | None:
    """A line for people on an entry that they want to hear of, or some; `None` for the others."""
    match entry.event:
        case events.Injected(failure=failure):
            return f"    injected: {failure.replace('_', ' ')} on {entry.node}"
        case events.WorkerExited(output=output, signal=None) as gone if output:
            exited = exit_of(entry, gone)
            how = f"ended ({exited.how})"
            if part_of(exited) == "lost its peers":  # what it printed says no more than that
                return f"    rank {gone.rank} on {entry.node} {how}, as it lost its peers"
            said = [f"    rank {gone.rank} on {entry.node} {how}: {exited.error}"]
            return "\n".join([*said, *(f"    | {line}" for line in last_lines(output, LINES))])
        case events.WorkerHung(seen=seen) if seen:
            return f"    hung: {seen}"
        case (
            events.Diverged()
            | events.LossNotFinite()
            | events.LossFinite()
            | events.Rewound()
            | events.RewindFailed()
        ) as told:
            return _of_numbers(told)
        case events.NodeLeaving() | events.DrainWaiting() | events.NodeDrained() as told:
            return _of_leaving(told)
        case events.RootElected(name=name):
            return f"    root agent is on {name}"
        case events.OfRecovery() as told:
            return _of_recovery(told)
        case events.PersistFailed(reason=reason):
            return f"    persistent tier: {reason}"
        case events.Unprotected(rank=0):
            return "    the script never called gemini_lab.protect: it ran unprotected"
        case events.Note(text=text):
            return f"    {text}"
    return None
