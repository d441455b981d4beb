"""The connections of a library that has no way to end what waits on them.

A collective of Gloo's that waits for a silent rank waits for its whole time-out. It fails at once
when the connection below it is closed.
"""

import os
import re
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

_OPEN: Final = Path("/proc/self/fd")
LOOK_S: Final = 0.005
_SOCKET: Final = re.compile(r"socket:\[\d+\]")


class Connections:
    """Those that somebody else has opened in this process."""

    def __init__(self) -> None:
        self._sockets: set[tuple[int, str]] = set()
        self._links: list[tuple[int, str]] = []

    @contextmanager
    def opened(self, *, links: int = 0) -> Iterator[None]:
        """What is opened inside the block; nobody else may open any meanwhile.

        Args:
            links: How many of them lead to other ranks. Where so many lead anywhere, it is these.
        """
        before = _sockets()
        yield
        self._sockets = _sockets() - before
        found = [one for _, _, one in _over_ip() if one in self._sockets]
        self._links = found if len(found) == links else []

    @property
    def are_whole(self) -> bool:
        """Whether who opened them has closed none that leads to another rank, as far as known."""
        return all(_is_there(fd, name) for fd, name in self._links)

    def cut(self) -> None:
        """Close them, below whoever uses them; any thread may."""
        for fd, name in self._sockets:
            _shut(fd, name)

    def wait_until_closed(self, until_s: float) -> bool:
        """Wait, after `cut`, until who opened them has let go of all; whether they did by then.

        What came before the cut may be read until then.

        Args:
            until_s: On the clock of `time.monotonic`.
        """
        while any(_is_open(fd, name) for fd, name in self._sockets):
            if time.monotonic() >= until_s:
                return False
            time.sleep(LOOK_S)
        return True


def own_ends() -> list[str]:
    """The addresses at which this process's connections over IP end here."""
    return [here for here, _, _ in _over_ip()]


def shut_those_to(ends: Collection[str]) -> int:
    """Shut this process's connections whose other end is at one of these addresses; how many."""
    found = [one for _, there, one in _over_ip() if there in ends]
    for fd, name in found:
        _shut(fd, name)
    return len(found)


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


def _over_ip() -> Iterator[tuple[str, str, tuple[int, str]]]:
    """This process's connections over IP: address here, address there, and the socket."""
    for fd, name in _sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as ours:
            if ours.family in {socket.AF_INET, socket.AF_INET6}:
                yield _address(ours.getsockname()), _address(ours.getpeername()), (fd, name)


def _address(name: tuple[Any, ...]) -> str:
    """Host and port; a host is written alike where IPv6 carries IPv4, and where it does not."""
    host = str(name[0]).removeprefix("::ffff:")
    return f"{host} {name[1]}"


def _is_there(fd: int, name: str) -> bool:
    """Whether a descriptor is still this socket's."""
    with suppress(OSError):
        return str((_OPEN / str(fd)).readlink()) == name
    return False


def _is_open(fd: int, name: str) -> bool:
    """Whether a connection is still somebody's in this process; one that listens is none."""
    if not _is_there(fd, name):
        return False
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as ours:
        return not ours.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return False


def _shut(fd: int, name: str) -> None:
    """Shut one, unless its number is another file's by now; one that listens is left alone."""
    with suppress(OSError):
        if _is_there(fd, name):
            with socket.socket(fileno=os.dup(fd)) as ours:
                ours.getpeername()
                ours.shutdown(socket.SHUT_RDWR)
