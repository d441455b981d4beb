"""The files of a store, in any one that fsspec reaches: what a persistent tier reads and writes.

What its methods raise is the driver's; `StoreFiles.explained` makes of it what a user is told.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import fsspec
from fsspec.implementations.local import LocalFileSystem

from gemini_lab.errors import CapacityError, ConfigError, GeminiError, UnreadError
from gemini_lab.storage.manifest import Survey
from gemini_lab.units import MIB

_WRITE_BYTES: Final = 16 * MIB
MOST_RECORD_BYTES: Final = 64 * MIB
"""Of a manifest, with a digest for each chunk of each shard, or of another small file."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_MISSING_SLASH: Final = re.compile(r"([a-z][a-z0-9+]+):/?([^/].*)", re.ASCII)
"""Such as `s3:/bucket`, of which fsspec makes a folder."""


class StoreFiles:
    """A store's files; paths are below its root, which is `""`.

    Raises:
        ConfigError: There is no driver for the URL, or it lacks a slash.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        slip = _MISSING_SLASH.fullmatch(url)
        if slip and slip[1] in fsspec.available_protocols():
            raise ConfigError(
                f"the persistent tier {url!r} would be a folder of that name; write "
                f"{slip[1]}://{slip[2]} for the store, or ./{url} for the folder"
            )
        self.url = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"the persistent tier {url!r} cannot be opened: {error}; install the fsspec "
                "driver that it names, or use a folder"
            ) from error
        self._is_local = isinstance(self._fs, LocalFileSystem)

    def require_writable(self) -> None:
        """Raise where nobody here may write, as far as it shows without writing: in a folder."""
        if self._is_local:
            require_writable(Path(self._root))

    def try_to_write(self) -> None:
        self.make_folder()
        probe = self._at(f".probe-{os.getpid()}")
        self._fs.pipe_file(probe, b"x" * 4096)
        self._fs.rm_file(probe)

    def free_bytes(self) -> int | None:
        """Return the free bytes; `None` if the store does not tell."""
        return shutil.disk_usage(self._root).free if self._is_local else None

    def make_folder(self, folder: str = "") -> None:
        """Make a folder and those above it, unless they exist."""
        self._fs.makedirs(self._at(folder), exist_ok=True)

    def put(self, path: str, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write a file so that it is there whole or not at all, where the store can do that."""
        path = self._at(path)
        if not self._is_local:  # others show a file when it is closed
            with self._fs.open(path, "wb") as file:
                _write(file, parts)
            return
        folder, target = path.rpartition("/")[0], f"{path}.part"
        try:
            with self._fs.open(target, "wb") as file:
                _write(file, parts)
                file.flush()
                os.fsync(file.fileno())
            os.replace(target, path)  # noqa: PTH105 - a path of fsspec's
        except OSError:  # a full disk gets its room back
            with suppress(OSError):
                os.unlink(target)  # noqa: PTH108
                if folder != self._root:
                    os.rmdir(folder)  # noqa: PTH106 - if nobody else writes there
            raise
        _sync_folder(folder)  # the new name, too, must outlive a power cut

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read a file, or a part of it; return nothing if it does not exist."""
        try:
            data: bytes = self._fs.cat_file(self._at(path), start=start, end=end)
        except (FileNotFoundError, NotADirectoryError):
            data = b""
        return data

    def record(self, path: str) -> bytes:
        """Read a small file, such as a manifest; a larger one is cut, and then does not parse.

        Whoever can write there may have put anything in its place.
        """
        return self.read(path, 0, MOST_RECORD_BYTES)

    def size_bytes(self, path: str) -> int:
        """Return a file's size in the store; 0 if it does not exist."""
        try:
            return int(self._fs.info(self._at(path))["size"])
        except FileNotFoundError:
            return 0

    def listing(self, folder: str = "") -> dict[str, int]:
        """Return the size of each file in a folder by name; nothing if there is no such folder.

        Raises:
            GeminiError: The store failed.
        """
        with self.explained("list"):
            self._fs.invalidate_cache()
            try:
                entries = self._fs.ls(self._at(folder), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        return {e["name"].rstrip("/").rpartition("/")[2]: e["size"] or 0 for e in entries}

    def remove(self, path: str) -> None:
        self._fs.rm_file(self._at(path))

    def remove_folder(self, folder: str) -> None:
        self._fs.rm(self._at(folder), recursive=True)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    @contextmanager
    def explained(self, attempt: str) -> Iterator[None]:
        """Turn whatever a store's driver raises into an error of ours, with the way out."""
        what = f"could not {attempt} the persistent tier {self.url}"
        try:
            yield
        except GeminiError:
            raise
        except OSError as error:
            if error.errno in _FULL:
                raise CapacityError(
                    f"{what}: it is full ({error}); free space, keep fewer versions or name "
                    "another store"
                ) from error
            if error.errno in _FORBIDDEN or isinstance(error, PermissionError):
                raise ConfigError(
                    f"{what}: writing or reading is not allowed there ({error}); mount it "
                    "writable, mend its permissions or name another store"
                ) from error
            if error.errno == errno.ENOTDIR:
                raise ConfigError(
                    f"{what}: a part of that path is a file ({error}); name another folder"
                ) from error
            raise GeminiError(f"{what}: {error}; check that it is reachable") from error
        except Exception as error:  # drivers of object stores raise their own kinds
            raise GeminiError(
                f"{what}: {type(error).__name__}: {error}; that is what the store's driver says"
            ) from error


def require_writable(folder: Path) -> None:
    """Raise where nobody here may make a folder or write there, as it shows without writing.

    Raises:
        OSError: So it is.
    """
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))


def _write(file: Any, parts: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write these in pieces, for a driver may copy each."""
    for part in parts:
        view = memoryview(part)
        for start in range(0, view.nbytes, _WRITE_BYTES):
            file.write(view[start : start + _WRITE_BYTES])


def _sync_folder(folder: str) -> None:
    """Sync a local folder to disk, so that the names in it survive a crash."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_OWNER: Final = "owner.json"


class Ownership:
    """The word in a store of the run that owns it. Every call may raise `GeminiError`."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files

    def owner(self) -> int | None:
        """Return the run whose store this is; `None` if it is nobody's."""
        with self._files.explained("read the owner of"):
            text = self._files.record(_OWNER)
        if not text:
            return None
        try:
            return int(json.loads(text)["run"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise UnreadError(
                f"the persistent tier {self._files.url} says in {_OWNER} whose it is, and that "
                f"cannot be read: {len(text)} bytes, {text[:40]!r}; try again, or name another "
                "folder"
            ) from None

    def take(self, run: int) -> None:
        with self._files.explained("write to"):
            self._files.make_folder()
            self._files.put(_OWNER, [json.dumps({"run": run}).encode()])

    def require(self, run: int | None, survey: Survey) -> None:
        """Refuse a store that is another run's than `run`, or anybody's for a run to come.

        `run` is `None` for a run that has no identity yet.
        """
        owner, stored = self.owner(), survey.stored
        is_ours = owner in {None, run} and {one.lineage.run for one in stored} <= {run}
        if is_ours and (owner is not None or not survey.unclear):
            return
        versions = [one.version for one in stored]
        has = f"it has its versions {versions}" if versions else "it has no version yet"
        if survey.unclear:
            has += f", and some that cannot be read now ({survey.unclear[-1].seen})"
        raise ConfigError(
            f"the persistent tier {self._files.url} belongs to another run, and {has}; name "
            "another folder, or go on from that run with --resume (resume=True)"
        )

    def require_kept(self, run: int) -> None:
        """Refuse a store that `run` had, and has lost to another: it writes no more into it."""
        if self.owner() not in {None, run}:
            raise ConfigError(
                f"the persistent tier {self._files.url} was taken over by another run; this one's "
                "versions are in memory alone now"
            )
