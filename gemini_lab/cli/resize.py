"""`gemini-lab resize RUN N`: have a run go on with another number of nodes."""

import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.runs import finder_of, parser_of
from gemini_lab.errors import ConfigError
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    RecoveryFinished,
    Resized,
    ResizeRefused,
    ResizeWaiting,
    ResizeWanted,
)

WAIT_S: Final = 600.0
LOOK_S: Final = 0.1


def command(arguments: Sequence[str]) -> int:
    """Have a run go on with another number of nodes, and return when it does.

    All ranks stop at the end of an iteration, and the shards of its version are cut anew from
    memory, so nothing is done again. Where machines are missing the run trains on until they come.
    """
    parser = parser_of("resize", command.__doc__)
    parser.add_argument("nodes", type=int, help="how many nodes it is to have")
    parser.add_argument(
        "--wait", type=float, default=WAIT_S, help="seconds to wait for it (%(default)s)"
    )
    options = parser.parse_args(arguments)
    finder = finder_of(options)
    finder.check()
    heard: SimpleQueue[Entry] = SimpleQueue()
    with AttachedRun(finder.name, finder.way, finder.folder) as run:
        run.catch_up()
        if len(run.members) == options.nodes:
            say(f"{run.name} has {options.nodes} nodes")
        forget = run.watch(heard.put)
        try:
            say(run.resize(options.nodes))
            return _follow(run, options.nodes, heard.get, wait_s=options.wait)
        finally:
            forget()


def _follow(run: AttachedRun, nodes: int, get: Callable[..., Entry], *, wait_s: float) -> int:
    """Say what becomes of it."""
    give_up_s = time.monotonic() + wait_s
    while time.monotonic() < give_up_s:
        try:
            event = get(timeout=LOOK_S).event
        except Empty:
            if run.is_over_within(0):
                raise ConfigError(f"{run.name} is over, with {len(run.members)} nodes") from None
            continue
        match event:
            case ResizeWanted(nodes=number) if number == nodes == len(run.members):
                return Exit.FINISHED
            case ResizeWaiting(nodes=number, reason=reason) if number == nodes:
                say(f"it trains on with {len(run.members)} nodes: {reason}")
            case ResizeRefused(nodes=number, reason=reason) if number == nodes:
                raise ConfigError(f"{run.name} cannot have {nodes} nodes: {reason}")
            case RecoveryFinished(lost_iterations=again):
                took = f"after {event.duration_s:.1f} s, {again} iterations done again"
                say(f"training goes on {took}")
            case Resized() as told:
                say(f"{told}")
                if told.nodes == nodes:
                    return Exit.FINISHED
    raise ConfigError(
        f"{run.name} still has {len(run.members)} nodes after {wait_s:.0f} s; it has {nodes} as "
        "soon as it can, and its log says what is waited for"
    )


def say(text: str) -> None:
    """Tell who waits."""
    print(text, flush=True)  # noqa: T201
