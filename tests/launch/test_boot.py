"""What crosses MPI while nodes start."""

import asyncio
import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec import structs

from gemini_lab.errors import LaunchError
from gemini_lab.launch.boot import hand_out, parts_of, shared_machine, start_agent
from gemini_lab.launch.etcd import find_etcd, start_etcd
from gemini_lab.node.agent import KEY_GRACE_S, run_agent
from gemini_lab.node.control_store import PATIENCE_S
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.start_config import (
    LAB_FILE,
    AgentConfig,
    AgentDown,
    AgentUp,
    BootOrder,
    Detached,
    LabRecord,
    SharedMachine,
)

RANKS = 3
WARM_PARENT = "gemini_lab.node.warm"
SOON_S = PATIENCE_S / 2  # of an agent with an etcd that does not answer


class World:
    """Stands for `Ranks`: one rank's end of a network on which somebody listens."""

    def __init__(self, rank, boxes, heard):
        self.rank, self.size, self._boxes, self._heard = rank, RANKS, boxes, heard

    def send(self, data, *, to):
        self._heard.append(data)
        self._boxes[self.rank, to].put(data)

    def receive(self, source):
        return self._boxes[source, self.rank].get(timeout=30)


def config(number):
    return AgentConfig(
        name=f"node-{number}",
        token="the token",
        etcd=EtcdAddress(endpoints=("host:1",), user="root", password="the password"),
        prefix="lab",
        lab=LabRecord(identity="", machines=1, lease_s=2.0, warm=True, threads=None),
    )


def test_each_rank_is_told_its_own_part_and_who_listens_learns_no_secret():
    order = BootOrder(agents=[config(rank) for rank in range(RANKS)], log_folder="/logs")
    boxes, heard, told = defaultdict(queue.Queue), [], {}

    def be(rank):
        parts = (lambda _: parts_of(order)) if rank == 0 else None
        part = hand_out(World(rank, boxes, heard), parts)
        told[rank] = msgspec.json.decode(part, type=BootOrder)

    threads = [threading.Thread(target=be, args=[rank]) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {rank: own.agents for rank, own in told.items()} == {
        rank: [config(rank)] for rank in range(RANKS)
    }
    assert len(heard) == 2 * RANKS
    assert not any(word in message for message in heard for word in (b"token", b"password"))


def test_hosts_that_are_one_machine_are_found_by_what_the_machine_says():
    shared = shared_machine(["localhost", "b", "127.0.0.1"], ["one", "two", "one"], {})
    assert shared == SharedMachine(hosts=["localhost", "127.0.0.1"])
    assert shared_machine(["c"], ["two"], {"two": "b"}) == SharedMachine(hosts=["b", "c"])


def test_one_name_twice_and_machines_of_their_own_are_what_was_meant():
    assert shared_machine(["a", "a", "b"], ["one", "one", "two"], {"three": "c"}) is None
    assert shared_machine([], ["one", "one"], {}) is None, "all on this machine"


def test_no_rank_is_told_to_start_anything_where_hosts_are_one_machine():
    order = BootOrder(agents=[config(rank) for rank in range(RANKS)], log_folder="/logs")
    parts = parts_of(order, SharedMachine(hosts=["a", "b"]))
    assert [msgspec.json.decode(part, type=BootOrder).agents for part in parts] == [[]] * RANKS


@pytest.fixture
def etcd():
    try:
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    with start_etcd() as started:
        yield started.address


def test_an_agent_whose_launcher_was_killed_before_it_could_answer_leaves_no_warm_parent(etcd):
    """That one imports for long, and sees only then that nobody needs it."""

    def answer(_up):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        asyncio.run(run_agent(structs.replace(config(0), etcd=etcd), answer))
    alive = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    left = [one for one in alive if WARM_PARENT in one.cmdline()]
    for process in left:
        process.kill()
    assert left == []


STARTS_AN_AGENT = """
import sys
import msgspec
from gemini_lab.launch.boot import start_agent
from gemini_lab.node.start_config import AgentConfig
start_agent(msgspec.json.decode(sys.argv[1], type=AgentConfig), sys.argv[2])
"""


def imports_torch(process):
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def test_an_agent_that_ends_is_told_with_its_exit_status_and_last_words(tmp_path, monkeypatch):
    (tmp_path / "psutil.py").write_text("raise RuntimeError('this psutil is broken')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    (tmp_path / "node-0.log").write_text("ValueError: of an earlier agent\n")
    down = start_agent(config(0), str(tmp_path))
    assert isinstance(down, AgentDown)
    assert "node-0's agent ended before it was ready (exit status 1)" in down.error
    assert "RuntimeError: this psutil is broken" in down.error
    assert "of an earlier agent" not in down.error


@pytest.mark.skipif(sys.platform != "linux", reason="only there it ends at once")
def test_an_agent_that_cannot_join_ends_with_whoever_started_it(tmp_path):
    """And so does its warm parent, which imports and hears nobody: no etcd is there any more."""
    with socket.create_server(("127.0.0.1", 0)) as nothing:
        port = nothing.getsockname()[1]
    alone = structs.replace(config(0), etcd=EtcdAddress(endpoints=(f"127.0.0.1:{port}",)))
    told = msgspec.json.encode(alone).decode()
    command = [sys.executable, "-c", STARTS_AN_AGENT, told, str(tmp_path)]
    with subprocess.Popen(command) as boot:
        below = []
        while not any(map(imports_torch, below)):
            time.sleep(0.05)
            below = psutil.Process(boot.pid).children(recursive=True)
        boot.kill()
    _, left = psutil.wait_procs(below, timeout=SOON_S)
    for process in left:
        process.kill()
    assert left == []


def test_a_machine_that_comes_when_its_detached_run_is_over_leaves_at_once(etcd, tmp_path):
    """It was on its way when the run ended, which nobody could tell it."""
    detached = Detached(owner="none", folder=str(tmp_path), identity="the run's")
    (tmp_path / LAB_FILE).write_text(detached.identity, encoding="utf-8")
    lab = structs.replace(config(0).lab, detached=detached)
    late = structs.replace(config(0), etcd=etcd, lab=lab)
    up = start_agent(late, str(tmp_path))
    assert isinstance(up, AgentUp)
    ends_soon(up)


@pytest.mark.usefixtures("etcd")
def test_an_agent_that_joined_as_its_launcher_was_killed_ends_soon(tmp_path):
    """Its lab has never connected, and the lab's etcd ended with the launcher."""
    with start_etcd() as started:
        up = start_agent(structs.replace(config(0), etcd=started.address), str(tmp_path))
        assert isinstance(up, AgentUp)
    ends_soon(up)


def ends_soon(up):
    agent = psutil.Process(up.pid)
    try:
        agent.wait(KEY_GRACE_S)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            agent.kill()
