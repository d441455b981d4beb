"""A lab's own processes on this machine, found by module and lab."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

AGENT: Final = "gemini_lab.node.agent"
STORE_KEEPER: Final = "gemini_lab.launch.etcd_keeper"
FORKS: Final = frozenset({"gemini_lab.node.warm", "gemini_lab.node.cold"})
"""Of what was forked by a worker, and is named as that is, one of these."""
WORKER: Final = "GEMINI_LAB_WORKER"
"""In the environment of what a worker's script starts: the worker's process."""


def processes_of(module: str, lab: str | None) -> Iterator[psutil.Process]:
    """Yield the processes that run a module, with a lab's prefix or identity as an argument.

    Args:
        module: Its name.
        lab: The prefix or the identity; `None`: of any lab.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it may have ended
            words = process.cmdline()
            if module in words and (lab is None or lab in words):
                yield process


def is_alive(process: psutil.Process) -> bool:
    """Return whether it runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_process_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger holds this process."""
    try:
        return psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except psutil.Error:
        return False


def release_store(prefix: str) -> None:
    """Tell the keeper of a member of the lab's own etcd, if one is here, that the lab is over."""
    for keeper in processes_of(STORE_KEEPER, prefix):
        with contextlib.suppress(psutil.Error):
            keeper.send_signal(signal.SIGTERM)


def reap(child: "subprocess.Popen[Any]") -> None:
    """Wait for a child in the background: its starter goes on, and it must not stay as a zombie.

    A zombie keeps its number, and looks to other programs like a process that runs.
    """
    threading.Thread(target=child.wait, name="gemini-reaper", daemon=True).start()


def worker_of(process: psutil.Process) -> int | None:
    """Return the worker whose script started a process, as its environment says; else `None`."""
    with contextlib.suppress(psutil.Error, ValueError, OSError):
        return int(process.environ().get(WORKER, ""))
    return None


def is_workers(process: psutil.Process) -> bool:
    """Return whether a process descends from a worker that has ended: it says so, or was forked."""
    with contextlib.suppress(psutil.Error, OSError):
        if process.status() == psutil.STATUS_ZOMBIE:  # without command line or environment
            return os.getpgid(process.pid) != os.getpgrp()
        is_forked = not FORKS.isdisjoint(process.cmdline())
        if is_forked and os.getpgid(process.pid) != os.getpgrp():
            return True
        return worker_of(process) not in {None, worker_of(psutil.Process())}  # a lab in a worker
    return False


def kill_all(doomed: Collection[psutil.Process], *, within_s: float) -> None:
    """Kill processes, and wait until none runs; one that the kernel does not end is left."""
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    give_up_s = time.monotonic() + within_s
    # psutil would wait for a zombie, too, whose parent may itself wait for us.
    while any(map(is_alive, doomed)) and time.monotonic() < give_up_s:
        time.sleep(0.01)


def end_orphans(is_left: Callable[[psutil.Process], bool], *, within_s: float = 0.0) -> None:
    """End children of this process that it never started, with all that descends from them.

    Args:
        is_left: Whether a child is one that a process which has ended left running.
        within_s: For them to be gone; one that the kernel does not end is left.
    """
    give_up_s = time.monotonic() + within_s
    while left := [one for one in psutil.Process().children() if is_left(one)]:
        for one in left:
            # What it had started becomes this process's child only when it dies: hence the loop.
            signal_tree(one.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(one.pid, os.WNOHANG)
        if time.monotonic() > give_up_s:
            return
        time.sleep(0.01)


def signal_tree(pid: int, signal_number: int) -> None:
    """Send a signal to a process and to all that descends from it, in any session."""
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in [*top.children(recursive=True), top]:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal_number)


def held_bytes(pid: int | None) -> int:
    """Return how much memory a process has; 0 where that cannot be seen."""
    if pid is None:
        return 0
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


# ---- semaphores of workers ----

_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - where Linux keeps them


def semaphore_prefix(run: int, pid: int) -> str:
    """Return how the semaphores of a run's worker begin, and no others."""
    return f"gemini-{run:08x}-{pid}"


def name_semaphores(prefix: str) -> None:
    """Begin the names of semaphores of this process, and of all that it starts, with `prefix`."""
    # `SemLock` makes names with this key, and children inherit it. Without a prefix of their own
    # the semaphores of a killed worker could not be told from those of others.
    multiprocessing.current_process()._config["semprefix"] = f"/{prefix}"  # type: ignore[attr-defined]  # noqa: SLF001


def remove_semaphores(prefix: str) -> None:
    """Remove those of processes that are gone; only Linux says which there are."""
    if sys.platform == "linux":
        for path in _FOLDER.glob(f"sem.{prefix}-*"):
            with suppress(OSError):
                path.unlink()
