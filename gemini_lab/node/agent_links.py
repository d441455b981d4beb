"""The root agent's connections: one to each agent, each kept by one task of its own.

No other task connects to an agent for the root, so that two attempts can never close each
other's connections. A connection that breaks is tried again at once: where the agent answers, the
link was cut and the agent has joined again; if its machine refuses, or does not answer, it is
lost, and tried again, because its memory may come back: also a firewall refuses for a moment. It is
dead once its lease has run out and its machine refuses, or another agent listens there. Breaks that
follow one another are answered ever later.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from gemini_lab.errors import LaunchError, MessageError
from gemini_lab.log.events import LinkCut, Note
from gemini_lab.recovery.messages import (
    FromAgentMessage,
    Joined,
    MeasureLink,
    RootHello,
    RootOrder,
)
from gemini_lab.recovery.protocol import AgentJoined, AgentLost, Emit, FromAgent, Happening
from gemini_lab.wire.tcp import OWN_LACKS, Channel, connect

CONNECT_S: Final = 2.0  # for a connection to a busy agent, and for its first word; a dead one's
# machine refuses at once
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
SILENT_S: Final = 30
"""Without an answer from its machine an agent is lost that still has its lease: it reaches etcd."""
STEADY_S: Final = 10.0  # a connection that lived so long resets the pauses


class AgentLinks:
    """Keeps a connection to every registered agent."""

    def __init__(
        self,
        *,
        hello: RootHello,  # how the root introduces itself
        token: str,  # the lab's secret
        # Called with what happens: agents that join, are lost, or say something.
        tell: Callable[[Happening], None],
        emit: Callable[[Emit], None],  # called with events
        clock: Callable[[], float],  # now, in seconds since the epoch
        # Called where it is this machine that lacks what a connection needs: the agent at its other
        # end may be well.
        on_lack: Callable[[OSError], None] = lambda _: None,
    ) -> None:
        self._on_lack = on_lack
        self._hello = hello
        self._token = token
        self._tell = tell
        self._emit = emit
        self._clock = clock
        self._channels: dict[str, Channel] = {}
        self._keepers: dict[str, _Keeper] = {}
        self._is_closed = False

    @property
    def connected(self) -> frozenset[str]:
        """The nodes whose agents are connected now."""
        return frozenset(self._channels)

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each agent that is followed, or was."""
        return {node: keeper.address for node, keeper in self._keepers.items()}

    def look_for(self, addresses: Mapping[str, str]) -> None:
        """Look after agents that a former root knew, and that are not registered any more.

        Their machines may say that they are dead, which no other process would learn.
        """
        for node, address in addresses.items():
            if node not in self._keepers:
                self._keep(node, address).is_registered = False

    async def open(self, addresses: Mapping[str, str]) -> list[AgentJoined]:
        """Connect to all of these at once; returns who answered."""
        first = {node: asyncio.get_running_loop().create_future() for node in addresses}  # type: dict[str, asyncio.Future[AgentJoined | None]]
        for node, address in addresses.items():
            self._keep(node, address, first[node])
        answers = await asyncio.gather(*first.values())
        return [joined for joined in answers if joined is not None]

    def follow(self, addresses: Mapping[str, str], *, is_settled: bool) -> None:
        """Keep connections to these agents; when that is settled, to no others.

        An agent whose lease ran out is lost, but looked after until its machine says it is dead.
        """
        if self._is_closed:  # an agent may follow the store for a moment longer than it is root
            return
        for node, address in addresses.items():
            keeper = self._keepers.get(node)
            if keeper is not None and keeper.address != address:
                self._end(node)
            if node not in self._keepers:
                self._keep(node, address)
            self._keepers[node].note_lease()
        for node, keeper in list(self._keepers.items()):
            if node in addresses:
                continue
            if keeper.address in addresses.values():  # another agent listens there now
                self._end(node)
                self._tell(AgentLost(at_s=self._clock(), node=node, cause="dead"))
            elif is_settled and keeper.is_registered:
                keeper.note_lease_lost()
                self.hang_up(node)
                self._tell(AgentLost(at_s=self._clock(), node=node, cause="lease"))

    def send(self, node: str, order: RootOrder) -> None:
        """Send an agent an order; one that is not connected misses it, and joins again."""
        if (channel := self._channels.get(node)) is None:
            return
        try:
            channel.send(order)
        except MessageError as error:
            self._emit(Emit(event=Note(text=f"{node} is not told: {error}")))

    def hang_up(self, node: str) -> None:
        """Close the connection to an agent that does not answer; its keeper tries again."""
        if (channel := self._channels.pop(node, None)) is not None:
            channel.close()

    def close(self) -> None:
        """Close all connections, and open no other."""
        self._is_closed = True
        for node in list(self._keepers):
            self._end(node)

    # -- one agent -------------------------------------------------------------------------------

    def _keep(
        self, node: str, address: str, first: "asyncio.Future[AgentJoined | None] | None" = None
    ) -> "_Keeper":
        keeper = self._keepers[node] = _Keeper(address=address)
        keeper.task = asyncio.create_task(self._stay_connected(node, keeper, first))
        return keeper

    def _end(self, node: str) -> None:
        keeper = self._keepers.pop(node)
        if keeper.task is not None:
            keeper.task.cancel()
        self.hang_up(node)

    async def _stay_connected(
        self, node: str, keeper: "_Keeper", first: "asyncio.Future[AgentJoined | None] | None"
    ) -> None:
        """Keep one agent's connection, for as long as the agent may be there."""
        joined = await self._link(node, keeper)
        if first is not None:
            first.set_result(joined)
        elif joined is not None:
            self._tell(joined)
        pause_s = FIRST_PAUSE_S
        while not keeper.is_dead:
            if joined is not None:
                began_s = self._clock()
                await self._listen(node, self._channels[node])
                if self._clock() - began_s > STEADY_S:
                    pause_s = FIRST_PAUSE_S
                joined = await self._relink(node, keeper)
            elif (joined := await self._link(node, keeper)) is not None:
                self._tell(joined)
            if keeper.is_dead:
                break
            # Also a link that breaks as soon as it stands: it must not flood the log.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await keeper.has_news.wait()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        del self._keepers[node]  # where it is registered again, it is connected to again
        self._tell(AgentLost(at_s=self._clock(), node=node, cause="dead"))

    async def _listen(self, node: str, channel: Channel) -> None:
        """Pass on what an agent says, until the connection ends."""
        while (message := await channel.receive()) is not None:
            if isinstance(message, FromAgentMessage):
                self._tell(FromAgent(at_s=self._clock(), node=node, message=message))
        if self._channels.get(node) is channel:
            self.hang_up(node)

    async def _relink(self, node: str, keeper: "_Keeper") -> AgentJoined | None:
        """Return the connection broke: was it the link or the agent?"""
        noticed_s = self._clock()
        joined = await self._link(node, keeper)
        if joined is not None:
            self._emit(Emit(event=LinkCut(peer=node)))
            self._tell(joined)
        elif keeper.is_registered:
            cause = "refused" if keeper.is_refused else "connection"
            self._tell(AgentLost(at_s=noticed_s, node=node, cause=cause))
        return joined

    async def _link(self, node: str, keeper: "_Keeper") -> AgentJoined | None:
        """Connect to an agent and hear how it is; `None` when it does not answer."""
        keeper.has_news.clear()
        keeper.is_refused = False
        try:
            channel = await connect(keeper.address, self._token, self._hello, timeout_s=CONNECT_S)
            try:
                async with asyncio.timeout(CONNECT_S):
                    status = await channel.receive()
                channel.break_after(SILENT_S)  # fails where it is broken by now
            except BaseException:
                channel.close()
                raise
        except ConnectionRefusedError:
            keeper.is_refused = True
            return None
        except OSError as error:
            if error.errno in OWN_LACKS:
                self._on_lack(error)
            return None
        except (EOFError, TimeoutError, LaunchError):
            return None
        if not (isinstance(status, Joined) and keeper.is_registered):
            channel.close()
            return None
        self._channels[node] = channel
        self._order_link_measured(node)
        return AgentJoined(
            at_s=self._clock(),
            node=node,
            epoch=status.epoch,
            workers=status.workers,
            is_ready=status.is_ready,
            memory_bytes=status.memory_bytes,
            machine=machine_of(keeper.address),
            wrong_sums=status.wrong_sums,
            left=tuple(status.left),
        )

    def _order_link_measured(self, node: str) -> None:
        """Order an agent to measure the link to the next machine in a ring of all, once."""
        keeper = self._keepers[node]
        others = {
            name: one.address
            for name, one in sorted(self._keepers.items())
            if machine_of(one.address) != machine_of(keeper.address) and one.is_registered
        }
        if keeper.is_link_measured or not others:
            return
        keeper.is_link_measured = True
        peer = next((name for name in others if name > node), next(iter(others)))
        self._channels[node].send(MeasureLink(node=peer, address=others[peer]))


@dataclass(slots=True)
class _Keeper:
    """The state of the connection to one agent."""

    address: str  # where it listens
    # Whether its lease stands: one whose lease ran out joins when it stands again.
    is_registered: bool = True
    is_link_measured: bool = False  # whether it was asked to measure its link
    is_refused: bool = False  # whether its machine said last that nothing listens there
    # Set when its lease has run out, or stands again: worth another try at once.
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None  # what keeps the connection

    @property
    def is_dead(self) -> bool:
        """Whether its process is gone for certain; a lease or a refusal alone proves nothing."""
        return self.is_refused and not self.is_registered

    def note_lease(self) -> None:
        """Note that its lease stands."""
        if not self.is_registered:
            self.is_registered = True
            self.has_news.set()

    def note_lease_lost(self) -> None:
        """Note that its lease ran out: an earlier refusal does not count, and it is asked again."""
        self.is_registered = self.is_refused = False
        self.has_news.set()


def machine_of(address: str) -> str:
    """Return the host of an address, `host:port`."""
    return address.rpartition(":")[0]
