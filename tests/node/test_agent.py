"""What an agent makes of who is connected to it."""

import errno
import subprocess
import sys

import pytest

from gemini_lab.node.agent import UNHEARD_S, Agent
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.membership import Reading
from gemini_lab.node.start_config import LAB_KEY, AgentConfig, LabRecord
from gemini_lab.recovery.messages import RootHello, WorkerEnded
from tests.node.test_flaws import Host, first_start
from tests.node.test_lab_link import opened


class FullHost(Host):
    """No descriptor is free for a worker."""

    def start(self, start, port=()):
        del start, port
        raise OSError(errno.EMFILE, "Too many open files")


class Root:
    """A root agent's connection, with what it says."""

    peer = RootHello(name="node-1", term=1)

    def __init__(self, *says):
        self._says, self.heard = [*says], []

    @property
    def orders_left(self):
        return len(self._says)

    async def receive(self):
        return self._says.pop(0) if self._says else None

    def send(self, message):
        """It is told who is here, and more."""
        self.heard.append(message)


class Memory:
    """What does an agent's bulk work; nothing of it is asked here."""


def agent_of_a_lab():
    config = AgentConfig(
        name="node-0",
        token="secret",
        etcd=EtcdAddress(endpoints=("127.0.0.1:1",)),
        prefix="lab",
        lab=LabRecord(identity="", machines=1, lease_s=1.0, warm=False, threads=None),
    )
    return Agent(config, lambda _: None, machine=AgentMachine(host=FullHost, bulk=Memory()))


async def test_a_worker_that_the_agent_cannot_start_is_told_as_ended_and_the_connection_stays():
    """One that breaks with an order comes back, and brings the same order: recoveries for ever."""
    root = Root(first_start())
    agent = agent_of_a_lab()
    await agent._welcome(root)
    assert [said.entry.kind for said in opened(agent.lab).arrived] == ["worker_exited"]
    (exited,) = [said for said in root.heard if isinstance(said, WorkerEnded)]
    assert (exited.code, exited.error.error) == (1, "CapacityError")
    assert exited.output == "node-0's agent cannot start it: [Errno 24] Too many open files"
    assert root.orders_left == 0


@pytest.mark.parametrize(
    ("store", "is_over"), [("has its key", False), ("has no key", True), ("is away", True)]
)
async def test_an_agent_whose_lab_lost_its_connection_waits_for_it_while_its_key_stands(
    store, is_over
):
    """A port that refuses for a moment, or a lab that is busy, is no end of a lab."""
    items = {LAB_KEY: "{}"} if store == "has its key" else {}
    agent = agent_of_a_lab()
    opened(agent.lab).close()
    agent._reading = None if store == "is away" else Reading(items=items, is_whole=False)
    agent._lab_seen_s -= UNHEARD_S + 1.0
    agent._watch_lab()
    assert agent._stop.is_set() == is_over


async def test_an_agent_ends_at_once_when_its_labs_process_on_this_machine_was_killed():
    """Also while the key stands, which it does until its lease runs out."""
    text = (
        "import gemini_lab.node.this_machine as m; print(m.process_identity(), flush=True); input()"
    )
    lab = subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    agent = agent_of_a_lab()
    agent._reading = Reading(items={LAB_KEY: "{}"}, is_whole=False)
    agent._lab_process = lab.stdout.readline().strip()
    agent._watch_lab()
    lived = not agent._stop.is_set()
    with lab:
        lab.kill()
    agent._watch_lab()
    assert (lived, agent._stop.is_set()) == (True, True)
