"""The root agent's connections: one to each agent, each kept by one task of its own.

Nobody else connects to an agent on the root's behalf, so that two attempts can never close each
other's connections. A connection that breaks is tried again at once: where the agent answers, the
link was cut and the agent has joined anew; where it does not, the agent counts as lost, and is
tried again while it stays registered. Breaks that follow one another are answered ever later.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from gemini_lab.errors import LaunchError
from gemini_lab.log.events import LinkCut
from gemini_lab.recovery.messages import Joined, RootHello, RootOrder
from gemini_lab.recovery.protocol import Emit, FromAgent, Happening, NodeJoined, NodeLost
from gemini_lab.wire.tcp import Channel, connect

CONNECT_S: Final = 2.0  # for a connection to a busy agent, and for its first word; a dead one's
# machine refuses at once
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
STEADY_S: Final = 10.0  # a connection that lived so long starts the pauses anew


class AgentLinks:
    """Keeps a connection to every registered agent.

    Args:
        hello: How the root introduces itself.
        token: The lab's secret.
        tell: Called with what happens: agents that join, are lost, or say something.
        emit: Called with events.
    """

    def __init__(
        self,
        *,
        hello: RootHello,
        token: str,
        tell: Callable[[Happening], None],
        emit: Callable[[Emit], None],
    ) -> None:
        self._hello = hello
        self._token = token
        self._tell = tell
        self._emit = emit
        self._channels: dict[str, Channel] = {}
        self._keepers: dict[str, tuple[str, asyncio.Task[None]]] = {}  # address and task

    @property
    def connected(self) -> frozenset[str]:
        """The nodes whose agents are connected now."""
        return frozenset(self._channels)

    async def open(self, addresses: Mapping[str, str]) -> list[NodeJoined]:
        """Connect to all of these at once; returns who answered."""
        first = {node: asyncio.get_running_loop().create_future() for node in addresses}  # type: dict[str, asyncio.Future[NodeJoined | None]]
        for node, address in addresses.items():
            self._keep(node, address, first[node])
        answers = await asyncio.gather(*first.values())
        return [joined for joined in answers if joined is not None]

    def follow(self, addresses: Mapping[str, str], *, is_settled: bool) -> None:
        """Keep connections to these agents; when that is settled, to no others."""
        for node, (address, _) in list(self._keepers.items()):
            is_gone = is_settled and node not in addresses
            if is_gone or addresses.get(node, address) != address:
                self._end(node)
            if is_gone:
                self._tell(NodeLost(at_s=time.time(), node=node, cause="lease"))
        for node, address in addresses.items():
            if node not in self._keepers:
                self._keep(node, address)

    def send(self, node: str, order: RootOrder) -> None:
        """Tell an agent; one that is not connected misses it, and joins anew."""
        if (channel := self._channels.get(node)) is not None:
            channel.send(order)

    def hang_up(self, node: str) -> None:
        """Close the connection to an agent that does not answer; its keeper tries again."""
        if (channel := self._channels.pop(node, None)) is not None:
            channel.close()

    def close(self) -> None:
        """Close all connections."""
        for node in list(self._keepers):
            self._end(node)

    # -- one agent -------------------------------------------------------------------------------

    def _keep(
        self, node: str, address: str, first: "asyncio.Future[NodeJoined | None] | None" = None
    ) -> None:
        task = asyncio.create_task(self._stay_connected(node, address, first))
        self._keepers[node] = (address, task)

    def _end(self, node: str) -> None:
        _, task = self._keepers.pop(node)
        task.cancel()
        self.hang_up(node)

    async def _stay_connected(
        self, node: str, address: str, first: "asyncio.Future[NodeJoined | None] | None"
    ) -> None:
        joined = await self._link(node, address)
        if first is not None:
            first.set_result(joined)
        elif joined is not None:
            self._tell(joined)
        pause_s = FIRST_PAUSE_S
        while True:
            if joined is not None:
                began_s = time.monotonic()
                await self._listen(node, self._channels[node])
                if time.monotonic() - began_s > STEADY_S:
                    pause_s = FIRST_PAUSE_S
                joined = await self._relink(node, address)
            else:
                joined = await self._link(node, address)
                if joined is not None:
                    self._tell(joined)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _listen(self, node: str, channel: Channel) -> None:
        """Pass on what an agent says, until the connection ends."""
        while (message := await channel.receive()) is not None:
            if not isinstance(message, Joined):
                said = FromAgent(at_s=time.time(), node=node, message=message)  # type: ignore[arg-type]
                self._tell(said)
        if self._channels.get(node) is channel:
            self.hang_up(node)

    async def _relink(self, node: str, address: str) -> NodeJoined | None:
        """The connection broke: was it the link or the agent?"""
        noticed_s = time.time()
        joined = await self._link(node, address)
        if joined is not None:
            self._emit(Emit(event=LinkCut(peer=node)))
            self._tell(joined)
        else:
            self._tell(NodeLost(at_s=noticed_s, node=node, cause="connection"))
        return joined

    async def _link(self, node: str, address: str) -> NodeJoined | None:
        """Connect to an agent and hear how it is; `None` when it does not answer."""
        with suppress(OSError, TimeoutError, LaunchError):
            channel = await connect(address, self._token, self._hello, timeout_s=CONNECT_S)
            try:
                status = await asyncio.wait_for(channel.receive(), CONNECT_S)
            except BaseException:
                channel.close()
                raise
            if isinstance(status, Joined):
                self._channels[node] = channel
                return NodeJoined(
                    at_s=time.time(), node=node, epoch=status.epoch, workers=status.workers
                )
            channel.close()
        return None
