"""`gemini-lab top`: a run on one screen, live."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.runs import beside_of, finder_of, parser_of
from gemini_lab.cli.screen import console, screen
from gemini_lab.lab.attached import watched
from gemini_lab.lab.interrupts import interrupt_says
from gemini_lab.limits import seconds
from gemini_lab.report.reducer import RunReducer

EVERY_S: Final = 1.0


def command(arguments: Sequence[str]) -> int:
    """Show a run until it is over; Ctrl-C ends the showing, not the run.

    Into a pipe or a file goes a screen each time, one below the other.
    """
    options = parser_of("top", command.__doc__)
    options.add_argument(
        "--every",
        type=seconds,
        default=EVERY_S,
        metavar="S",
        help="seconds between two screens (%(default).0f)",
    )
    asked = options.parse_args(arguments)
    finder = finder_of(asked)
    shown_no_more = f"{finder.name} is no longer shown; that changes nothing for it"
    with interrupt_says(lambda: shown_no_more), watched(finder) as run:

        def draw(told: RunReducer, now_s: float) -> RenderableType:
            return screen(told, now_s, beside_of(finder, run))

        shown_on = console()
        is_over = run.ask(_is_over)
        with _shown(shown_on, run.ask(draw)) as show:
            while not is_over:
                time.sleep(asked.every)
                is_over = run.ask(_is_over)
                show(run.ask(draw))
    return Exit.FINISHED


def _is_over(run: RunReducer, _now_s: float) -> bool:
    return run.course.is_over


@contextmanager
def _shown(on: Console, first: RenderableType) -> Iterator[Callable[[RenderableType], None]]:
    """Gives what shows the next screen in the place of the last one; in a pipe, below it."""
    if not on.is_terminal:

        def below(screen: RenderableType) -> None:
            on.print(screen)
            on.file.flush()  # whoever reads a pipe is not to wait for a full buffer

        below(first)
        yield below
        return
    with Live(first, console=on, auto_refresh=False) as live:
        yield lambda screen: live.update(screen, refresh=True)
