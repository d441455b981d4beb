"""Free memory of the machine, and of a container or Slurm job."""

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from gemini_lab.errors import CapacityError
from gemini_lab.units import format_bytes

_CGROUPS = Path("/sys/fs/cgroup")
MACHINE_BYTES: Final = 512 << 20
"""A node with a small model on one worker: lab 00's five take 2.5 GB, notebook included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemory:
    """Memory that can be taken now."""

    size_bytes: int  # how much
    bound_by: str  # what sets the bound, for people


def free_memory(
    *, cgroups: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")
) -> FreeMemory:
    """Return the least free memory of the machine and of each control group of this process."""
    machine = FreeMemory(size_bytes=psutil.virtual_memory().available, bound_by="the machine")
    return min([machine, *_groups(cgroups, membership)], key=lambda free: free.size_bytes)


MEASURE: Final[ContextVar[Callable[[], FreeMemory]]] = ContextVar("MEASURE", default=free_memory)
"""Measures the memory of the machine on which code runs: each simulated one has its own."""


def kernel_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes of this machine the kernel has ended for want of memory."""
    try:
        counts = dict(line.split() for line in vmstat.read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def require_memory(size_bytes: int, *, purpose: str, way_out: str) -> None:
    """Refuse, with a CapacityError, `size_bytes` that cannot be taken now."""
    free = MEASURE.get()()
    if size_bytes > free.size_bytes:
        raise CapacityError(
            f"{purpose} needs {format_bytes(size_bytes)} of memory, but {free.bound_by} has "
            f"{format_bytes(free.size_bytes)} left; {way_out}"
        )


def too_little_for(machines: int, free: FreeMemory) -> str:
    """Return a warning if this many machines of a lab do not fit on this one; empty if they do.

    The next lab on the same machine, another student's for example, sees what this one has left.
    """
    needed_bytes = machines * MACHINE_BYTES
    if needed_bytes <= free.size_bytes:
        return ""
    return (
        f"{machines} nodes, standbys included, take some {format_bytes(needed_bytes)} of memory, "
        f"and {free.bound_by} has {format_bytes(free.size_bytes)} left: what starts may be "
        "killed; take fewer nodes, or wait until others on this machine are done"
    )


def _groups(cgroups: Path, membership: Path) -> Iterator[FreeMemory]:
    """Yield the free memory of each control group with a limit, by both kernel interfaces."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # no control groups on this system
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = (
                cgroups / "memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            )
        else:
            continue
        group = root / path.lstrip("/")
        for folder in [group, *group.parents]:
            if folder.is_relative_to(root) and (left := _left_bytes(folder, *names)) is not None:
                yield FreeMemory(size_bytes=left, bound_by=f"the control group {folder}")


def _left_bytes(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """Limit less usage, page cache that can be dropped not counted; None without a limit."""
    try:
        limit_bytes = int((folder / limit).read_text())
        usage_bytes = int((folder / usage).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such file, or "max"
        return None
    stat = dict(line.split(maxsplit=1) for line in lines)
    return max(0, limit_bytes - usage_bytes + int(stat.get(reclaimable, 0)))
