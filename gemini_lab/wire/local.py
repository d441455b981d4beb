"""Messages and file descriptors between an agent and the processes of its own node.

A message is one line: a number, how many descriptors come along, and its JSON.
"""

import os
import select
import socket
import sys
import threading
from collections import deque

from gemini_lab.recovery.messages import Message, decode, encode

_READ_BYTES = 2**16
_MAX_FDS = 253  # the kernel's limit for one message
_NO_DESCRIPTOR = (
    "gemini_lab: this process may open no more files, and could not take what came with a message: "
    "its connection ends; raise the limit of open files (ulimit -n)"
)


class LocalChannel:
    """One end of a socket pair; a message may carry open file descriptors along.

    `send` and `receive` block; an event loop calls `poll` when the socket is readable. Any thread
    may send; one receives.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray()
        self._lines: deque[bytes] = deque()
        self._fds: deque[int] = deque()
        self._sending = threading.Lock()

    @classmethod
    def pair(cls) -> tuple["LocalChannel", "LocalChannel"]:
        """Two connected ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), cls(theirs)

    @classmethod
    def adopt(cls, fd: int) -> "LocalChannel":
        """The end that another process passed on as `fd`."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> bool:
        """Send one message; says whether the other end still listens."""
        line = b"%d%b\n" % (len(fds), encode(message))
        try:
            with self._sending:
                sent = socket.send_fds(self._socket, [line], list(fds)) if fds else 0
                self._socket.sendall(line[sent:])
        except (BrokenPipeError, ConnectionError, OSError):
            return False
        return True

    def receive(self) -> tuple[Message, list[int]] | None:
        """Wait for the next message with its descriptors; `None` when the other end is gone."""
        while not self._lines:
            if not self._read():
                return None
        return self._next()

    def waits(self, within_s: float) -> bool:
        """Whether something is there to receive, or the other end is gone, within so long."""
        poller = select.poll()  # `select` knows no descriptor from 1,024 on
        poller.register(self, select.POLLIN)
        return bool(poller.poll(1000 * within_s))

    def poll(self) -> tuple[list[tuple[Message, list[int]]], bool]:
        """What is there after the socket became readable, and whether the other end is open."""
        is_open = self._read()
        found = []
        while self._lines:
            found.append(self._next())
        return found, is_open

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _next(self) -> tuple[Message, list[int]]:
        line = self._lines.popleft()
        start = line.index(b"{")
        return decode(line[start:]), [self._fds.popleft() for _ in range(int(line[:start]))]

    def _read(self) -> bool:
        try:
            data, fds, flags, _ = socket.recv_fds(self._socket, _READ_BYTES, _MAX_FDS)
        except (ConnectionError, OSError):
            return False
        if flags & socket.MSG_CTRUNC:  # whose memory a message is about would be mistaken
            for fd in fds:
                os.close(fd)
            print(_NO_DESCRIPTOR, file=sys.stderr)  # noqa: T201 - the process's log
            return False
        self._fds.extend(fds)
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        self._lines.extend(bytes(line) for line in lines)
        return bool(data)
