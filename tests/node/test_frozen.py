"""A node that stands still ends with its lab, and not before."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from gemini_lab.launch.etcd import start_etcd
from gemini_lab.node.config import LAB_KEY
from gemini_lab.node.control_store import EtcdAddress, EtcdStore
from gemini_lab.node.frozen import PROGRAM, stand_guard

LIMIT_S = 60.0
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdAddress]:
    with start_etcd() as started:
        yield started.address


@pytest.fixture
def node() -> Iterator[list[psutil.Process]]:
    """A process as an agent is, and one that it started."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    processes = [psutil.Process(parent.pid), psutil.Process(int(parent.stdout.readline()))]
    yield processes
    for process in processes:
        if process.is_running():
            process.kill()
    parent.wait()
    parent.stdout.close()


def freeze(node: list[psutil.Process]) -> None:
    for process in node:
        process.send_signal(signal.SIGSTOP)


def guard() -> psutil.Process:
    """The newest of them: an older one may be over."""
    living = (child for child in psutil.Process().children() if not is_over(child))
    return next(child for child in living if PROGRAM in child.cmdline())


def until(holds: object) -> None:
    assert callable(holds)
    end_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.1)


def is_over(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_frozen_node_outlives_no_lab(etcd: EtcdAddress, node: list[psutil.Process]) -> None:
    prefix = f"gemini_lab/frozen-{os.getpid()}"
    store = EtcdStore(etcd, prefix)
    store.put(LAB_KEY, "{}")
    stand_guard(node[0].pid, prefix, etcd)
    mine = guard()
    freeze(node)
    time.sleep(4)
    assert not any(is_over(process) for process in node)
    store.delete(LAB_KEY)
    until(lambda: all(is_over(process) for process in node))
    until(lambda: is_over(mine))
    store.close()


def test_a_node_that_goes_on_is_left_alone(etcd: EtcdAddress, node: list[psutil.Process]) -> None:
    prefix = f"gemini_lab/thawed-{os.getpid()}"
    store = EtcdStore(etcd, prefix)
    store.put(LAB_KEY, "{}")
    stand_guard(node[0].pid, prefix, etcd)
    mine = guard()
    freeze(node)
    time.sleep(4)
    for process in node:
        process.send_signal(signal.SIGCONT)
    until(lambda: is_over(mine))
    store.delete(LAB_KEY)
    assert not any(is_over(process) for process in node)
    store.close()
