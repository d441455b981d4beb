"""A lab's own processes on this machine: whoever runs them is found by module and lab."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

import psutil

AGENT: Final = "gemini_lab.node.agent"
STORE_KEEPER: Final = "gemini_lab.launch.etcd_keeper"


def processes_of(module: str, lab: str | None) -> Iterator[psutil.Process]:
    """Those that run a module, with the prefix of a lab's keys or its identity as an argument.

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
    """Whether it runs; one that has ended and that nobody has waited for does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def release_store(prefix: str) -> None:
    """Tell the keeper of a member of the lab's own etcd, if one is here, that the lab is over."""
    for keeper in processes_of(STORE_KEEPER, prefix):
        with contextlib.suppress(psutil.Error):
            keeper.send_signal(signal.SIGTERM)
