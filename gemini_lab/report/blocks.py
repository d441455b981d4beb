"""Storage of a pyramid's blocks: bytes that are written once and read again, in a file."""

import fcntl
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

QUICKLY: Final = 1
"""How hard to compress: a log is read faster than a higher level could follow."""
OWNERS: Final = 0o600


class FileBlocks:
    """Blocks in a file, which is made when the first one comes.

    What was pickled goes on, after `attach`, with the blocks that there were then: those that were
    put later by somebody else are overwritten, or, where that one still writes, left alone.

    Args:
        path: The file; by default one without a name, which goes with its process.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._places: list[tuple[bool, int, int]] = []  # whether beside the file; where; how long
        self._file: BinaryIO | None = None
        self._beside: BinaryIO | None = None  # what is put where the file is another's

    @property
    def is_lasting(self) -> bool:
        return self._path is not None and self._beside is None

    def attach(self, path: Path) -> None:
        """Find the blocks in `path` from now on.

        Raises:
            OSError: It is not there, or shorter than it was.
        """
        self._path = path
        if not self._places:
            return
        self._file, is_ours = _opened(path)
        if not is_ours:
            self._beside = _nameless()
        end = max(at + size for _, at, size in self._places)
        if os.fstat(self._file.fileno()).st_size < end:
            raise OSError(f"{path} has lost its end")

    def put(self, data: bytes) -> int:
        """Keep bytes; the number under which they are found again.

        Raises:
            OSError: The disk is full.
        """
        if self._file is None:
            self._file = self._made()
        zipped = zlib.compress(data, QUICKLY)
        is_beside = self._beside is not None
        at = max((at + size for b, at, size in self._places[-1:] if b == is_beside), default=0)
        file = self._file if self._beside is None else self._beside
        left = memoryview(zipped)
        while left:
            done = os.pwrite(file.fileno(), left, at + len(zipped) - len(left))
            left = left[done:]
        self._places.append((is_beside, at, len(zipped)))
        return len(self._places) - 1

    def get(self, number: int) -> bytes:
        is_beside, at, size = self._places[number]
        file = self._beside if is_beside else self._file
        assert file is not None
        return zlib.decompress(os.pread(file.fileno(), size, at))

    def _made(self) -> BinaryIO:
        if self._path is None:
            return _nameless()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.touch(mode=OWNERS)
            file, is_ours = _opened(self._path)
        except OSError:  # nobody may write there: what is put goes with this process
            self._path = None
            return _nameless()
        if not is_ours:
            file.close()
            self._path = None
            return _nameless()
        return file

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": None, "_places": self._places, "_file": None, "_beside": None}


def _opened(path: Path) -> tuple[BinaryIO, bool]:
    """Return a file to read and write, and whether nobody else has it."""
    file = path.open("r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return file, False
    return file, True


def _nameless() -> BinaryIO:
    return tempfile.TemporaryFile(prefix="gemini-lab-", buffering=0)
