"""`gemini-lab top`: a run on one screen, live."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from rich.console import Console
from rich.live import Live

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.runs import beside_of, finder_of, parser_of
from gemini_lab.cli.screen import screen
from gemini_lab.lab.watched import watched

EVERY_S: Final = 1.0


def command(arguments: Sequence[str]) -> int:
    """Show a run until it is over; Ctrl-C ends the showing, not the run."""
    options = parser_of("top", command.__doc__)
    options.add_argument(
        "--every", type=float, default=EVERY_S, metavar="S", help="seconds (%(default)s)"
    )
    asked = options.parse_args(arguments)
    finder = finder_of(asked)
    with watched(finder) as run:
        draw = partial(screen, beside=beside_of(finder))
        with Live(run.ask(draw), console=Console(), auto_refresh=False) as live:
            while not run.ask(lambda told, _: told.course.is_over):
                time.sleep(asked.every)
                live.update(run.ask(draw), refresh=True)
            live.update(run.ask(draw), refresh=True)
    return Exit.FINISHED
