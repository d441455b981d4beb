"""A run's log on disk: its place, its writer, its readers, and what is kept out of it."""

import os
import re
import shutil
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from gemini_lab.display import readable
from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.limits import open_file
from gemini_lab.log.entry import (
    Entry,
    EventError,
    decode_entry,
    encode_entry,
    is_odd,
    readable_entry,
)
from gemini_lab.log.events import SCHEMA, LogOpened, RunStarted

HIDDEN: Final = "***"
_SECRET: Final = re.compile(
    r"(token|key|secret|password|passwd|passphrase|credentials?)$", re.IGNORECASE
)
_LOGIN: Final = re.compile(rb'(?<=://)[^/@\s"]+@')


def line_of(entry: Entry) -> bytes:
    """Return the entry as one line of a log, without its secrets."""
    if isinstance(entry.event, RunStarted):
        shown = tuple(hidden_arguments(entry.event.args))
        event = msgspec.structs.replace(entry.event, args=shown)
        entry = msgspec.structs.replace(entry, event=event)
    line = encode_entry(entry)
    # `s3://user:password@host/run` is `s3://***@host/run`, wherever it stands.
    return _LOGIN.sub(f"{HIDDEN}@".encode(), line) if b"://" in line else line


def hidden_arguments(args: Sequence[str]) -> list[str]:
    """Hide what follows `--api-key` or `API_KEY=` in the arguments of a command."""
    shown, is_secret = [], False
    for arg in args:
        name, equals, _ = arg.partition("=")
        if is_secret:
            shown.append(HIDDEN)
        elif equals and _SECRET.search(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(arg)
        is_named = arg.startswith("-") and not equals and _SECRET.search(arg) is not None
        is_secret = is_named and not is_secret
    return shown


LOG_FILE: Final = "events.jsonl"
"""The log in a run's folder."""
OWNERS_FILE: Final = 0o600
OWNERS_FOLDER: Final = 0o700
MOST_SAID_AGAIN: Final = 100_000
"""Newest lines that a log that was taken over compares with what comes: nobody repeats older."""
RUNS_FOLDER: Final = Path("gemini-runs")
"""Where runs keep their folders, unless another one is named."""
LATEST: Final = "latest"
"""By this commands mean the newest run."""
NOWHERE: Final = Path(os.devnull)
"""A place in which nothing can be kept."""
FOLDER_HELP: Final = "where runs keep their logs (default: %(default)s)"
"""Of the option `--folder`, which is the same in all commands."""
HEAD_LINES: Final = 8
"""Lines of a file among which there is an event, if it is a log; some may have been damaged."""
HEAD_BYTES: Final = 1 << 20
"""What is read of each of them."""


class EventLog:
    """A run's entries on disk, one JSON line each, in order of arrival.

    The first line says with which schema the log is written, at the moment of the first entry. Its
    owner alone can read it, and secrets never enter it. What a full disk does not take waits in
    memory, in order, until it does: a line is written whole or not at all. Threads may share it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # How often somebody took the file away while it was written, and it was put back.
        self.removals = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=OWNERS_FILE)
        self._file: BinaryIO = path.open("ab", buffering=0)
        self._known: frozenset[bytes] = frozenset()  # lines that may be said again
        self._waiting: deque[bytes] = deque()
        self._writes = threading.Lock()
        self.trouble: OSError | None = None  # why the newest lines wait; `None` if none does

    @classmethod
    def taken_over(cls, path: Path) -> "EventLog":
        """Return the log at `path`, to continue in place of a writer that is gone.

        It goes on in a copy that takes the file's name, so that a writer that is not gone after
        all (its machine had stopped, and went on) writes where nobody reads; what such a writer
        settled before that is in the copy. A line that was cut short is left out, and what is said
        again is not written twice.

        Raises:
            OSError: The disk has no room for the copy; the log is as it was.
        """
        draft = path.with_name(f"{path.name}.{os.getpid()}-{socket.gethostname()}")
        known: deque[bytes] = deque(maxlen=MOST_SAID_AGAIN)
        try:
            draft.touch(mode=OWNERS_FILE)
            with path.open("rb") as old, draft.open("wb") as new:
                for is_named in (False, True):
                    for line in old:
                        if line.endswith(b"\n"):
                            new.write(line)
                            known.append(line[:-1])
                    new.flush()
                    os.fsync(new.fileno())
                    if not is_named:
                        draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)  # the next try needs its room
            raise
        log = cls(path)
        log._known = frozenset(known)
        return log

    def append(self, entry: Entry) -> bool:
        """Add one entry, which is on its way to the disk then; says whether it was a new one."""
        line = line_of(entry)
        with self._writes:
            if self._file.tell() == 0 and not self._waiting:
                opened = Entry(at_s=entry.at_s, node=entry.node, event=LogOpened(schema=SCHEMA))
                self._waiting.append(encode_entry(opened) + b"\n")
            if line in self._known:
                return False
            self._waiting.append(line + b"\n")
            self._write()
        return True

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def settle(self) -> None:
        """Return when all that was added is on the disk itself, under the log's name.

        Raises:
            LogTakenError: Another writer has taken it over.
            OSError: The disk does not take it now.
        """
        with self._writes:
            self._write()
            if self.trouble is not None:
                raise self.trouble
        os.fsync(self._file.fileno())  # it may take long: nobody waits for it but who asks
        try:
            named = self.path.stat()
        except FileNotFoundError:
            with self._writes:
                self._put_back()
            named = self.path.stat()
        if not os.path.samestat(named, os.fstat(self._file.fileno())):
            raise LogTakenError(f"another owner of the run continues with {self.path}")

    def _put_back(self) -> None:
        """Give the log its name again, which somebody removed; what it had is still open here.

        Where a system does not show what is open (Linux does), it has what comes from now on.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=OWNERS_FOLDER)
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        draft.touch(mode=OWNERS_FILE)
        file = draft.open("ab", buffering=0)
        try:
            with (
                suppress(FileNotFoundError),
                Path(f"/proc/self/fd/{self._file.fileno()}").open("rb") as old,
            ):
                shutil.copyfileobj(old, file)
            os.fsync(file.fileno())
            draft.replace(self.path)
        except OSError:
            file.close()
            draft.unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = file
        self.removals += 1

    def close(self) -> None:
        """Close the file; the log can be read on.

        Raises:
            OSError: The disk does not take what still waits, which is lost.
        """
        with self._writes:
            if not self._file.closed:
                self._write()
                self._file.close()
            if self.trouble is not None:
                raise self.trouble

    def _write(self) -> None:
        """Write what waits, as far as the disk takes it; one thread at a time."""
        self.trouble = None
        while self._waiting:
            end, rest = self._file.seek(0, os.SEEK_END), memoryview(self._waiting[0])
            try:
                while rest:  # a disk that is nearly full takes a part
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                self._file.truncate(end)  # half a line would spoil the next one
                self.trouble = error
                return
            self._waiting.popleft()


class LogTakenError(GeminiError):
    """A log is written by somebody else now."""


class SchemaError(ConfigError):
    """A log was written by a version of this package that is newer than the one that reads it."""


def read_line(line: bytes) -> Entry | None:
    """Return the entry on a line; `None` for what only tells how the log is written.

    Raises:
        EventError: The line is not an event.
        SchemaError: The log is of another schema.
    """
    entry = decode_entry(line)
    if not isinstance(entry.event, LogOpened):
        return readable_entry(entry) if is_odd(line) else entry
    if entry.event.schema != SCHEMA:
        raise SchemaError(
            f"this log has schema {entry.event.schema}, this gemini_lab reads {SCHEMA}; "
            "read it with the version that wrote it, or a newer one"
        )
    return None


def read_log(path: Path, *, seen: Callable[[int], object] | None = None) -> Iterator[Entry]:
    """Yield the entries of the log at `path`, but for a last line that a crash cut short.

    `seen` is called with the bytes of each line before it is read.

    Raises:
        EventError: A line is not an event; the message has its number.
        SchemaError: The log is of a newer schema.
        ConfigError: It is no regular file.
    """
    with open_file(path) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            if seen is not None:
                seen(len(line))
            try:
                entry = read_line(line)
            except EventError as error:
                raise EventError(f"{path}, line {number}: {error}") from error
            if entry is not None:
                yield entry


def user_cache() -> Path:
    """Return the folder for a user's cached files; `NOWHERE` for a user without a home."""
    with suppress(RuntimeError):
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return NOWHERE


def require_log(path: Path) -> Path:
    """Return `path` if it is a log, be it empty.

    Raises:
        ConfigError: It is something else, or cannot be read.
        SchemaError: It is a log of a newer schema.
    """
    try:
        with open_file(path) as file:
            head = [line for _ in range(HEAD_LINES) if (line := file.readline(HEAD_BYTES))]
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; mend that, or name another run"
        ) from error
    if any(map(_is_event, head)) or (not head and path.name == LOG_FILE):
        return path
    what = f"begins with {_shown(head[0])}, which is no event" if head else "is empty"
    raise ConfigError(
        f"{path} is no log of a run: it {what}; name a run's folder, its {LOG_FILE}, or 'latest'"
    )


def _is_event(line: bytes) -> bool:
    try:
        read_line(line)
    except EventError:
        return False
    return True


def _shown(line: bytes) -> str:
    """Return the beginning of a line for people, whatever it is."""
    text = line.rstrip(b"\r\n")
    return repr(f"{text[:40].decode(errors='replace')}{'...' if len(text) > 40 else ''}")


def find_run(run: str, *, below: Path = RUNS_FOLDER) -> Path:
    """Return the folder of a run.

    `run` is its folder, the log in it, its name below `below`, or `"latest"` for the newest there.

    Raises:
        ConfigError: No log is there, or what is there is none.
    """
    if run == LATEST:
        logs = sorted(below.glob(f"*/{LOG_FILE}"), key=lambda log: log.stat().st_mtime)
        if not logs:
            raise ConfigError(f"no run is in {below.absolute()}; name a run's folder")
        return require_log(logs[-1]).parent
    named = Path(run).parent if Path(run).name == LOG_FILE else Path(run)
    if os.path.isfile(named):  # noqa: PTH113 - false where one may not look
        raise ConfigError(
            f"{require_log(named)} is a log without a run's folder, which is wanted here; "
            "`gemini-lab report` and `gemini-lab serve` take it"
        )
    for folder in (named, below / named):
        if folder.is_dir() and not os.access(folder, os.X_OK):
            raise ConfigError(f"{folder} is closed to this user; ask its owner to open it")
        if os.path.isfile(folder / LOG_FILE):  # noqa: PTH113 - false where one may not look
            return require_log(folder / LOG_FILE).parent
    raise ConfigError(
        f"{run!r} is no run: there is no {LOG_FILE} in {named.absolute()} or below {below}; "
        "name a run's folder or its log, or 'latest'"
    )


def find_log(run: str, *, below: Path = RUNS_FOLDER) -> Path:
    """Return the log of a run.

    `run` is as `find_run` takes it, or a log by any other name, such as a simulation's saved one.

    Raises:
        ConfigError: No log is there, or what is there is none.
    """
    if os.path.isfile(run):  # noqa: PTH113 - false where one may not look
        return require_log(Path(run))
    return find_run(run, below=below) / LOG_FILE


BLOCK_BYTES: Final = 1 << 20
LONGEST_LINE_BYTES: Final = 1 << 26
"""A longer line is not an event."""


def log_of(path: Path) -> Path:
    """Return the log that a run's folder, or the log itself, means."""
    return path / LOG_FILE if path.is_dir() else path


def name_of(log: Path) -> str:
    """Return the name of the run with this log: its folder's, or its file's."""
    return readable(log.absolute().parent.name if log.name == LOG_FILE else log.stem)


class LogFeed:
    """The entries of a log that grows; a last line that is not whole yet waits."""

    def __init__(self, path: Path) -> None:
        self.path = log_of(Path(path))
        self.bad_lines = 0  # whole lines that were no events
        self._read_bytes = 0
        self._rest = b""
        self._lines: list[bytes] = []

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log beyond the entries that were returned."""
        waiting = len(self._rest) + sum(len(line) + 1 for line in self._lines)
        return max(0, self._size() - self._read_bytes) + waiting

    @property
    def read_bytes(self) -> int:
        return self._read_bytes

    def poll(self, *, limit: int = 20_000) -> list[Entry]:
        """Return the next entries, at most `limit`; none if the log has no more whole lines now.

        A log that became shorter is read from its start again.

        Raises:
            SchemaError: The log is of a version that this package cannot read.
        """
        entries: list[Entry] = []
        left = (
            limit  # a line that is no event counts, so that a damaged log gives a reader its turn
        )
        while (left > 0 or not entries) and (self._lines or self._read()):
            most = left if left > 0 else limit
            lines = self._lines[: -most - 1 : -1]
            del self._lines[-most:]
            for line in lines:
                try:
                    entry = read_line(line)
                except EventError:
                    self.bad_lines += bool(line.strip())
                else:
                    if entry is None:  # it tells how the log is written
                        continue
                    entries.append(entry)
                left -= 1
        return entries

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def _read(self) -> bool:
        """Read on until there are whole lines; false if the log has none now."""
        if self._size() < self._read_bytes:
            self._read_bytes, self._rest = 0, b""
        try:
            with self.path.open("rb") as log:
                log.seek(self._read_bytes)
                while block := log.read(BLOCK_BYTES):
                    self._read_bytes += len(block)
                    *lines, self._rest = (self._rest + block).split(b"\n")
                    if len(self._rest) > LONGEST_LINE_BYTES:
                        self._rest = b""
                        self.bad_lines += 1
                    if lines:
                        self._lines = lines[::-1]
                        return True
        except OSError:
            return False
        return False
