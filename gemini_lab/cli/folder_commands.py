"""`gemini-lab list` and `logs`: runs by their folders, running or finished, and what they wrote."""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from rich.text import Text

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.follow_commands import finder_of, parser_of
from gemini_lab.cli.screen import colour_of, console, moment
from gemini_lab.display import interrupt_says, readable, tell
from gemini_lab.errors import ConfigError
from gemini_lab.lab.attached import AttachedRun
from gemini_lab.lab.control import RunGoneError, described, owner_listens, way_in
from gemini_lab.lab.run import KEPT
from gemini_lab.lab.run_locator import Finder, ListedLab, access_in, labs_in
from gemini_lab.limits import open_file, whole
from gemini_lab.log.entry import EventError
from gemini_lab.log.events import RecoveryStarted
from gemini_lab.log.file import LOG_FILE, read_line
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.report.reducer import FOR_PROGRESS, RunReducer

Row = tuple[str, ...]
RUNNING: Final[Row] = ("NAME", "STATE", "RECOVERIES", "NODES", "FOLDER")
ALL: Final[Row] = ("NAME", "STATE", "STARTED", "TOOK", "ITERATIONS", "RECOVERIES", "FOLDER")
WIDTHS: Final = {"STATE": 12, "STARTED": 16, "TOOK": 12, "ITERATIONS": 10, "RECOVERIES": 10}
"""Widths that are known before the first row: each row is printed as soon as it is read."""
UNREAD: Final = tuple(
    f'"kind":"{kind}"'.encode()
    for kind in ("collectives", "transfer", "iteration_begun", "version_complete")
)
"""Kinds that are most of a long log, and say nothing that a list needs."""


def list_command(arguments: Sequence[str]) -> int:
    """List running jobs: those of an etcd, or those whose folders are here."""
    parser = parser_of("list", list_command.__doc__, run=False)
    parser.add_argument(
        "--all", action="store_true", help="list finished runs of --folder, too: reads their logs"
    )
    options = parser.parse_args(arguments)
    if options.all and options.etcd is not None:
        parser.error("--all reads the logs in --folder; an etcd has running jobs only")
    folders = sorted(
        (log.parent for log in options.folder.glob(f"*/{LOG_FILE}")),
        key=lambda folder: (folder / LOG_FILE).stat().st_mtime,
    )
    if options.all:
        rows: Iterator[Row] = (_row_of_log(folder) for folder in folders)
        _print_rows(ALL, rows, none="no run", names=folders, where=options.folder.absolute())
        return Exit.FINISHED
    where = options.etcd or options.folder.absolute()
    labs = labs_in(EtcdAddress.parse(options.etcd)) if options.etcd is not None else None
    rows = (row for folder in folders if (row := _row_of(folder)) is not None)
    if labs is not None:
        rows, folders = map(_row, labs), [Path(lab.name) for lab in labs]
    none = "no run is under way"
    _print_rows(RUNNING, rows, none=none, names=folders, where=where)
    return Exit.FINISHED


def _print_rows(
    head: Row, rows: Iterator[Row], *, none: str, names: Sequence[Path], where: object
) -> None:
    """Print each row as soon as it is known; the last column may be as long as it likes."""
    to, is_headed = console(soft_wrap=True), False
    widest = max((len(readable(path.name)) for path in names), default=0)
    widest = max(widest, len("NAME"))
    for row in rows:
        for cells in ([] if is_headed else [head]) + [row]:
            line = Text()
            for title, cell in zip(head, cells, strict=True):
                width = widest if title == "NAME" else WIDTHS.get(title, 8)
                style = colour_of(cell) if title == "STATE" and cells is row else ""
                is_last = title == head[-1]
                line.append(readable(cell) if is_last else f"{readable(cell):<{width}}  ", style)
            to.print(line)
        is_headed = True
    if not is_headed:
        tell(f"{none} in {where}")


def _row_of_log(folder: Path) -> Row:
    """Return the row of a run by its log, whether it runs or not."""
    run, recoveries = RunReducer(name=folder.name, keep=FOR_PROGRESS), 0
    try:
        with open_file(folder / LOG_FILE) as lines:
            for line in lines:
                if any(kind in line[:200] for kind in UNREAD):
                    continue
                with suppress(EventError):
                    if (entry := read_line(line)) is not None:
                        recoveries += isinstance(entry.event, RecoveryStarted)
                        run.take(entry)
    except (OSError, ConfigError) as error:
        return folder.name, "unreadable", "", "", "", "", str(error)
    course, ended_s = run.course, run.course.ended_at_s
    state = course.phase if ended_s is not None or _is_owned(folder) else "no owner"
    took_s = (ended_s or run.newest_s or course.started_at_s) - course.started_at_s
    started = "simulated" if course.is_simulated else moment(course.started_at_s)
    done = str(run.reached.done())
    took = time.strftime(f"{int(took_s) // 86400}d %H:%M:%S", time.gmtime(max(0.0, took_s)))
    return (
        folder.name,
        state,
        started[:16],
        took.removeprefix("0d "),
        done,
        str(recoveries),
        str(folder),
    )


def _is_owned(folder: Path) -> bool:
    """Return whether a run's owner answers, as far as this machine sees."""
    return _row_of(folder) is not None


def _row(lab: ListedLab) -> Row:
    there = f"{len(lab.nodes)} of {lab.wanted}"
    phase = "training" if lab.phase == "running" else lab.phase  # as a run calls it
    return lab.name, phase, str(lab.recoveries), there, lab.folder or "(its owner's)"


def _row_of(folder: Path) -> Row | None:
    """Return the row of a running job whose folder is here; `None` if it does not run."""
    access = access_in(folder)
    if access is None:
        return _row_of_owner(folder)
    try:
        found = [lab for lab in labs_in(access.etcd) if lab.name == access.name]
    except StoreUnavailableError:
        return folder.name, "its etcd does not answer", "-", "-", str(folder)
    return (folder.name, *_row(found[0])[1:]) if found else None


def _row_of_owner(folder: Path) -> Row | None:
    """Return the row of a run that belongs to the process that started it, as that tells it."""
    try:
        if not owner_listens(way := way_in(folder)):
            return None
        told = described(way)
    except RunGoneError:
        return None
    except ConfigError:
        told = None
    if told is None:
        return folder.name, "its owner does not answer", "-", "-", str(folder)
    there = f"{told.nodes} of {told.wanted}"
    return folder.name, told.phase, str(told.recoveries), there, str(folder)


# -- logs ------------------------------------------------------------------------------------------

LOOK_S: Final = 0.25
ASK_S: Final = 2.0
"""Between two looks whether the run still goes on."""
LONGEST: Final = 1 << 16
"""Bytes of a line that are printed at once."""


def logs_command(arguments: Sequence[str]) -> int:
    """Print what a run's workers wrote, rank by rank.

    Without the run's folder (--etcd), only -f works: it prints what they write from now on.
    """
    parser = parser_of("logs", logs_command.__doc__)
    parser.add_argument(
        "--rank", type=whole("rank"), metavar="N", help="this rank only (default: all ranks)"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print new lines until the run ends"
    )
    options = parser.parse_args(arguments)
    finder = finder_of(options)
    over = f"{finder.name} is not followed any longer; it goes on"
    with interrupt_says(lambda: over):
        if finder.folder is not None:
            return _print_files(finder, finder.folder / "output", options)
        if not options.follow:
            raise ConfigError(
                f"the lines of {finder.name} are in its folder, which this machine does not see; "
                "add -f to print those that come from now on"
            )
        return _print_heard(finder, options.rank)


def _print_files(finder: Finder, folder: Path, options: argparse.Namespace) -> Exit:
    """Print the files of a run's folder, and follow it while it runs if that is asked."""
    readers: dict[int, _LinesOfRank] = {}
    asked_s, is_over = 0.0, not options.follow
    while True:
        for path in folder.glob("rank-*.log"):
            number = path.stem.removeprefix("rank-")
            if number.isdecimal() and options.rank in {None, int(number)}:
                readers.setdefault(int(number), _LinesOfRank(path))
        is_alone = options.rank is not None
        for rank, reader in sorted(readers.items()):
            for line in reader.new():
                tell(line if is_alone else f"{rank}| {line}")
        if is_over:
            break
        if time.monotonic() - asked_s > ASK_S:
            asked_s, is_over = time.monotonic(), _is_over(finder)  # then one more look at the files
        time.sleep(0 if is_over else LOOK_S)
    if not readers:
        of = "" if options.rank is None else f" of rank {options.rank}"
        raise ConfigError(
            f"{finder.name} has no lines{of} in {folder}; `gemini-lab status` shows its state"
        )
    return Exit.FINISHED


def _is_over(finder: Finder) -> bool:
    """Return whether a run has ended; an owner that is away for a moment comes back."""
    try:
        return not owner_listens(finder.way())
    except RunGoneError:
        return True
    except (ConfigError, StoreUnavailableError):
        return False


class _LinesOfRank:
    """The lines of a rank's files: the older ones, which were turned, come first.

    Args:
        path: The newest file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting = [
            older
            for number in range(KEPT, 0, -1)
            if (older := path.with_name(f"{path.name}.{number}")).exists()
        ]
        self._file: BinaryIO | None = None

    def new(self) -> Iterator[str]:
        """Yield the lines that came since the last call."""
        for older in self._waiting:
            with open_file(older) as file:
                yield from _lines(file)
        self._waiting = []
        if self._file is None:
            self._file = open_file(self._path)
        yield from _lines(self._file)
        with suppress(OSError):
            if not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                self._file.close()  # it was turned
                self._file = open_file(self._path)
                yield from _lines(self._file)


def _lines(file: BinaryIO) -> Iterator[str]:
    """Yield whole lines; half of one waits for its end."""
    while line := file.readline(LONGEST):
        if not line.endswith(b"\n") and len(line) < LONGEST:
            file.seek(-len(line), 1)
            return
        yield line.rstrip(b"\n").decode(errors="replace")


def _print_heard(finder: Finder, rank: int | None) -> Exit:
    """Print what workers write from now on, as the run's owner passes it on."""

    def show(of: int, lines: list[str]) -> None:
        for line in lines if rank in {None, of} else ():
            tell(line if rank is not None else f"{of}| {line}")

    with AttachedRun(finder.name, finder.way, finder.folder) as run:
        run.listen(show)
        run.catch_up()
        while not run.is_over_within(LOOK_S):
            pass
    return Exit.FINISHED
