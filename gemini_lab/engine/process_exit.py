"""How a training process ends."""

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Final, NoReturn

import psutil


class Idleness:
    """How long a process has used no processor, as far as it was looked at."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_s, self._since_s = self._read_s(), time.monotonic()

    def look(self) -> float:
        """Return the seconds since the last look at which it had worked."""
        before_s, self._used_s = self._used_s, self._read_s()
        if self._used_s != before_s:
            self._since_s = time.monotonic()
        return time.monotonic() - self._since_s

    def _read_s(self) -> float:
        try:
            times = psutil.Process(self._pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)


PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


def leave(status: int) -> NoReturn:
    """End this process now, without taking its interpreter apart.

    Gloo's threads may still be letting go of the last collectives' tensors, and one that does so in
    an interpreter that is ending aborts the process, although all its work is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # Not `sys.exit`: Gloo's threads free tensors, and need the interpreter for it.
    os._exit(status)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies."""
    if sys.platform == "linux":
        tie_to_parent()
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def tie_to_parent() -> None:
    """Ask the kernel for it, on Linux alone: there is no thread, and it can be undone.

    The parent is the thread that has started this process.
    """
    _at_parents_death(signal.SIGKILL)


def untie_from_parent() -> None:
    """Cancel `die_with_parent`: this process outlives its parent again."""
    _at_parents_death(0)


def adopt_orphans() -> None:
    """Become the parent of what this process's children leave running when they end (Linux)."""
    if sys.platform == "linux":
        # Orphans of a worker would else go to init, where nobody ends them with the node.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _at_parents_death(signal_number: int) -> None:
    if sys.platform == "linux":
        # The kernel sends the signal when the thread ends that has forked, not the process.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number)
