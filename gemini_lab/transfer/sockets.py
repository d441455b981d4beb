"""The connections of a library that has no way to end what waits on them.

A collective of Gloo's that waits for a silent rank waits for its whole time-out. It fails at once
when the connection below it is closed.
"""

import ctypes
import os
import platform
import re
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_KEPT: Final = Path("/proc/self/fdinfo")
_EPOLL: Final = "anon_inode:[eventpoll]"
_WATCHED: Final = re.compile(r"^tfd:\s*(\d+) events:\s*\w+ data:\s*(\w+)", re.MULTILINE)
_MODIFY: Final = 3  # EPOLL_CTL_MOD
_ONCE: Final = 1 << 30  # EPOLLONESHOT
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Event(ctypes.Structure):
    if platform.machine() == "x86_64":  # the kernel's struct has no gap there
        _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


def look_once_more(fd: int) -> None:
    """Wake this process's watchers of a descriptor once more, and then never.

    It may still be closed as any other.
    """
    for watcher, data in _watchers(fd):
        # EPOLLONESHOT alone: the kernel reports the shut socket once and disarms it.
        event = _Event(_ONCE, data)
        _libc.epoll_ctl(watcher, _MODIFY, fd, ctypes.byref(event))  # it may be gone by now


def _watchers(fd: int) -> Iterator[tuple[int, int]]:
    """Yield this process's epoll descriptors that watch it, and what each gets when it wakes."""
    for file in _OPEN.iterdir():
        with suppress(OSError):
            if str(file.readlink()) == _EPOLL:
                for watched, data in _WATCHED.findall((_KEPT / file.name).read_text()):
                    if int(watched) == fd:
                        yield int(file.name), int(data, 16)


_OPEN: Final = Path("/proc/self/fd")
REST_S: Final = 0.5
"""After a cut: for who opened the connections to see that they are, and to close them."""
_READ_BYTES: Final = 1 << 20
_SOCKET: Final = re.compile(r"socket:\[\d+\]")


class OwnConnections:
    """Connections that a library has opened in this process."""

    def __init__(self) -> None:
        self._sockets: set[tuple[int, str]] = set()
        self._links: list[tuple[int, str]] = []

    @contextmanager
    def opened(self, *, links: int = 0) -> Iterator[None]:
        """Note what is opened over IP inside the block; no other thread may open any meanwhile.

        Args:
            links: How many of them lead to other ranks. Where so many lead anywhere, it is these.
        """
        before = _sockets()
        yield
        found = [one for _, _, one in _over_ip() if one not in before]
        self._sockets = {*found}
        self._links = found if len(found) == links else []

    @property
    def are_whole(self) -> bool:
        """Return whether the library has closed none that leads to another rank, if known."""
        return all(_is_there(fd, name) for fd, name in self._links)

    def cut(self) -> None:
        """Shut them, below whoever uses them; any thread may.

        Nothing that came over them is read from then on.
        """
        sockets = tuple(self._sockets)
        for fd, name in sockets:
            _shut(fd, name)
        for fd, name in sockets:
            _empty(fd, name)
        # A shut socket wakes Gloo's epoll loop without end until it is closed or disarmed.
        rest = threading.Timer(REST_S, _let_rest, [sockets])
        rest.daemon = True
        rest.start()


def own_ends() -> list[str]:
    """Return the addresses at which this process's connections over IP end here."""
    return [here for here, _, _ in _over_ip()]


def shut_those_to(ends: Collection[str]) -> int:
    """Shut this process's connections whose other end is at one of these addresses; how many."""
    found = [one for _, there, one in _over_ip() if there in ends]
    for fd, name in found:
        _shut(fd, name)
    return len(found)


def can_be_found() -> bool:
    """Return whether this system tells a process its connections."""
    return _OPEN.is_dir()


def _sockets() -> set[tuple[int, str]]:
    """Return this process's: descriptor, and what the kernel calls it."""
    found = set()
    for file in _OPEN.iterdir():
        with suppress(OSError):
            name = str(file.readlink())
            if _SOCKET.fullmatch(name):
                found.add((int(file.name), name))
    return found


def _over_ip() -> Iterator[tuple[str, str, tuple[int, str]]]:
    """Yield this process's connections over IP: address here, address there, and the socket."""
    for fd, name in _sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as ours:
            if ours.family in {socket.AF_INET, socket.AF_INET6}:
                yield _address(ours.getsockname()), _address(ours.getpeername()), (fd, name)


def _address(name: tuple[object, ...]) -> str:
    """Return host and port; the host is written alike if IPv6 carries IPv4."""
    # One end may see an IPv4 address where the other has it mapped into IPv6.
    host = str(name[0]).removeprefix("::ffff:")
    return f"{host} {name[1]}"


def _is_there(fd: int, name: str) -> bool:
    with suppress(OSError):
        return str((_OPEN / str(fd)).readlink()) == name
    return False


@contextmanager
def _connection(fd: int, name: str) -> Iterator[socket.socket]:
    """Use one of these beside the library that opened it.

    Raises:
        OSError: It listens, or is closed; its number may be another file's by now.
    """
    if not _is_there(fd, name):
        raise ConnectionError(f"{name} is closed")
    with socket.socket(fileno=os.dup(fd)) as ours:
        if ours.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ConnectionError(f"{name} listens")
        yield ours


def _let_rest(sockets: Collection[tuple[int, str]]) -> None:
    for fd, name in sockets:
        with suppress(OSError), _connection(fd, name):
            look_once_more(fd)


def _shut(fd: int, name: str) -> None:
    with suppress(OSError), _connection(fd, name) as ours:
        # Not `close`: the descriptor is Gloo's, and its number could become another file's.
        ours.shutdown(socket.SHUT_RDWR)


def _empty(fd: int, name: str) -> None:
    """Take what has come over one that is shut: no more comes, and so nobody else reads any."""
    with suppress(OSError), _connection(fd, name) as ours:
        # What has already arrived would still complete a receive into memory that is in use again.
        while ours.recv(_READ_BYTES, socket.MSG_DONTWAIT):
            pass
