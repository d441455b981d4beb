"""Semaphores of a worker and of processes that it spawned, a DataLoader's workers among them.

`multiprocessing` keeps one of 32 bytes in /dev/shm for each lock and queue that a spawned process
opens by its name, and a process beside the script removes them at its end; not where that is
killed, with the whole group. They are named after the worker, so that who killed it can.
"""

import multiprocessing
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where Linux keeps them


def semaphore_prefix(run: int, pid: int) -> str:
    """How the semaphores of a run's worker begin, and of nobody else."""
    return f"gemini-{run:08x}-{pid}"


def name_semaphores(prefix: str) -> None:
    """Have those of this process, and of all that it starts, begin so."""
    # Python has no other way in than this.
    multiprocessing.current_process()._config["semprefix"] = f"/{prefix}"  # type: ignore[attr-defined]  # noqa: SLF001


def remove_semaphores(prefix: str) -> None:
    """Remove those of processes that are gone; only Linux says which there are."""
    if sys.platform == "linux":
        for path in _FOLDER.glob(f"sem.{prefix}-*"):
            with suppress(OSError):
                path.unlink()
