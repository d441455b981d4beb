"""A folder for temporary files that its maker holds, so that what a killed one leaves is known.

The maker holds a lock, which the kernel frees when it ends, in whatever way. A process that makes a
folder of the same kind, or closes one, removes those without a holder. A process that is given the
descriptor holds it as well.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

MPI_FILES: Final = "gemini_lab-mpi-"
"""What the names of folders for Open MPI's own files begin with."""
MPI_SHARED: Final = "OMPI_MCA_btl_sm_backing_directory"
"""Where an MPI process keeps what it shares with others of its machine: Open MPI's setting, by
default /dev/shm, in which one that is killed leaves 16 MiB."""


class LockedTempdir:
    """A folder of this process's own; made when it is first needed.

    Args:
        prefix: Its kind: what the names of such folders begin with.
        below: Where it lies; by default where temporary files do.
    """

    def __init__(self, prefix: str, below: Path | None = None) -> None:
        self._prefix, self._below = prefix, below
        self._held: tuple[Path, int] | None = None

    def make(self) -> str:
        """Return a folder in it; empty where none can be made."""
        try:
            if self._held is None:
                remove_left(self._prefix, self._below)
                self._held = hold(self._prefix, self._below)
            return tempfile.mkdtemp(prefix="", dir=self._held[0])
        except OSError:
            return ""

    def close(self) -> None:
        """Remove it, and those of makers that were killed."""
        if self._held is not None:
            path, fd = self._held
            self._held = None
            shutil.rmtree(path, ignore_errors=True)
            os.close(fd)
        remove_left(self._prefix, self._below)


def hold(prefix: str, below: Path | None = None) -> tuple[Path, int]:
    """Return a new folder of a kind, and the descriptor that holds it while it is open anywhere."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=below))
        with suppress(FileNotFoundError):  # another one found it before it was held
            fd = os.open(path, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: it is not removed, either
                # Not lockf: the kernel frees a flock with the last descriptor, also of children.
                fcntl.flock(fd, fcntl.LOCK_EX)
            if path.exists():
                return path, fd
            os.close(fd)


def remove_left(prefix: str, below: Path | None = None) -> None:
    """Remove this user's folders of a kind that have no holder."""
    for path in (below or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        with suppress(OSError):  # it is gone, held, or another user's
            _remove_unless_held(path)


def _remove_unless_held(path: Path) -> None:
    # Another user may put a link of this name into a shared /tmp.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        if os.fstat(fd).st_uid == os.getuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(fd)
