"""Connections that are cut below a library: nothing is read any more, and nobody spins."""

import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from waiting import until

from gemini_lab.transfer.sockets import REST_S, OwnConnections, can_be_found

pytestmark = pytest.mark.skipif(not can_be_found(), reason="needs Linux's /proc")
SIZE_BYTES = 2**26


@pytest.fixture
def ranks():
    """Two ranks' Gloo groups, both in this process, and their connections."""
    store = dist.HashStore()
    groups, connections = {}, OwnConnections()

    def join(rank):
        groups[rank] = dist.ProcessGroupGloo(store, rank, 2)

    with connections.opened():
        threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    yield groups[0], groups[1], connections
    connections.cut()


def loops_cpu_s():
    """Processor time that Gloo's loops have taken."""
    total_ns = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            if (task / "comm").read_text().startswith("gloo_tcp"):
                total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def test_a_receiver_that_gave_up_in_the_midst_of_a_message_keeps_no_core_busy(ranks):
    first, second, connections = ranks
    numbers = torch.ones(SIZE_BYTES, dtype=torch.uint8)
    receiving = first.recv([torch.zeros(SIZE_BYTES, dtype=torch.uint8)], 1, 0)
    del receiving  # as an error does, of another connection
    second.send([numbers], 0, 0)
    began_s = loops_cpu_s()
    until(lambda: loops_cpu_s() > began_s + 0.3)  # Gloo reads no further, and looks again
    connections.cut()
    time.sleep(2 * REST_S)
    rests_s = loops_cpu_s()
    time.sleep(1.0)
    assert loops_cpu_s() < rests_s + 0.1


def test_what_has_come_is_not_read_after_a_cut():
    with ExitStack() as closing:
        connections = OwnConnections()
        with connections.opened(), socket.create_server(("127.0.0.1", 0)) as server:
            sender = closing.enter_context(socket.create_connection(server.getsockname()))
            receiver = closing.enter_context(server.accept()[0])
        sender.sendall(b"x" * 100_000)
        connections.cut()
        assert receiver.recv(10) == b""
        with pytest.raises(OSError, match=r".*"):
            sender.sendall(b"more")


def test_what_a_thread_of_the_scripts_opens_meanwhile_within_the_machine_is_not_cut():
    """As a loader's workers do, and loggers; it goes on where its process does."""
    with ExitStack() as closing:
        connections = OwnConnections()
        with connections.opened():
            ends = [closing.enter_context(one) for one in socket.socketpair()]
        connections.cut()
        ends[0].sendall(b"still")
        assert ends[1].recv(10) == b"still"
