"""What a person asks of a run from a shell, followed until it is done.

A command that asks says what it waits for, as an `Awaited`; the asking, the hearing and the giving
up are the same for all of them.
"""

import argparse
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.runs import finder_of, parser_of, same_run
from gemini_lab.display import tell
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.lab.interrupts import interrupt_says
from gemini_lab.limits import seconds
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import AnyEvent

LOOK_S: Final = 0.1

Get = Callable[..., Entry]
"""Gives what the run says next, or raises `Empty` after `timeout=` seconds."""


class Awaited(Protocol):
    """What was asked for, as the run's events tell how it goes."""

    def hear(self, event: AnyEvent) -> Exit | None:
        """Say what people want to hear of an event; with what to end once it is decided.

        Raises:
            ConfigError: It cannot be done.
        """

    def at_end(self, name: str) -> Exit:
        """With what to end as the run `name` is over.

        Raises:
            ConfigError: What was asked for did not happen before.
        """

    def late(self, name: str, wait_s: float) -> str:
        """What to say when nothing was decided for so long."""


def parser_of_asking(name: str, text: str | None, *, wait_s: float) -> argparse.ArgumentParser:
    """The options of a command that asks something of a run and waits."""
    parser = parser_of(name, text)
    parser.add_argument(
        "--wait",
        type=seconds,
        default=wait_s,
        metavar="S",
        help="seconds to wait for it (%(default).0f); what is late is still to come, and ends "
        f"this with {Exit.LATE:d}",
    )
    return parser


def ask(
    options: argparse.Namespace, question: Callable[[AttachedRun], str], awaited: Awaited
) -> Exit:
    """Ask a run for something, say what it answers, and follow what comes of it."""
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
    """Hear a run until what is awaited is decided, or is late.

    Raises:
        ConfigError: It cannot be done.
    """
    give_up_s = time.monotonic() + wait_s
    while time.monotonic() < give_up_s:
        try:
            event = get(timeout=LOOK_S).event
        except Empty:
            if run.is_over_within(0):
                return awaited.at_end(run.name)
            continue
        ended = awaited.hear(event)
        if ended is not None:
            return ended
    tell(awaited.late(run.name, wait_s))
    return Exit.LATE
