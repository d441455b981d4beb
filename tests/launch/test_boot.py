"""What crosses MPI while nodes start."""

import asyncio
import contextlib
import queue
import threading
from collections import defaultdict

import msgspec
import psutil
import pytest
from msgspec import structs

from gemini_lab.errors import LaunchError
from gemini_lab.launch.boot import hand_out, parts_of, shared_machine, start_agent
from gemini_lab.launch.etcd import find_etcd, start_etcd
from gemini_lab.node.agent import KEY_GRACE_S, run_agent
from gemini_lab.node.config import (
    LAB_FILE,
    AgentConfig,
    AgentUp,
    BootOrder,
    Detached,
    SharedMachine,
)
from gemini_lab.node.etcd_address import EtcdAddress

RANKS = 3
WARM_PARENT = "gemini_lab.node.warm"


class Request:
    """A send or receive under way, as mpi4py gives it."""

    def __init__(self, take):
        self._take = take

    def test(self):
        try:
            return True, self._take()
        except queue.Empty:
            return False, None


class World:
    """Stands for MPI's: one rank's end of a network on which somebody listens."""

    def __init__(self, rank, boxes, heard):
        self.rank, self.size, self._boxes, self._heard = rank, RANKS, boxes, heard

    def isend(self, message, dest):
        self._heard.append(message)
        self._boxes[self.rank, dest].put(message)
        return Request(lambda: None)

    def irecv(self, source):
        return Request(self._boxes[source, self.rank].get_nowait)


def config(number):
    return AgentConfig(
        name=f"node-{number}",
        token="the token",
        etcd=EtcdAddress(endpoints=("host:1",), user="root", password="the password"),
        prefix="lab",
        lease_s=2.0,
        warm=True,
        threads=None,
    )


def test_each_rank_is_told_its_own_part_and_who_listens_learns_no_secret():
    order = BootOrder(agents=[config(rank) for rank in range(RANKS)], log_folder="/logs")
    boxes, heard, told = defaultdict(queue.Queue), [], {}

    def be(rank):
        parts = (lambda _: parts_of(order)) if rank == 0 else None
        part, _ = hand_out(World(rank, boxes, heard), parts)
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


def test_a_machine_that_comes_when_its_detached_run_is_over_leaves_at_once(etcd, tmp_path):
    """It was on its way when the run ended, which nobody could tell it."""
    detached = Detached(owner="none", folder=str(tmp_path), identity="the run's")
    (tmp_path / LAB_FILE).write_text(detached.identity, encoding="utf-8")
    late = structs.replace(config(0), etcd=etcd, detached=detached)
    up = start_agent(late, str(tmp_path))
    assert isinstance(up, AgentUp)
    agent = psutil.Process(up.pid)
    try:
        agent.wait(KEY_GRACE_S / 2)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            agent.kill()
