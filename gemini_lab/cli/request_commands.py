"""`gemini-lab drain`, `resize`, `rewind`, `stacks`, `give-up`, `inject`: requests to a running job.

The first four follow the run's log until their request is decided.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from queue import Empty, SimpleQueue
from typing import Final, Protocol, get_args

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.follow_commands import RUN_HELP, add_finding, finder_of, parser_of, same_run
from gemini_lab.display import columns, interrupt_says, tell
from gemini_lab.errors import ConfigError, shown
from gemini_lab.injector.failures import FAILURES, Where, meaning, read_failure
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.limits import seconds, whole
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    AnyEvent,
    DrainWaiting,
    NodeDrained,
    NodeLost,
    Note,
    RecoveryFinished,
    Resized,
    ResizeRefused,
    ResizeWaiting,
    ResizeWanted,
    RewindFailed,
    Rewound,
    StacksTaken,
)
from gemini_lab.recovery.discarded_versions import CANNOT_GO_BACK
from gemini_lab.seats import listed

MOVE_S: Final = 600.0
REWIND_S: Final = 120.0
STACKS_S: Final = 20.0
LOOK_S: Final = 0.1

Get = Callable[..., Entry]
"""Returns the run's next entry, or raises `Empty` after `timeout=` seconds."""


class Awaited(Protocol):
    """The result of a request, as the run's events tell it."""

    def on_event(self, event: AnyEvent) -> Exit | None:
        """Print what the event means for the request; return an exit code once it is decided.

        Raises:
            ConfigError: The run cannot do it.
        """

    def at_end(self, run: str) -> Exit:
        """Return the exit code for a run that ended first.

        Raises:
            ConfigError: The run ended without doing it.
        """

    def late(self, run: str, wait_s: float) -> str:
        """Return what to print if nothing is decided in time."""


def parser_of_request(name: str, text: str | None, *, wait_s: float) -> argparse.ArgumentParser:
    """Return the options of a command that sends a request and waits for its result."""
    parser = parser_of(name, text)
    parser.add_argument(
        "--wait",
        type=seconds,
        default=wait_s,
        metavar="S",
        help="seconds to wait for the result (default: %(default).0f); then the request stays "
        f"pending, and the command exits with {Exit.LATE:d}",
    )
    return parser


def ask(
    options: argparse.Namespace, question: Callable[[AttachedRun], str], awaited: Awaited
) -> Exit:
    """Send a request to a run, print the answer, and follow the run until it is decided."""
    finder = finder_of(options)
    finder.check()
    heard: SimpleQueue[Entry] = SimpleQueue()
    with AttachedRun(finder.name, finder.way, finder.folder) as run:
        run.catch_up()
        forget = run.watch(heard.put)
        try:
            tell(question(run))
            with interrupt_says(lambda: f"{run.name} still does what it was asked for"):
                ended = follow(run, heard.get, awaited, wait_s=options.wait)
        finally:
            forget()
    if ended == Exit.LATE:
        tell(f"look again with: gemini-lab status {same_run(options)}")
    return ended


def follow(run: AttachedRun, get: Get, awaited: Awaited, *, wait_s: float) -> Exit:
    """Read a run's entries until the request is decided, or late.

    Raises:
        ConfigError: The run cannot do it.
    """
    give_up_s = time.monotonic() + wait_s
    while time.monotonic() < give_up_s:
        try:
            event = get(timeout=LOOK_S).event
        except Empty:
            if run.is_over_within(0):
                return awaited.at_end(run.name)
            continue
        ended = awaited.on_event(event)
        if ended is not None:
            return ended
    tell(awaited.late(run.name, wait_s))
    return Exit.LATE


def _tell_of_restart(event: RecoveryFinished) -> None:
    again = f"{event.lost_iterations} iterations done again"
    tell(f"training goes on after {event.duration_s:.1f} s, {again}")


# -- drain -----------------------------------------------------------------------------------------


def drain_command(arguments: Sequence[str]) -> int:
    """Move a node's ranks to a standby, and return when its machine may be taken.

    All ranks stop at the end of an iteration and start again with the standby in the node's place,
    so nothing is done again. Without a standby the node trains on until one is there.
    """
    parser = parser_of_request("drain", drain_command.__doc__, wait_s=MOVE_S)
    parser.add_argument("node", help="the node to empty, such as node-2")
    options = parser.parse_args(arguments)
    return ask(options, lambda run: run.drain(options.node), AwaitedDrain(options.node))


@dataclass(frozen=True, slots=True)
class AwaitedDrain:
    """The move of a node's ranks."""

    node: str

    def on_event(self, event: AnyEvent) -> Exit | None:
        """Print how the move goes."""
        match event:
            case DrainWaiting(name=self.node, reason=reason, is_given_up=is_given_up):
                tell(f"{self.node} trains on: {reason}")
                return Exit.AGAIN if is_given_up else None
            case RecoveryFinished():
                _tell_of_restart(event)
            case NodeDrained(name=self.node):
                tell(f"{self.node} has no ranks left: its machine may be taken")
                return Exit.FINISHED
            case NodeLost(name=self.node):
                tell(
                    f"{self.node} was lost before its ranks could move; the run recovers by itself"
                )
                return Exit.AGAIN
        return None

    def at_end(self, run: str) -> Exit:
        """Succeed: a run that is over has no ranks anywhere."""
        tell(f"{run} is over: {self.node} has no ranks left")
        return Exit.FINISHED

    def late(self, _run: str, wait_s: float) -> str:
        """Return that the node keeps its ranks until they can move."""
        return (
            f"{self.node} still has ranks after {wait_s:.0f} s (--wait); they move as soon as they "
            "can"
        )


# -- resize ----------------------------------------------------------------------------------------


def resize_command(arguments: Sequence[str]) -> int:
    """Resize a run to another number of nodes, and return when it has changed.

    All ranks stop at the end of an iteration, and the shards of its version are divided again from
    memory, so nothing is done again. If machines are missing, the run trains on until they come.
    """
    parser = parser_of_request("resize", resize_command.__doc__, wait_s=MOVE_S)
    parser.add_argument("nodes", type=whole("nodes", least=1), help="number of nodes afterwards")
    options = parser.parse_args(arguments)
    awaited = AwaitedSize(options.nodes)
    return ask(options, awaited.send, awaited)


class AwaitedSize:
    """The number of nodes that a user wants.

    Args:
        nodes: That number.
    """

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._now = 0  # nodes that the run has

    def send(self, run: AttachedRun) -> str:
        """Send the request, and return the answer."""
        self._now = len(run.members)
        if self._now == self._nodes:
            tell(f"{run.name} has {self._nodes} nodes")
        return run.resize(self._nodes)

    def on_event(self, event: AnyEvent) -> Exit | None:
        """Print how the change goes.

        Raises:
            ConfigError: The run cannot have so many nodes.
        """
        match event:
            case ResizeWanted(nodes=self._nodes) if self._now == self._nodes:
                return Exit.FINISHED
            case ResizeWaiting(nodes=self._nodes, reason=reason):
                tell(f"it trains on with {self._now} nodes: {reason}")
            case ResizeRefused(nodes=self._nodes, reason=reason):
                raise ConfigError(f"it cannot have {self._nodes} nodes: {reason}")
            case ResizeRefused(nodes=nodes, reason=reason):  # a size between the two
                tell(f"not with {nodes} nodes on the way, it goes back: {reason}")
            case RecoveryFinished():
                _tell_of_restart(event)
            case Resized():
                tell(f"{event}")
                self._now = event.nodes
                return Exit.FINISHED if self._now == self._nodes else None
        return None

    def at_end(self, run: str) -> Exit:
        """Fail: the run ended with another size.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{run} is over, with {self._now} nodes")

    def late(self, run: str, wait_s: float) -> str:
        """Return that the run keeps its size until it can change."""
        return (
            f"{run} still has {self._now} nodes after {wait_s:.0f} s (--wait); it continues with "
            f"{self._nodes} as soon as it can"
        )


# -- rewind ----------------------------------------------------------------------------------------


def rewind_command(arguments: Sequence[str]) -> int:
    """Take back training's newest iterations, and return when that is done.

    All ranks go back to a version in their nodes' memory at the end of an iteration. Data read
    since then are skipped, unless --again is given.
    """
    parser = parser_of_request("rewind", rewind_command.__doc__, wait_s=REWIND_S)
    parser.add_argument(
        "steps", type=whole("steps", least=1), help="how many iterations to take back"
    )
    parser.add_argument("--again", action="store_true", help="train on the same batches again")
    options = parser.parse_args(arguments)
    return ask(
        options, lambda run: run.rewind(options.steps, skip=not options.again), AwaitedRewind()
    )


class AwaitedRewind:
    """The return of training to an earlier version."""

    def on_event(self, event: AnyEvent) -> Exit | None:
        """Print that training went back, or why it could not."""
        match event:
            case Rewound(cause="person"):
                tell(f"{event}, after {event.duration_s:.3f} s")
                return Exit.FINISHED
            case RewindFailed(cause="person", reason=reason):
                raise ConfigError(reason)
            case Note(text=text) if text == CANNOT_GO_BACK:
                tell(text)
                return Exit.AGAIN
        return None

    def at_end(self, run: str) -> Exit:
        """Fail: a run that is over does not go back."""
        raise ConfigError(f"{run} is over, and did not go back")

    def late(self, run: str, wait_s: float) -> str:
        """Return when a run goes back: only the script's loop can."""
        return (
            f"{run} has not gone back after {wait_s:.0f} s (--wait); it does so at the end of an "
            "iteration, if its loop is one over protected.steps or protected.epochs, and its "
            "workers did not start again meanwhile: then ask again"
        )


# -- stacks ----------------------------------------------------------------------------------------


def stacks_command(arguments: Sequence[str]) -> int:
    """Print what each thread of a run's workers does now, also of one that hangs in a call.

    The workers continue as before. The run's log keeps what is printed.
    """
    parser = parser_of_request("stacks", stacks_command.__doc__, wait_s=STACKS_S)
    parser.add_argument("rank", nargs="*", type=whole("rank"), help="ranks (default: all)")
    options = parser.parse_args(arguments)
    awaited = AwaitedStacks(options.rank)
    return ask(options, awaited.send, awaited)


class AwaitedStacks:
    """The stacks of some workers.

    Args:
        ranks: Their ranks; none: all.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self._missing = {*ranks}

    def send(self, run: AttachedRun) -> str:
        """Send the request, and return the answer."""
        answer = run.stacks(*sorted(self._missing))
        self._missing = self._missing or {*range(run.course.ranks)}
        return answer

    def on_event(self, event: AnyEvent) -> Exit | None:
        """Print the stacks of a worker."""
        if not isinstance(event, StacksTaken) or event.rank not in self._missing:
            return None
        self._missing.remove(event.rank)
        tell(f"\nrank {event.rank}, process {event.pid} ({event.how})")
        for line in event.lines:
            tell(f"  {line}" if line else "")
        return None if self._missing else Exit.FINISHED

    def at_end(self, run: str) -> Exit:
        """Fail: a run that is over has no workers."""
        raise ConfigError(f"{run} is over, and its workers have ended")

    def late(self, _run: str, wait_s: float) -> str:
        """Return which ranks have not answered."""
        ranks = listed([str(rank) for rank in sorted(self._missing)])
        return f"nothing was heard within {wait_s:.0f} s (--wait) of ranks {ranks}"


# -- give up ---------------------------------------------------------------------------------------


def give_up_command(arguments: Sequence[str]) -> int:
    """Resume a waiting run from the newest version that it can read, and lose newer ones.

    A run waits for nodes or a persistent tier that may bring a newer version back. This ends that
    wait only: if what it loads next fails as well, the run waits again.
    """
    finder = finder_of(parser_of("give-up", give_up_command.__doc__).parse_args(arguments))
    tell(AttachedRun(finder.name, finder.way, finder.folder).give_up_progress())
    return Exit.FINISHED


# -- inject ----------------------------------------------------------------------------------------

INJECT: Final = """\
Break something in a live run, now. PLACE says where: a node's name such as
node-2, rank-2 (the node that runs rank 2) or root (the root agent's node):

  gemini-lab inject latest node_loss node-2"""


def inject_parser() -> argparse.ArgumentParser:
    """Return the options of `gemini-lab inject`."""
    kinds = {name: meaning(kind) for name, kind in FAILURES.items()}
    options = argparse.ArgumentParser(
        prog="gemini-lab inject",
        description=f"{INJECT}\n\nfailures:\n{columns(kinds)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("run", help=RUN_HELP)
    options.add_argument("failure", metavar="failure", type=_known, help="one of those above")
    options.add_argument(
        "place",
        nargs="*",
        help="several for nodes_loss, one or two for link_cut, the rack's name for rack_loss, and "
        "none for root_loss and store_full",
    )
    options.add_argument("--shard", type=whole("shard"), help="for bit_flip: which shard's replica")
    options.add_argument("--where", choices=get_args(Where), help="for wrong_sums: in what")
    options.add_argument("--once", action="store_true", help="for wrong_sums: not each time")
    add_finding(options)
    return options


def inject_command(arguments: Sequence[str]) -> int:
    """Send a failure to the owner of a live run, which injects it."""
    options = inject_parser().parse_intermixed_args(arguments)  # places may follow an option
    finder = finder_of(options)
    run = AttachedRun(finder.name, finder.way, finder.folder)
    failure = read_failure(
        options.failure, options.place, options.shard, where=options.where, once=options.once
    )
    tell(run.inject(failure))
    return Exit.FINISHED


def _known(name: str) -> str:
    """Return the name of a kind of failure; an option's `type`."""
    if name in FAILURES:
        return name
    nearest = ", ".join(get_close_matches(name, FAILURES))
    hint = f"; the nearest: {nearest}" if nearest else ""
    raise argparse.ArgumentTypeError(f"there is no failure {shown(name)}{hint}")
