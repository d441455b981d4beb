"""`gemini-lab drain RUN NODE`: move a node's ranks to a standby, before its machine goes."""

import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.runs import finder_of, parser_of
from gemini_lab.errors import ConfigError
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import DrainWaiting, NodeDrained, NodeLost, RecoveryFinished

WAIT_S: Final = 600.0
LOOK_S: Final = 0.1


def command(arguments: Sequence[str]) -> int:
    """Move a node's ranks to a standby, and return when its machine may be taken.

    All ranks stop at the end of an iteration and start again with the standby in the node's place,
    so nothing is done again. Without a standby the node trains on until one is there.
    """
    parser = parser_of("drain", command.__doc__)
    parser.add_argument("node", help="the node whose machine is to go")
    parser.add_argument(
        "--wait", type=float, default=WAIT_S, help="seconds to wait for it (%(default)s)"
    )
    options = parser.parse_args(arguments)
    finder = finder_of(options)
    finder.check()
    heard: SimpleQueue[Entry] = SimpleQueue()
    with AttachedRun(finder.name, finder.way, finder.folder) as run:
        run.catch_up()
        forget = run.watch(heard.put)
        try:
            say(run.drain(options.node))
            return _follow(run, options.node, heard.get, wait_s=options.wait)
        finally:
            forget()


def _follow(run: AttachedRun, node: str, get: Callable[..., Entry], *, wait_s: float) -> int:
    """Say what becomes of it, until the node has no ranks any more."""
    give_up_s = time.monotonic() + wait_s
    while time.monotonic() < give_up_s:
        try:
            event = get(timeout=LOOK_S).event
        except Empty:
            if run.is_over_within(0):
                say(f"{run.name} is over: {node} has no ranks any more")
                return Exit.FINISHED
            continue
        match event:
            case DrainWaiting(name=name, reason=reason) if name == node:
                say(f"{node} trains on: {reason}")
            case RecoveryFinished(lost_iterations=again):
                took = f"after {event.duration_s:.1f} s, {again} iterations done again"
                say(f"training goes on {took}")
            case NodeDrained(name=name) if name == node:
                say(f"{node} has no ranks any more: its machine may be taken")
                return Exit.FINISHED
            case NodeLost(name=name) if name == node:
                say(f"{node} was lost before its ranks could move; the run recovers by itself")
                return Exit.AGAIN
    raise ConfigError(
        f"{node} still has ranks after {wait_s:.0f} s; they move as soon as they can, and "
        "the run's log says what is waited for"
    )


def say(text: str) -> None:
    """Tell who waits."""
    print(text, flush=True)  # noqa: T201
