"""Locks that a killed worker leaves where PyTorch compiles extensions, DeepSpeed's among them.

`torch.utils.cpp_extension` makes a file called `lock` before it compiles, and removes it at the
end. Who finds one waits until it is gone, for ever: a worker that is killed while it compiles would
hold up all later ones. It keeps the file open as long as it lives, which tells a lock that is left
from one that is held; but only on its own machine, and many may share the folder.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Locks that no process of this machine holds.

    Attributes:
        ours: Made since this node's agent started: a worker of this job, ended by now, left it.
        older: Made before; another machine may hold it.
    """

    ours: tuple[Path, ...]
    older: tuple[Path, ...]


def build_root(environment: Mapping[str, str]) -> Path:
    """Where PyTorch compiles extensions for this user."""
    if (told := environment.get("TORCH_EXTENSIONS_DIR")) is not None:
        return Path(told)
    cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "torch_extensions"


def left_locks(root: Path, *, since_s: float) -> Left:
    """The locks below `root` that nobody here holds; call it when all workers have ended.

    Args:
        root: Where extensions are compiled, each in a folder of its own.
        since_s: When this node's agent started, in seconds since the epoch.
    """
    made_s = {}
    for lock in (*root.glob("*/lock"), *root.glob("*/*/lock")):
        with contextlib.suppress(OSError):  # released meanwhile
            made_s[lock.resolve()] = lock.stat().st_mtime
    held = set(_open_files()) if made_s else set()
    left = {lock: at_s for lock, at_s in made_s.items() if str(lock) not in held}
    return Left(
        ours=tuple(lock for lock, at_s in left.items() if at_s >= since_s),
        older=tuple(lock for lock, at_s in left.items() if at_s < since_s),
    )


def _open_files() -> Iterator[str]:
    """Paths of the files that this user's processes have open on this machine."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid():
                yield from (file.path for file in process.open_files())
