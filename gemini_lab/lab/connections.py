"""The lab's connections to its agents: every word is heard once, and a run's end as the last."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol

from gemini_lab.lab.loop import Work
from gemini_lab.log.events import RunFailed, RunFinished
from gemini_lab.log.file import LogTakenError
from gemini_lab.node.this_machine import process_identity
from gemini_lab.recovery.messages import (
    EventSaid,
    Flush,
    Flushed,
    Heard,
    LabHello,
    Message,
)
from gemini_lab.wire.tcp import Channel, connect

ANSWER_S: Final = 10.0
SETTLE_S: Final = 0.5
LOOK_S: Final = 0.02
FLUSH_S: Final = 3.0  # for a node to say the last that it has to say of a run


class Listener(Protocol):
    """The receiver of what agents say, on the lab's thread."""

    def hear(self, name: str, message: Message) -> None:
        """Handle a message of the agent of this node."""


class AgentConnections:
    """One connection to each agent; what was said on one that broke is heard on the next."""

    def __init__(
        self,
        token: str,  # the lab's secret
        listener: Listener,  # who is told
        # Starts work on the lab's thread, and says what goes wrong with it.
        spawn: Callable[[Work], object],
    ) -> None:
        self._token, self._listener, self._spawn = token, listener, spawn
        self._owner = secrets.token_hex(8)
        self._opening: set[str] = set()
        self._away: set[str] = set()  # connected, though their leases have run out
        self._channels: dict[str, Channel] = {}
        self._taken: dict[Channel, int] = {}  # messages, those on earlier connections included
        self._left: dict[str, int] = {}  # as many had been taken when the last connection ended
        self._flushes: dict[Channel, asyncio.Event] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._channels)

    def send(self, name: str, message: Message) -> None:
        if name in self._channels:
            self._channels[name].send(message)

    async def meet(self, addresses: Mapping[str, str]) -> None:
        """Connect to agents that are not connected; one that does not answer may be met again.

        An agent whose lease had run out gets a new connection: after a cut of half a minute, its
        messages on the old one come another half minute later, with TCP's next try.
        """
        back = self._away & addresses.keys()
        self._away = self._channels.keys() - addresses.keys()
        for name in back & self._channels.keys():
            self._channels[name].close()
        work = (self.open(name, address) for name, address in addresses.items())
        await asyncio.gather(*work, return_exceptions=True)

    async def open(self, name: str, address: str) -> None:
        """Connect to an agent, unless that is done already.

        Raises:
            OSError: Nothing listens there.
            EOFError: It hung up.
            TimeoutError: It does not answer.
            LaunchError: It does not know the token.
        """
        if name in self._channels or name in self._opening:
            return
        self._opening.add(name)
        try:
            taken = self._left.get(name, 0)
            channel = await connect(
                address,
                self._token,
                lambda: LabHello(
                    at_s=time.time(), owner=self._owner, taken=taken, process=process_identity()
                ),
                timeout_s=ANSWER_S,
            )
        finally:
            self._opening.discard(name)
        self._channels[name] = channel
        self._taken[channel] = taken
        self._spawn(self._listen(name, channel))

    async def acknowledge(self, settle: Callable[[], None]) -> None:
        """Tell agents what is on disk, so that they need not keep it; goes on for ever."""
        told: dict[Channel, int] = {}
        while True:
            taken = self._taken.copy()
            await asyncio.sleep(SETTLE_S)
            if taken == told:
                continue
            try:
                await asyncio.to_thread(settle)
            except OSError:
                continue  # a full disk: agents keep what they said
            except LogTakenError:
                return  # they are to tell it the next owner
            for channel, count in taken.items():
                channel.send(Heard(messages=count))
            told = taken

    async def _listen(self, name: str, channel: Channel) -> None:
        """Take what an agent says; if that breaks, it is connected to again."""
        try:
            while (message := await channel.receive()) is not None:
                try:
                    await self._take(message, name, channel)
                finally:  # also one that the lab breaks on: it is not to be sent again
                    self._taken[channel] += 1
        finally:
            channel.close()
            self._was_flushed(channel)
            self._left[name] = self._taken.pop(channel)
            del self._channels[name]

    async def _take(self, message: Message, name: str, channel: Channel) -> None:
        match message:
            case Flushed():
                self._was_flushed(channel)
                return
            case EventSaid(entry=entry) if isinstance(entry.event, RunFinished | RunFailed):
                await self._hear_all_but(channel)
        self._listener.hear(name, message)

    async def _hear_all_but(self, channel: Channel) -> None:
        """Wait until all is here that the other nodes have said; one may be silent for good.

        An owner that takes another one's place may hear of the end on its first connection, while
        it still opens the others.
        """
        while self._opening:  # each of them for `ANSWER_S` at most
            await asyncio.sleep(LOOK_S)
        others = {each: asyncio.Event() for each in self._channels.values() if each is not channel}
        self._flushes |= others
        for each in others:
            each.send(Flush())
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                for flushed in others.values():
                    await flushed.wait()

    def _was_flushed(self, channel: Channel) -> None:
        if channel in self._flushes:
            self._flushes.pop(channel).set()
