"""Sockets of a run's processes, broken from outside: connections closed, ports that refuse.

The kernel gives this process a second descriptor of another's socket (`pidfd_getfd`, Linux 5.6),
and what is done to the socket by one is done for both. That reaches into networks of nodes' own,
too.
"""

import ctypes
import errno
import os
import platform
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from gemini_lab.errors import ConfigError

PIDFD_GETFD: Final = 438
"""The call's number on these machines, and more of them; they are those that it is known of."""
MACHINES: Final = ("x86_64", "aarch64")
BACKLOG: Final = 100
LOOK_S: Final = 0.01
Ends = tuple[object, object]
"""The addresses of a connection's own and its other end."""


def why_not() -> str | None:
    """Return why other processes' sockets cannot be broken from here; `None` if they can."""
    if not hasattr(os, "pidfd_open") or platform.machine() not in MACHINES:
        return "closing other processes' sockets needs Linux 5.6 on x86-64 or ARM"
    with open(os.devnull) as file:  # noqa: PTH123 - its descriptor is what counts
        try:
            os.close(_second(os.getpid(), file.fileno()))
        except OSError as error:
            return f"closing other processes' sockets is not allowed here ({error.strerror})"
    return None


def flap(node: int, others: Callable[[], Collection[int]]) -> Callable[[], None]:
    """Close all connections between an agent and others, again and again; what ends that.

    Args:
        node: The agent's process.
        others: Those of the others, now.

    Raises:
        ConfigError: It has no such connection.
    """
    if not cut(node, others()):
        raise ConfigError(f"process {node} has no connection to another agent")
    is_over = threading.Event()

    def go_on() -> None:
        there = others()
        while not is_over.wait(LOOK_S):
            cut(node, there)

    thread = threading.Thread(target=go_on, name="chaos-flap", daemon=True)
    thread.start()

    def end() -> None:
        is_over.set()
        thread.join()

    return end


def cut(node: int, others: Collection[int]) -> int:
    """Close the connections that one process has to others now; how many there were."""
    far = {ends for other in others for _, ends in _connections(other)}
    count = 0
    for connection, (own, other) in _connections(node):
        if (other, own) in far:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def refuse(agent: int) -> Callable[[], None]:
    """Close a process's ports and connections; return what opens the ports again.

    The process is stopped meanwhile: it would notice that its sockets do not listen any more, which
    none does behind a firewall.

    Raises:
        ConfigError: It listens nowhere.
    """
    os.kill(agent, signal.SIGSTOP)
    listening = [one for one in _sockets(agent) if _listens(one)]
    if not listening:
        os.kill(agent, signal.SIGCONT)
        raise ConfigError(f"process {agent} listens nowhere")
    addresses = [one.getsockname() for one in listening]
    for listener in listening:
        listener.shutdown(socket.SHUT_RDWR)
    for connection, _ in _connections(agent):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def listen() -> None:
        for listener, address in zip(listening, addresses, strict=True):
            with suppress(OSError):  # one that was bound to a number still is
                listener.bind(address)
            with listener, suppress(OSError):
                listener.listen(BACKLOG)
        with suppress(ProcessLookupError):
            os.kill(agent, signal.SIGCONT)

    return listen


def _connections(pid: int) -> Iterator[tuple[socket.socket, Ends]]:
    """Yield the connections of a process, each as a socket here for as long as it is looked at."""
    for one in _sockets(pid):
        with one, suppress(OSError):
            yield one, (one.getsockname(), one.getpeername())


def _listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _sockets(pid: int) -> Iterator[socket.socket]:
    with suppress(OSError):  # it may be gone
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(file.readlink()).startswith("socket:"):
                    found = socket.socket(fileno=_second(pid, int(file.name)))
                    if found.family in (socket.AF_INET, socket.AF_INET6):
                        yield found
                    else:
                        found.close()


def _second(pid: int, fd: int) -> int:
    """Return a descriptor here of what a descriptor of another process is of.

    Raises:
        OSError: It cannot be had, or is gone.
    """
    pidfd = os.pidfd_open(pid)
    try:
        found = int(ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, fd, 0))
        if found < 0:
            number = ctypes.get_errno() or errno.EPERM
            raise OSError(number, os.strerror(number))
        return found
    finally:
        os.close(pidfd)
