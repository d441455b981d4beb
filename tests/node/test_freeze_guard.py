"""A node that stands still ends with its lab, and not before."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import psutil
import pytest
from waiting import until

from gemini_lab.launch.etcd import start_etcd
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.freeze_guard import PROGRAM, end_stopped
from gemini_lab.node.processes import AGENT
from gemini_lab.node.start_config import LAB_KEY

NODE = """
import os, subprocess, sys, time
import msgspec
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.freeze_guard import stand_guard
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
stand_guard(os.getpid(), sys.argv[1], msgspec.json.decode(sys.argv[2], type=EtcdAddress))
print("guarded", flush=True)
time.sleep(600)
"""
"""As an agent is: it starts its own guard, and others."""


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdAddress]:
    with start_etcd() as started:
        yield started.address


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"gemini_lab/{request.node.name}-{os.getpid()}"


@pytest.fixture
def store(etcd: EtcdAddress, prefix: str) -> Iterator[EtcdStore]:
    """A lab's, which has begun."""
    store = EtcdStore(etcd, prefix)
    store.put(LAB_KEY, "{}")
    yield store
    store.close()


@pytest.fixture
def nodes(etcd: EtcdAddress, prefix: str) -> Iterator[list[list[psutil.Process]]]:
    """Two processes as agents are, and one that each started."""
    words = [sys.executable, "-c", NODE, prefix, msgspec.json.encode(etcd).decode()]
    agents = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    processes = []
    for agent in agents:
        below = psutil.Process(int(agent.stdout.readline()))
        processes.append([psutil.Process(agent.pid), below])
        assert agent.stdout.readline() == "guarded\n"
    yield processes
    for process in itertools.chain(*processes):
        if process.is_running():
            process.kill()
    for agent in agents:
        agent.wait()
        agent.stdout.close()


def freeze(node: list[psutil.Process]) -> None:
    for process in node:
        process.send_signal(signal.SIGSTOP)


def guard_of(node: list[psutil.Process]) -> psutil.Process:
    return next(child for child in node[0].children() if PROGRAM in child.cmdline())


def is_over(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_frozen_node_outlives_no_lab_and_one_that_goes_on_is_left_alone(store, nodes) -> None:
    guards = [guard_of(node) for node in nodes]
    for node in nodes:
        freeze(node)
    time.sleep(4)
    assert not any(is_over(process) for process in itertools.chain(*nodes))
    stays, frozen = nodes
    for process in stays:
        process.send_signal(signal.SIGCONT)
    until(lambda: is_over(guards[0]))
    store.delete(LAB_KEY)
    until(lambda: all(is_over(process) for process in (*frozen, guards[1])))
    assert not any(is_over(process) for process in stays)


@pytest.fixture
def agents(prefix: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Two that look like agents of a lab, with a child each, and one of another lab."""
    text = "import subprocess as s; p = s.Popen(['sleep', '600']); print(p.pid, flush=1); p.wait()"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", text, AGENT, lab],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for lab in (prefix, prefix, f"{prefix}-other")
    ]
    yield started
    for one in started:
        with one:
            os.killpg(one.pid, signal.SIGKILL)


def stop(agents: list[subprocess.Popen[str]]) -> list[list[psutil.Process]]:
    """Stop the first and the last, as a person does; gives each with its child."""
    nodes = []
    for one in agents:
        assert one.stdout is not None
        nodes.append([psutil.Process(one.pid), psutil.Process(int(one.stdout.readline()))])
    for node in (nodes[0], nodes[2]):
        freeze(node)
        until(lambda node=node: node[0].status() == psutil.STATUS_STOPPED)  # type: ignore[misc]
    return nodes


def test_what_a_person_stopped_ends_with_its_lab_and_nothing_else_does(
    agents: list[subprocess.Popen[str]], prefix: str
) -> None:
    stopped, going, others = stop(agents)
    end_stopped(prefix)
    until(lambda: all(map(is_over, stopped)))
    assert not any(map(is_over, (*going, *others)))


def test_the_keeper_of_a_labs_etcd_ends_with_it_what_was_stopped(
    agents: list[subprocess.Popen[str]], prefix: str
) -> None:
    """Where all agents of a machine stand still, none of them can."""
    with start_etcd("127.0.0.1", prefix):
        stopped, going, others = stop(agents)
        assert not any(map(is_over, stopped))
    until(lambda: all(map(is_over, stopped)))
    assert not any(map(is_over, (*going, *others)))
