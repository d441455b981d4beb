"""Ends a node that was frozen once its lab is over: what is stopped cannot end itself.

Run as `python -m gemini_lab.node.freeze_guard PREFIX PID`, with the prefix of the lab's keys and
the agent that is to be stopped. It reads the store's `EtcdAddress` as JSON from standard input, and
ends by itself when the agent goes on, or is gone.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

import msgspec
import psutil

from gemini_lab.job import python_command
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.processes import AGENT, is_process_stopped, processes_of, reap
from gemini_lab.node.start_config import LAB_KEY

PROGRAM: Final = "gemini_lab.node.freeze_guard"
LOOK_S: Final = 1.0
STOP_S: Final = 60.0
DEAF_S: Final = 20.0
"""A store that is away for so long has ended with its lab."""


def stand_guard(pid: int, prefix: str, etcd: EtcdAddress) -> None:
    """Start a process that ends the agent `pid`, which is about to be stopped, with its lab.

    It is in no session of the agent's, and so is not stopped with it.
    """
    # A session of its own: a launcher that clears up kills the sessions of its agents.
    guard = subprocess.Popen(
        python_command(PROGRAM, prefix, pid),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert guard.stdin is not None
    with guard.stdin as told:
        told.write(msgspec.json.encode(etcd))
    reap(guard)  # it ends before the agent if the agent goes on


def watch(pid: int, prefix: str, etcd: EtcdAddress) -> None:
    """Wait until the agent goes on, or until its lab is over; then end it with all it started."""
    with suppress(psutil.NoSuchProcess):
        agent = psutil.Process(pid)
        if _stops(agent) and _outlives_its_lab(agent, EtcdStore(etcd, prefix)):
            _end_node(agent)


def end_stopped(prefix: str) -> None:
    """End the nodes of a lab on this machine whose agents stand still, as the lab is over.

    A guard stands only where the lab itself stopped a node: a user or a scheduler does not say so.

    Args:
        prefix: Of the lab's keys.
    """
    for agent in processes_of(AGENT, prefix):
        if is_process_stopped(agent.pid):
            with suppress(psutil.Error):
                _end_node(agent)


def _end_node(agent: psutil.Process) -> None:
    """End an agent, and all that it started; this process may be one of these."""
    for process in [*agent.children(recursive=True), agent]:
        if process.pid != os.getpid():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _stops(agent: psutil.Process) -> bool:
    """Return whether the agent is stopped at last: it says what struck it before."""
    began_s = time.monotonic()
    while agent.is_running() and time.monotonic() < began_s + STOP_S:
        if is_process_stopped(agent.pid):
            return True
        time.sleep(LOOK_S)
    return False


def _outlives_its_lab(agent: psutil.Process, store: EtcdStore) -> bool:
    """Return whether the lab ends before the agent goes on, or is gone."""
    seen_s = time.monotonic()
    while agent.is_running() and is_process_stopped(agent.pid):
        with suppress(StoreUnavailableError):
            if LAB_KEY not in store.names():
                return True
            seen_s = time.monotonic()
        if time.monotonic() > seen_s + DEAF_S:
            return True
        time.sleep(LOOK_S)
    return False


if __name__ == "__main__":
    watch(
        int(sys.argv[2]),
        sys.argv[1],
        msgspec.json.decode(sys.stdin.buffer.read(), type=EtcdAddress),
    )
