"""Connections and ports of other processes, really closed, and as they were afterwards."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
from waiting import until

from gemini_lab.errors import ConfigError
from gemini_lab_bench.chaos.sockets import cut, flap, refuse, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

AGENT = """
import asyncio, sys
async def main():
    async def answer(reader, writer):
        while word := await reader.read(100):
            writer.write(word)
            await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
ROOT = """
import socket, sys
port = int(sys.argv[1])
link = socket.create_connection(("127.0.0.1", port))
for line in sys.stdin:
    try:
        link.sendall(line.encode())
        print("there" if link.recv(100) else "gone", flush=True)
    except OSError:
        print("gone", flush=True)
    if line.startswith("again"):
        link = socket.create_connection(("127.0.0.1", port))
"""


@pytest.fixture
def started():
    """Starts programs that are ended afterwards."""
    with ExitStack() as ends:

        def start(program, *arguments):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = ends.enter_context(
                subprocess.Popen([sys.executable, "-u", "-c", program, *arguments], **pipes)
            )
            ends.callback(process.kill)
            return process

        yield start


@pytest.fixture
def pair(started):
    """An agent that listens, its port, and another one that is connected to it."""
    agent = started(AGENT)
    port = int(agent.stdout.readline())
    root = started(ROOT, str(port))
    assert say(root, "hello") == "there"
    return agent, port, root


def say(process, word):
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def answers(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
            link.sendall(b"x")
            return link.recv(1) == b"x"
    except OSError:
        return False


def test_the_connections_of_two_processes_close_and_no_others(pair, started):
    agent, port, root = pair
    other = started(ROOT, str(port))
    assert say(other, "hello") == "there"
    assert cut(agent.pid, [root.pid]) == 1
    assert (say(root, "again"), say(other, "hello")) == ("gone", "there")
    assert say(root, "hello") == "there"  # a new one is not closed


def test_while_a_link_flaps_what_is_opened_again_is_closed_again(pair):
    agent, _, root = pair
    end = flap(agent.pid, lambda: [root.pid])
    try:
        for _ in range(3):
            until(lambda: say(root, "again") == "gone")
    finally:
        end()
    say(root, "again")
    assert say(root, "hello") == "there"


def test_a_link_that_is_not_there_does_not_flap(started):
    with pytest.raises(ConfigError, match="no connection"):
        flap(started(AGENT).pid, lambda: [os.getpid()])


def test_a_port_refuses_for_a_while_and_is_the_same_one_afterwards(pair):
    agent, port, root = pair
    listen = refuse(agent.pid)
    assert say(root, "hello") == "gone"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=20)
    listen()
    assert answers(port)


def test_a_port_of_a_process_that_is_gone_meanwhile_is_left_alone(pair):
    agent, port, _ = pair
    listen = refuse(agent.pid)
    agent.kill()
    agent.wait()
    listen()
    assert not answers(port)


def test_a_process_that_listens_nowhere_goes_on(pair):
    _, _, root = pair
    with pytest.raises(ConfigError, match="listens nowhere"):
        refuse(root.pid)
    assert say(root, "hello") == "there"
