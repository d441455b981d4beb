"""Memory of some processes and of what they keep as files in memory."""

from collections.abc import Iterable
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
    """Size of all files below `folder`."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # it was removed meanwhile
            continue
    return total
