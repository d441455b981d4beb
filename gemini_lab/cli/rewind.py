"""`gemini-lab rewind RUN N`: have training take back iterations, without a restart."""

import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.runs import finder_of, parser_of
from gemini_lab.errors import ConfigError
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import RewindFailed, Rewound

WAIT_S: Final = 120.0
LOOK_S: Final = 0.1


def command(arguments: Sequence[str]) -> int:
    """Have training take back its newest iterations, and return when it has.

    All ranks go back to a version in their nodes' memory at the end of an iteration. What was read
    since is skipped, unless --again is given.
    """
    parser = parser_of("rewind", command.__doc__)
    parser.add_argument("steps", type=int, help="how many iterations to take back")
    parser.add_argument("--again", action="store_true", help="have the same batches come again")
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
            say(run.rewind(options.steps, skip=not options.again))
            return _follow(run, heard.get, wait_s=options.wait)
        finally:
            forget()


def _follow(run: AttachedRun, get: Callable[..., Entry], *, wait_s: float) -> int:
    """Say what becomes of it."""
    give_up_s = time.monotonic() + wait_s
    while time.monotonic() < give_up_s:
        try:
            event = get(timeout=LOOK_S).event
        except Empty:
            if run.is_over_within(0):
                raise ConfigError(f"{run.name} is over, and did not go back") from None
            continue
        match event:
            case Rewound(cause="person") as went:
                say(f"{went}, after {went.duration_s:.3f} s")
                return Exit.FINISHED
            case RewindFailed(cause="person", reason=reason):
                raise ConfigError(reason)
    raise ConfigError(
        f"{run.name} has not gone back after {wait_s:.0f} s; it does so at the end of an "
        "iteration, if its loop is one over protected.steps or protected.epochs, and its workers "
        "were not started anew meanwhile: then ask again"
    )


def say(text: str) -> None:
    """Tell who waits."""
    print(text, flush=True)  # noqa: T201
