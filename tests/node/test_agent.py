"""What an agent makes of who is connected to it."""

import asyncio
import errno

from gemini_lab.node.agent import Agent
from gemini_lab.node.config import AgentConfig
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.recovery.messages import RootHello, WorkerExited
from tests.node.test_flaws import Host, first_start
from tests.node.test_lab_link import opened


class FullHost(Host):
    """No descriptor is free for a worker."""

    def start(self, start):
        del start
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


def test_a_worker_that_the_agent_cannot_start_is_told_as_one_that_ended_and_the_connection_stays():
    """One that breaks with an order comes back, and brings the same order: recoveries for ever."""
    config = AgentConfig(
        name="node-0",
        token="secret",
        etcd=EtcdAddress(endpoints=("127.0.0.1:1",)),
        prefix="lab",
        lease_s=1.0,
        warm=False,
        threads=None,
    )

    root = Root(first_start())

    async def serve():
        agent = Agent(config, lambda _: None, host=FullHost, bulk=Memory())
        await agent._welcome(root)
        return [said.entry.kind for said in opened(agent.lab).arrived]

    assert asyncio.run(serve()) == ["worker_exited"]
    (exited,) = [said for said in root.heard if isinstance(said, WorkerExited)]
    assert (exited.code, exited.error.error) == (1, "CapacityError")
    assert exited.output == "node-0's agent cannot start it: [Errno 24] Too many open files"
    assert root.orders_left == 0
