"""Sockets that are shut, and that a library's loop looks at for ever without closing them.

Where a message is half received whose receiver has given up, Gloo reads no further: it never sees
that its connection is closed, and its loop is woken for that again and again, a whole core's worth.
Linux's epoll can be told to wake it for that socket once more, and then no more.
"""

import ctypes
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_OPEN: Final = Path("/proc/self/fd")
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
    """Have whoever watches this descriptor in this process be woken for it once, and then never.

    It may still be closed as any other.
    """
    for watcher, data in _watchers(fd):
        event = _Event(_ONCE, data)
        _libc.epoll_ctl(watcher, _MODIFY, fd, ctypes.byref(event))  # it may be gone by now


def _watchers(fd: int) -> Iterator[tuple[int, int]]:
    """This process's epoll descriptors that watch it, and what each is given back when it wakes."""
    for file in _OPEN.iterdir():
        with suppress(OSError):
            if str(file.readlink()) == _EPOLL:
                for watched, data in _WATCHED.findall((_KEPT / file.name).read_text()):
                    if int(watched) == fd:
                        yield int(file.name), int(data, 16)
