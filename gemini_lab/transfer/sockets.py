"""The connections of a library that has no way to end what waits on them.

A collective of Gloo's that waits for a silent rank waits for its whole time-out. It fails at once
when the connection below it is closed.
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_OPEN: Final = Path("/proc/self/fd")
_SOCKET: Final = re.compile(r"socket:\[\d+\]")


class Connections:
    """Those that somebody else has opened in this process."""

    def __init__(self) -> None:
        self._sockets: set[tuple[int, str]] = set()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """What is opened inside the block; nobody else may open any meanwhile."""
        before = _sockets()
        yield
        self._sockets = _sockets() - before

    def cut(self) -> None:
        """Close them, below whoever uses them; any thread may."""
        for fd, name in self._sockets:
            _shut(fd, name)


def can_be_found() -> bool:
    """Whether this system tells a process its connections."""
    return _OPEN.is_dir()


def _sockets() -> set[tuple[int, str]]:
    """This process's: descriptor, and what the kernel calls it."""
    found = set()
    for file in _OPEN.iterdir():
        with suppress(OSError):
            name = str(file.readlink())
            if _SOCKET.fullmatch(name):
                found.add((int(file.name), name))
    return found


def _shut(fd: int, name: str) -> None:
    """Shut one, unless its number is another file's by now; one that listens is left alone."""
    with suppress(OSError):
        if str((_OPEN / str(fd)).readlink()) == name:
            with socket.socket(fileno=os.dup(fd)) as ours:
                ours.getpeername()
                ours.shutdown(socket.SHUT_RDWR)
