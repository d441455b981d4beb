"""`gemini-lab attach`, `status`, `top` and `stop`: running jobs, from any machine.

A run is named by its folder where this machine sees it, else by its name and its store.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live

from gemini_lab.cli.exits import EXIT_OF, Exit
from gemini_lab.cli.screen import Beside, console, screen
from gemini_lab.display import complain, interrupt_says, tell
from gemini_lab.errors import ConfigError, GeminiError, RunFailedError
from gemini_lab.lab.attached import AttachedRun, watched
from gemini_lab.lab.control import RunGoneError, owner_listens
from gemini_lab.lab.detached import end_by_force
from gemini_lab.lab.followed import save_within
from gemini_lab.lab.progress_bars import show_progress
from gemini_lab.lab.run_locator import Finder
from gemini_lab.limits import seconds
from gemini_lab.log.file import FOLDER_HELP, LATEST, RUNS_FOLDER
from gemini_lab.node.control_store import StoreForgedError, StoreUnavailableError
from gemini_lab.report.follower import LogFollower
from gemini_lab.report.reducer import RunReducer
from gemini_lab.status_line import busy

STOP_S: Final = 60.0
LOOK_S: Final = 0.25


RUN_HELP: Final = "a run's folder, its name below --folder, or 'latest'"


def parser_of(name: str, text: str | None, *, run: bool = True) -> argparse.ArgumentParser:
    """Return the options of a command that finds a run, or only a store."""
    options = argparse.ArgumentParser(prog=f"gemini-lab {name}", description=text)
    if run:
        options.add_argument("run", nargs="?", default=LATEST, help=f"{RUN_HELP} (default: latest)")
    add_finding(options, token=run)
    return options


def add_finding(options: argparse.ArgumentParser, *, token: bool = True) -> None:
    """Add the options that say where a run is; `finder_of` reads them."""
    options.add_argument("--folder", type=Path, default=RUNS_FOLDER, help=FOLDER_HELP)
    options.add_argument(
        "--etcd",
        metavar="HOST:PORT[,...]",
        help="the run's etcd, if this machine does not see the run's folder"
        if token
        else "list the runs of this etcd",
    )
    if token:
        options.add_argument(
            "--token-file",
            type=Path,
            metavar="FILE",
            help="with --etcd: file with the lab's token (default: the variable GEMINI_LAB_TOKEN)",
        )


def finder_of(options: argparse.Namespace) -> Finder:
    """Return the finder of the run that is asked for."""
    return Finder.of(
        options.run, below=options.folder, store=options.etcd, token_file=options.token_file
    )


def same_run(options: argparse.Namespace) -> str:
    """Return the words that name the run of `options` to another command."""
    places = {
        "--folder": None if options.folder == RUNS_FOLDER else options.folder,
        "--etcd": options.etcd,
        "--token-file": options.token_file,
    }
    more = [str(word) for pair in places.items() if pair[1] is not None for word in pair]
    return shlex.join([options.run, *more])


def attach_command(arguments: Sequence[str]) -> int:
    """Follow a run until it ends; Ctrl-C ends the following, not the run."""
    options = parser_of("attach", attach_command.__doc__).parse_args(arguments)
    finder = finder_of(options)
    finder.check()
    with AttachedRun(finder.name, finder.way, finder.folder) as run:
        try:
            show_progress(run, show_output=True)
            run.wait()
        except RunFailedError as error:
            complain(f"gemini-lab attach: {error}")
            return EXIT_OF[run.cause or "machines"]
        except KeyboardInterrupt:
            complain(
                f"{run.name} goes on without this terminal; the same command follows it again, and "
                "`gemini-lab stop` ends it"
            )
            return 0
    tell(f"{run.name} is over after iteration {run.iteration}")
    return 0


def status_command(arguments: Sequence[str]) -> int:
    """Show a run's state now, or at its end."""
    options = parser_of("status", status_command.__doc__).parse_args(arguments)
    finder = finder_of(options)
    try:
        with busy(f"reading the log of {finder.name}"), watched(finder) as run:
            shown = run.ask(lambda told, now_s: screen(told, now_s, beside_of(finder, run)))
    except TimeoutError as error:
        raise ConfigError(f"{error}; try again, or read the log in its folder") from error
    console(soft_wrap=not sys.stdout.isatty()).print(shown)
    return Exit.FINISHED


def beside_of(finder: Finder, run: LogFollower) -> Beside:
    """Return what is known of a run beside its log, at this moment."""
    access = finder.opens
    owner = _owner(finder)
    words = {
        "owner": owner or "gone: the run is over, or its owner was killed",
        "etcd": ", ".join(access.etcd.endpoints) if access else "embedded",
        "folder": str(finder.folder) if finder.folder else "on its nodes",
    }
    if run.bad_lines:
        words["log"] = f"damaged: {run.bad_lines} of its lines cannot be read, and are ignored"
    return Beside(words=words, is_ownerless=not owner)


def _owner(finder: Finder) -> str:
    """Return where the log's owner listens; empty if there is no owner any more."""
    try:
        way = finder.way()
        return f"listens on {way.address}" if owner_listens(way) else ""
    except RunGoneError:
        return ""
    except GeminiError as error:
        return f"away: {error}"


def stop_command(arguments: Sequence[str]) -> int:
    """End a run and everything that belongs to it; its log and persistent versions stay."""
    parser = parser_of("stop", stop_command.__doc__)
    parser.add_argument(
        "--wait",
        type=seconds,
        default=STOP_S,
        metavar="S",
        help="seconds to wait for its end (default: %(default).0f)",
    )
    parser.add_argument(
        "--notice",
        type=seconds,
        metavar="S",
        help="save a version first; seconds that this may take",
    )
    options = parser.parse_args(arguments)
    finder = finder_of(options)
    access = finder.opens
    if options.notice is not None:
        _save(finder, options.notice)
    try:
        tell(AttachedRun(finder.name, finder.way, finder.folder).stop())
    except RunGoneError:
        raise
    except (ConfigError, StoreForgedError) as error:
        # Where the store is named, and not the run's folder, it may be somebody else's lab.
        if access is None or (isinstance(error, StoreForgedError) and finder.folder is None):
            raise
        complain(f"gemini-lab stop: {error}; its keys are taken away")
        end_by_force(access)
    if _ends_within(finder, options.wait):
        tell(f"{finder.name} has ended")
        return 0
    if access is None:
        tell(
            f"{finder.name} has not ended within {options.wait:.0f} s (--wait); it was told to.\n"
            f"look again with: gemini-lab status {same_run(options)}"
        )
        return Exit.LATE
    end_by_force(access)
    tell(f"{finder.name} did not end by itself; its keys were taken away, which ends its agents")
    return 0


def _ends_within(finder: Finder, wait_s: float) -> bool:
    """Wait for a run's end; says whether it came."""
    give_up_s = time.monotonic() + wait_s
    while time.monotonic() < give_up_s:
        try:
            finder.way()
        except (ConfigError, StoreForgedError) as error:
            if isinstance(error, RunGoneError):
                return True
        except StoreUnavailableError:
            return True
        time.sleep(LOOK_S)
    return False


def _save(finder: Finder, notice_s: float) -> None:
    """Save a version in the persistent tier, and print the outcome."""
    with AttachedRun(finder.name, finder.way, finder.folder) as run:
        saved = save_within(run.catch_up(), notice_s)
    if saved.version is None:
        complain(f"no version was saved: {saved.reason}")
    else:
        tell(f"version {saved.version} is whole in {saved.url}")


# -- top -------------------------------------------------------------------------------------------


EVERY_S: Final = 1.0


def top_command(arguments: Sequence[str]) -> int:
    """Show a run's state until the run ends. Ctrl-C ends the display, not the run.

    Into a pipe or a file, each refresh prints one more screen.
    """
    options = parser_of("top", top_command.__doc__)
    options.add_argument(
        "--every",
        type=seconds,
        default=EVERY_S,
        metavar="S",
        help="seconds between two screens (default: %(default).0f)",
    )
    asked = options.parse_args(arguments)
    finder = finder_of(asked)
    shown_no_more = f"{finder.name} is no longer shown; that changes nothing for it"
    with interrupt_says(lambda: shown_no_more), ExitStack() as held:

        def draw(told: RunReducer, now_s: float) -> RenderableType:
            return screen(told, now_s, beside_of(finder, run))

        with busy(f"reading the log of {finder.name}"):
            run = held.enter_context(watched(finder))
            is_over, first = run.ask(_is_over), run.ask(draw)
        with _shown(console(), first) as show:
            while not is_over:
                time.sleep(asked.every)
                is_over = run.ask(_is_over)
                show(run.ask(draw))
    return Exit.FINISHED


def _is_over(run: RunReducer, _now_s: float) -> bool:
    return run.course.is_over


@contextmanager
def _shown(on: Console, first: RenderableType) -> Iterator[Callable[[RenderableType], None]]:
    """Give a function that shows the next screen in place of the last; in a pipe, below it."""
    if not on.is_terminal:

        def below(screen: RenderableType) -> None:
            on.print(screen)
            on.file.flush()  # a pipe's reader is not to wait for a full buffer

        below(first)
        yield below
        return
    with Live(first, console=on, auto_refresh=False) as live:
        yield lambda screen: live.update(screen, refresh=True)
