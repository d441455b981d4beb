"""Keep a handed-in notebook's process from the course that it is judged with.

Both processes are the same user's, whose files the solutions are. Linux's Landlock takes rights
away from a process for good, from its children too, and needs no other user for that: files below
the hidden folders cannot be opened, and processes outside can be neither written to nor signalled.
See landlock(7). Where the kernel has none of it, nothing is hidden.
"""

import ctypes
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

CREATE, ADD, RESTRICT = 444, 445, 446
"""Numbers of the system calls, the same on all machines."""
VERSION_WANTED: Final = 1
BENEATH: Final = 1
NO_NEW_PRIVILEGES: Final = 38
SIGNALS: Final = 1 << 1
"""In `scoped`: processes outside get no signals."""
LISTING: Final = 1 << 3
OF_FILES: Final = 0b111 | 1 << 14
"""Execute, write, read, truncate."""
RIGHTS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
"""What can be taken away, by the version that the kernel has."""
SCOPES_FROM: Final = 6


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def hide(folders: Collection[Path]) -> bool:
    """Take from this process what lies in these folders; whether the kernel does so.

    Names in the folders around them can still be listed; files made there later cannot be opened.
    """
    hidden = [folder.resolve() for folder in folders if folder.exists()]
    if not hidden or not sys.platform.startswith("linux"):
        return False
    version = _call(CREATE, None, 0, VERSION_WANTED)
    if version < 1:
        return False
    rights = RIGHTS[min(version, max(RIGHTS))]
    scoped = SIGNALS if version >= SCOPES_FROM else 0
    rules = _Ruleset(rights, 0, scoped)
    size = ctypes.sizeof(rules) if scoped else 8  # older kernels know the first field only
    number = _call(CREATE, ctypes.byref(rules), size, 0)
    if number < 0:
        return False
    _allow(number, Path("/"), rights & LISTING)
    for path in _around(hidden):
        _allow(number, path, rights if path.is_dir() else rights & OF_FILES)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    is_done = _call(RESTRICT, number, 0) == 0
    os.close(number)
    return is_done


def _around(hidden: Collection[Path]) -> Iterator[Path]:
    """All that is beside the hidden folders, and beside the folders that they are in."""
    above = {parent for folder in hidden for parent in folder.parents}
    for folder in sorted(above):
        for path in folder.iterdir() if os.access(folder, os.R_OK) else ():
            if path not in above and path not in hidden and not path.is_symlink():
                yield path


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it is gone, or was never ours to open
    beneath = _Beneath(rights, opened)
    _call(ADD, rules, BENEATH, ctypes.byref(beneath), 0)
    os.close(opened)


def _call(*arguments: object) -> int:
    return int(libc.syscall(*arguments))


libc: Final = ctypes.CDLL(None, use_errno=True)
