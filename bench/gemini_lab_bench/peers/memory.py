"""Memory of some processes and of what they keep as files in memory."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil


def family_bytes(roots: Iterable[int]) -> int:
    """Proportional set size of the processes in `roots` and of all their descendants.

    Memory that several of them map counts once. Where the system does not tell it, resident sizes
    are added up, which counts shared memory in each of them.
    """
    family: dict[int, psutil.Process] = {}
    for pid in roots:
        try:
            root = psutil.Process(pid)
            family |= {one.pid: one for one in (root, *root.children(recursive=True))}
        except psutil.Error:  # it ended meanwhile
            continue
    return sum(_process_bytes(process) for process in family.values())


def _process_bytes(process: psutil.Process) -> int:
    try:
        info = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(info, "pss", info.rss))


def folder_bytes(folder: Path) -> int:
    """Size of all files below `folder`; those count not that go or move meanwhile."""
    total = 0
    for where, _, names in os.walk(folder):  # unlike `rglob`, it bears folders that are renamed
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(where, name).stat().st_size
    return total
