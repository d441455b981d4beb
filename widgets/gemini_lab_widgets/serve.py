"""`gemini-lab serve`: a run in the browser, for visitors with the password."""

import argparse
import getpass
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from gemini_lab.display import tell
from gemini_lab.errors import ConfigError
from gemini_lab.limits import whole
from gemini_lab.log.file import FOLDER_HELP, LATEST, LOG_FILE, RUNS_FOLDER, find_log, find_run
from gemini_lab.status_line import busy
from gemini_lab_widgets.dashboard import (
    EVERYWHERE,
    LOOPBACK,
    VISITORS,
    WHY_LOOPBACK,
    Dashboard,
    reached_at,
)


def parser() -> argparse.ArgumentParser:
    """Return the options of `gemini-lab serve`."""
    options = argparse.ArgumentParser(
        prog="gemini-lab serve",
        description="Show a run in the browser, live or afterwards. Visitors can look at "
        "everything and change nothing: the page only reads the run's log and contains no control.",
        epilog=WHY_LOOPBACK,
    )
    options.add_argument(
        "run",
        nargs="?",
        default=LATEST,
        help="a run's folder, its name below --folder, its log, a simulation's saved log, or "
        "'latest' (default: latest). With 'latest' the page follows to the next run when one "
        "starts, waits for a first one, and lets visitors choose the folder's other runs",
    )
    options.add_argument("--folder", type=Path, default=RUNS_FOLDER, help=FOLDER_HELP)
    options.add_argument(
        "--beside",
        metavar="RUN",
        action="append",
        default=[],
        help="run to compare with; repeat it for more (default: the newest earlier run of the "
        "same job)",
    )
    options.add_argument(
        "--port",
        type=whole("port"),
        default=5006,
        help="port to listen on; 0 takes a free one (default: 5006)",
    )
    options.add_argument(
        "--address",
        help=f"address to listen on (default: {LOOPBACK}; with --public all of this machine's)",
    )
    options.add_argument(
        "--public", action="store_true", help="listen where other machines reach the page"
    )
    options.add_argument(
        "--password",
        action="store_true",
        help="ask for a password, or read it from standard input, instead of making one",
    )
    options.add_argument(
        "--visitors",
        type=whole("visitors"),
        default=VISITORS,
        help=f"visitors at once, at most (default: {VISITORS})",
    )
    options.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="another name under which browsers reach the page, such as a proxy's",
    )
    return options


def command(arguments: Sequence[str]) -> int:
    """Serve until interrupted; the exit code is 0 then."""
    options = parser().parse_args(arguments)
    newest = log_of(options.run, below=options.folder)
    beside = [find_log(run, below=options.folder) for run in options.beside]
    password = _ask() if options.password else None
    dashboard = Dashboard(
        newest,
        port=options.port,
        address=address_of(options),
        public=options.public,
        password=password,
        visitors=options.visitors,
        origins=options.origin,
        beside=beside,
        is_open=options.run == LATEST,
    )
    with closing(dashboard):
        with busy("reading the log"):
            dashboard.start()
        tell(_welcome(dashboard, newest(), options))
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    tell("the page is no longer served; that changes nothing for the run")
    return 0


def address_of(options: argparse.Namespace) -> str:
    """Return where to listen: on this machine alone, unless something else was asked for."""
    return str(options.address or (EVERYWHERE if options.public else LOOPBACK))


def log_of(run: str, *, below: Path = RUNS_FOLDER) -> Callable[[], Path | None]:
    """Return a function that gives the log of `run`: a folder, file, name or `"latest"`.

    For `"latest"` it gives None while there is no run yet.

    Raises:
        ConfigError: No log is there, or what is there is none.
    """
    if run == LATEST:
        return _newest_of(below.absolute())
    found = find_log(run, below=below)
    return lambda: found


def _newest_of(below: Path) -> Callable[[], Path | None]:
    """Return a function that gives the newest log below a folder, looked up now and then."""
    seen_s = float("-inf")
    seen: Path | None = None

    def newest() -> Path | None:
        nonlocal seen_s, seen
        if time.monotonic() - seen_s > 1:
            seen_s = time.monotonic()
            with suppress(ConfigError, OSError):  # no run yet, or one that is being deleted
                seen = find_run(LATEST, below=below) / LOG_FILE
        return seen

    return newest


def _ask() -> str:
    """Return a password from the terminal, unseen, or from standard input, never from arguments."""
    if sys.stdin.isatty():
        return getpass.getpass("Password for visitors: ")
    return sys.stdin.readline().rstrip("\n")


def _welcome(dashboard: Dashboard, log: Path | None, options: argparse.Namespace) -> str:
    """Return what the terminal says; never a password that the user chose."""
    port, chosen = dashboard.port, options.password
    what = f"serving {log}" if log else f"waiting for a first run in {options.folder.absolute()}"
    lines = [
        f"{what}, read-only; Ctrl-C ends it",
        f"  link      {dashboard.url if chosen else dashboard.link}",
        f"  password  {'the one that you chose' if chosen else dashboard.password}",
    ]
    if dashboard.address == LOOPBACK:
        there = f"ssh -N -L {port}:{LOOPBACK}:{port} {socket.gethostname()}"
        lines.append(f"  from another machine: {there}, then the same link")
    if dashboard.address == EVERYWHERE and len(reached_at()) > 1:
        lines.append(f"  this machine is also {', '.join(reached_at()[1:])}")
    return "\n".join(lines)
