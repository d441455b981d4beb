"""A log that was read before is not read again: what it came to is kept, and goes on from there.

It is kept in the user's cache folder (`$XDG_CACHE_HOME/gemini_lab`, else `~/.cache/gemini_lab`),
never beside the run: it is a pickle, and who gets a run's folder from somebody else must be able to
open it. What does not fit the log any more, or was kept by another state of this package, is left
alone and the log is read from its start. All of it may be deleted at any time.
"""

import hashlib
import json
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from pickle import PickleError
from typing import Any, Final, Self, TypeVar

import numpy as np

from gemini_lab.log.entry import Entry
from gemini_lab.log.file import LogFeed, name_of, user_cache
from gemini_lab.report.blocks import OWNERS, FileBlocks
from gemini_lab.report.moments import Moments
from gemini_lab.report.reducer import FOR_DASHBOARD, FOR_METRICS, Keep, RunReducer

Answer = TypeVar("Answer")
LONG: Final = 100_000
"""Entries that are worth keeping."""
OFTEN: Final = 2_000_000
"""Entries of a long log after which it is kept on the way."""
SLICE: Final = 20_000
"""Lines that are taken in at once."""
PROOF_BYTES: Final = 1 << 16
"""At either end of what was read, that must be as they were."""
MOST_BYTES: Final = 20 << 30
"""In the cache folder."""
KEPT_SHARE: Final = 0.4
"""Bytes that are kept for each of a log: more where it tells of many collectives."""
LOOK_S: Final = 10.0
"""Between two looks of a `BackgroundReader` at its log."""
LONG_BYTES: Final = 16 << 20
"""A shorter log opens at once without a saved state."""
LITTLE: Final = 2_000
"""Entries that a `BackgroundReader` takes in at once."""
TURN_S: Final = 0.01
OFTEN_ALONGSIDE: Final = 500_000
"""Entries after which a `BackgroundReader` saves, or a sixteenth of what it saved before."""
ENDS_WITHIN_S: Final = 20.0
STATE, BLOCKS, MOMENTS = "state", "blocks", "moments"
UNREADABLE: Final = (OSError, ValueError, LookupError, TypeError, AttributeError, PickleError)
"""Errors of a saved state that is away, or that another state of this package has written."""


@dataclass(slots=True)
class LogFollower:
    """A log as it grows, and what it comes to: pages, metrics and commands read logs by it alone.

    Threads may share `take`, `entries` and `ask`.
    """

    run: RunReducer
    feed: LogFeed | None = None  # the rest of the log; `None` if its owner calls `take`
    is_cached: bool = False  # whether the state is saved for the next reader, and moments are noted
    kept: int = 0  # entries that the saved state has
    place: Path | None = None  # the folder of the saved state, if there is one
    head: bytes = b""  # the line there that identifies the log and the place in it
    folder: Path | None = None
    _moments: Moments | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, name: str, log: Path | None = None, *, keep: Keep = FOR_METRICS) -> Self:
        feed = None if log is None else LogFeed(log)
        return cls(RunReducer(name=name, keep=keep), feed)

    @property
    def source(self) -> LogFeed:
        assert self.feed is not None
        return self.feed

    @property
    def moments(self) -> Moments:
        """The run at any moment of it; saved moments are read when they are first asked for."""
        if self._moments is None:
            kept = None if self.place is None else _kept_moments(self.place, self.head)
            self._moments = kept or Moments(LogFeed(self.source.path), name=self.run.name)
            self._moments.path = self.source.path
        return self._moments

    @property
    def bad_lines(self) -> int:
        return 0 if self.feed is None else self.feed.bad_lines

    @property
    def news(self) -> int:
        return self.run.count - self.kept

    def take(self, entry: Entry) -> None:
        """Take in the next entry of a log that this follower does not read itself."""
        with self._lock:
            self.run.take(entry)

    def read(self, *, limit: int = SLICE) -> int:
        """Take in the next entries, at most `limit`, and return their number; 0 at the log's end.

        A long log's state is saved on the way, so that a reader that is killed does not start again
        from the log's first line.

        Raises:
            SchemaError: The log is of a version that this package cannot read.
        """
        count = self.run.read(self.source, limit=limit)
        if self.is_cached:
            if self.run.count > self.kept:
                self.moments.note(self.run, self.source)
            if self.news >= max(OFTEN, self.kept // 4):
                keep(self)
        return count

    def entries(self) -> Iterator[Entry]:
        """Give each entry that the log has by now, right after it was taken in."""
        while self.feed is not None and (entries := self.feed.poll()):
            for entry in entries:
                self.take(entry)
                yield entry

    def ask(self, question: Callable[[RunReducer, float], Answer]) -> Answer:
        """Return the answer of `question`, given the run as its log has it by now, and the time."""
        with self._lock:
            while self.feed is not None and self.run.read(self.feed):
                pass
            return question(self.run, time.time())

    def end(self) -> None:
        """Save the state for the next reader, if the log is long."""
        if self.news >= LONG:
            keep(self)


class BackgroundReader:
    """A thread that reads a log from when it becomes long, until it is closed.

    A run's own process has one, so that the log of a run of many days opens at once.
    """

    def __init__(
        self, log: Path, *, folder: Path | None = None, long_bytes: int = LONG_BYTES
    ) -> None:
        self._log, self._folder, self._long_bytes = log, folder, long_bytes
        self._is_over = threading.Event()
        self._follower: LogFollower | None = None
        self._thread = threading.Thread(target=self._run, name="gemini-log-reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read the rest of the log, save the state, and end; wait for that `ENDS_WITHIN_S`."""
        self._is_over.set()
        self._thread.join(ENDS_WITHIN_S)

    def _run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self._read()
        self._read()
        if self._follower is not None:
            self._follower.end()

    def _read(self) -> None:
        if self._follower is None:
            if not self._log.is_file() or self._log.stat().st_size < self._long_bytes:
                return
            self._follower = reopened(self._log, name=name_of(self._log), folder=self._folder)
        while self._follower.read(limit=LITTLE):
            self._is_over.wait(TURN_S)  # the run's own process has its turn
        if self._follower.news >= max(OFTEN_ALONGSIDE, self._follower.kept // 16):
            keep(self._follower)


def room(log: Path, folder: Path | None = None) -> tuple[float, float]:
    """Estimate the bytes that a log's saved state takes; return them with those that are free.

    Raises:
        OSError: The log, or the disk, cannot be looked at.
    """
    place = (folder or cache_folder()).absolute()
    there = next(each for each in (place, *place.parents) if each.exists())
    return KEPT_SHARE * log.stat().st_size, float(shutil.disk_usage(there).free)


def cache_folder() -> Path:
    """Return the folder of saved states."""
    return user_cache() / "gemini_lab"


def reopened(log: Path, *, name: str = "", folder: Path | None = None) -> LogFollower:
    """Return a log from where it was read to before, or from its start."""
    _reader()  # now, and not when something is kept: it may have been upgraded by then
    place = _place(log, folder or cache_folder())
    found = _kept(log, place)
    if found is not None:
        found.folder = folder
        return found
    with suppress(OSError):
        (place / STATE).unlink(missing_ok=True)  # it would not fit what is written from here on
    blocks = FileBlocks(place / BLOCKS)
    run = RunReducer(name=name, keep=FOR_DASHBOARD, blocks=blocks)
    return LogFollower(run, LogFeed(log), is_cached=True, folder=folder)


def opened(log: Path, *, name: str = "", folder: Path | None = None) -> LogFollower:
    """Return a log that was read to its end; its state is saved if that is worth it."""
    reading = reopened(log, name=name, folder=folder)
    while reading.read():
        pass
    reading.end()
    return reading


def keep(reading: LogFollower, *, most_bytes: int = MOST_BYTES) -> bool:
    """Keep a reading for the next time; whether that was possible.

    Where somebody else keeps this log already, or there is or was no room, nothing is.
    """
    folder = reading.folder or cache_folder()
    feed = reading.source
    place = _place(feed.path, folder)
    blocks, pyramid = reading.run.blocks, reading.run.traffic.pyramid
    reading.kept = reading.run.count
    if not blocks.is_lasting:
        return False
    if pyramid is None or pyramid.trouble:  # with room for all of it, it will be read anew
        return False
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        _tidy(folder, most_bytes, but=place)
        head = {**_proof(feed.path, feed.read_bytes), "at": feed.read_bytes}
        line = json.dumps(head).encode() + b"\n"
        _write(place / MOMENTS, line, reading.moments)
        _write(place / STATE, line, (reading.run, feed))
    except (OSError, RecursionError):
        return False
    return True


def _write(path: Path, head: bytes, value: object) -> None:
    """Replace a file by one with this value, or leave it as it is.

    Raises:
        OSError: It cannot be written.
    """
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        draft.touch(mode=OWNERS)
        with draft.open("wb") as file:
            file.write(head)
            pickle.dump(value, file, protocol=5)
        draft.replace(path)
    except (OSError, RecursionError):
        draft.unlink(missing_ok=True)  # a full disk gets its room back
        raise


def _place(log: Path, folder: Path) -> Path:
    return folder / hashlib.sha256(str(log.absolute()).encode()).hexdigest()[:32]


def _kept(log: Path, place: Path) -> LogFollower | None:
    """Return the saved state of this log; `None` if there is none that fits."""

    def fits(line: bytes) -> bool:
        head = json.loads(line)
        return bool(head == {**_proof(log, head["at"]), "at": head["at"]})

    try:
        line, (run, feed) = _saved(place / STATE, fits)
        run.blocks.attach(place / BLOCKS)
        feed.path = log
        os.utime(place / STATE)
    except UNREADABLE:
        return None
    return LogFollower(run, feed, is_cached=True, kept=run.count, place=place, head=line)


def _saved(path: Path, fits: Callable[[bytes], bool]) -> tuple[bytes, Any]:
    """Return a saved file's first line and its value; each of `UNREADABLE` says that it has none.

    Only a file that no other user can have written is read, because it is a pickle.
    """
    with path.open("rb") as file:
        told = os.fstat(file.fileno())  # of this very file: its folder may be another one by now
        is_ours = told.st_uid == os.getuid() and not told.st_mode & 0o022
        line = file.readline()
        if not is_ours or not fits(line):
            raise ValueError(f"{path} does not fit")
        return line, pickle.load(file)  # noqa: S301 - our own folder, and nobody else's


def _kept_moments(place: Path, head: bytes) -> Moments | None:
    """Return the moments that were saved with a reading; `None` if there are none of that one."""
    try:
        _, moments = _saved(place / MOMENTS, lambda line: line == head)
    except UNREADABLE:
        return None
    return moments if isinstance(moments, Moments) else None


def _proof(log: Path, read_bytes: int) -> dict[str, object]:
    """Return what identifies a log up to some byte, and the code that reads it.

    Raises:
        OSError: It cannot be read.
    """
    with log.open("rb") as file:
        first = file.read(min(PROOF_BYTES, read_bytes))
        file.seek(max(0, read_bytes - PROOF_BYTES))
        last = file.read(min(PROOF_BYTES, read_bytes))
        is_long = file.seek(0, os.SEEK_END) >= read_bytes
    ends = hashlib.sha256(first + last).hexdigest()
    return {"reader": _reader(), "ends": ends, "is_long": is_long}


@cache
def _reader() -> str:
    """Return a digest of this package's sources: a pickle is of one state of its classes."""
    told = hashlib.sha256(f"{sys.version_info[:2]} {np.__version__}".encode())
    package = Path(__file__).parents[1]
    for source in sorted(package.rglob("*.py")):
        told.update(str(source.relative_to(package)).encode() + source.read_bytes())
    return told.hexdigest()


def _tidy(folder: Path, most_bytes: int, *, but: Path) -> None:
    """Evict the least recently used states until the cache fits."""
    found = []
    for place in folder.iterdir():
        with suppress(OSError):
            files = [one.stat() for one in place.iterdir()]
            found.append(
                (
                    max((f.st_mtime for f in files), default=0.0),
                    sum(f.st_size for f in files),
                    place,
                )
            )
    total = sum(size for _, size, _ in found)
    for _, size, place in sorted(found):
        if total <= most_bytes:
            return
        if place != but:
            shutil.rmtree(place, ignore_errors=True)
            total -= size
