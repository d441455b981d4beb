"""What an agent makes of who is connected to it."""

import asyncio
import errno

from gemini_lab.node.agent import Agent
from gemini_lab.node.config import AgentConfig
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.recovery.messages import RootHello
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
        self._says = [*says]

    async def receive(self):
        return self._says.pop(0) if self._says else None

    def send(self, message):
        """It is told who is here."""


class Memory:
    """What does an agent's bulk work; nothing of it is asked here."""


def test_what_an_order_fails_of_is_said_and_the_connection_is_no_longer_the_root_agents():
    config = AgentConfig(
        name="node-0",
        token="secret",
        etcd=EtcdAddress(endpoints=("127.0.0.1:1",)),
        prefix="lab",
        lease_s=1.0,
        warm=False,
        threads=None,
    )

    async def told():
        agent = Agent(config, lambda _: None, host=FullHost, bulk=Memory())
        await agent._welcome(Root(first_start()))
        return opened(agent.lab).texts, agent.root.is_open

    (text,), is_open = asyncio.run(told())
    assert text == "node-0's agent: OSError: [Errno 24] Too many open files"
    assert not is_open
