"""Messages and file descriptors between an agent and the processes of its own node.

A message is one line: a number, how many descriptors come along, and its JSON.
"""

import os
import select
import socket
import sys
import threading
from collections import deque
from typing import Final

from gemini_lab.errors import MessageError
from gemini_lab.recovery.messages import Message, decode, encode, require_size

LIMIT_BYTES: Final = 2**30
"""Of a message within a node: the layouts of a model's shards are in some."""
_READ_BYTES = 2**16
_MAX_FDS = 253  # the kernel's limit for one message
_NO_DESCRIPTOR = (
    "gemini_lab: this process may open no further files, and could not take what came with a "
    "message: its connection ends; raise the limit of open files (ulimit -n)"
)


class LocalChannel:
    """One end of a socket pair; a message may carry open file descriptors along.

    `send` and `receive` block; an event loop calls `poll` when the socket is readable. Any thread
    may send; one receives.
    """

    def __init__(self, end: socket.socket, *, most_bytes: int = LIMIT_BYTES) -> None:
        self._socket = end
        self._most_bytes = most_bytes  # of a message
        self._buffer = bytearray()
        self._lines: deque[bytes] = deque()
        self._fds: deque[int] = deque()
        self._sending = threading.Lock()

    @classmethod
    def pair(cls, *, most_bytes: int = LIMIT_BYTES) -> tuple["LocalChannel", "LocalChannel"]:
        """Return two connected ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours, most_bytes=most_bytes), cls(theirs, most_bytes=most_bytes)

    @classmethod
    def adopt(cls, fd: int) -> "LocalChannel":
        """Adopt the end that another process passed on as `fd`."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> bool:
        """Send one message; says whether the other end still listens.

        Raises:
            MessageError: It is larger than the other end reads. Nothing of it was sent.
        """
        line = b"%d%b\n" % (len(fds), encode(message, self._most_bytes))
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
        """Wait until a message or the other end's close arrives; return whether one did in time."""
        poller = select.poll()  # `select` knows no descriptor from 1,024 on
        poller.register(self, select.POLLIN)
        return bool(poller.poll(1000 * within_s))

    def poll(self) -> tuple[list[tuple[Message, list[int]]], bool]:
        """Receive what is there, and return whether the other end is still open."""
        is_open = self._read()
        found = []
        while self._lines:
            found.append(self._next())
        return found, is_open

    def close(self) -> None:
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
        first, *others = data.split(b"\n")  # what came before is not searched again
        self._buffer += first
        for line in others:
            self._lines.append(bytes(self._buffer))
            self._buffer[:] = line
        return bool(data) and self._is_short()

    def _is_short(self) -> bool:
        """Return whether what comes may still be a message; a longer one is not read."""
        try:
            require_size(len(self._buffer), self._buffer, self._most_bytes)
        except MessageError as error:
            print(f"gemini_lab: {error}", file=sys.stderr)  # noqa: T201 - the process's log
            self._buffer.clear()
            return False
        return True
