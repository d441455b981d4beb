"""An agent's way to the lab's owner: events and output there, on the lab's clock."""

import asyncio
import time
from collections import deque
from typing import Final

from gemini_lab.log.entry import Entry, shifted
from gemini_lab.log.events import AnyEvent
from gemini_lab.recovery.messages import EventSaid, LabHello, Message
from gemini_lab.wire.tcp import Channel

BACKLOG: Final = 10_000  # messages kept for a lab that is not connected yet
CLOCK_TRUST_S: Final = 0.5  # clocks that differ less are closer than this way of comparing them


class LabLink:
    """The connection to the lab, and what is said before there is one.

    Args:
        name: This node's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._channel: Channel | None = None
        self._was_opened = False
        self._backlog: deque[Message] = deque(maxlen=BACKLOG)
        self._clock_offset_s = 0.0

    @property
    def was_opened(self) -> bool:
        """Whether the lab has ever been connected."""
        return self._was_opened

    @property
    def is_open(self) -> bool:
        """Whether the lab is connected."""
        return self._channel is not None and not self._channel.is_closed

    def open(self, channel: Channel, hello: LabHello) -> None:
        """The lab is here: say what has waited, and follow its clock from now on."""
        self._channel, self._was_opened = channel, True
        offset_s = hello.at_s - time.time()
        if abs(offset_s) > CLOCK_TRUST_S:
            self._clock_offset_s = offset_s
        while self._backlog:
            channel.send(self._backlog.popleft())

    def close(self, channel: Channel | None = None) -> None:
        """Forget the connection, or only `channel` if that is still the one."""
        if channel is None and self._channel is not None:
            self._channel.close()
        if channel in {None, self._channel}:
            self._channel = None

    def say(self, message: Message) -> None:
        """Tell the lab; without a connection the message waits."""
        if self._channel is None or self._channel.is_closed:
            self._backlog.append(message)
        else:
            self._channel.send(message)

    def emit(self, event: AnyEvent, *, term: int | None = None) -> None:
        """Say an event of this node, or of the root agent of `term`."""
        self.pass_on(Entry(at_s=time.time(), node=self._name, event=event), term=term)

    def pass_on(self, entry: Entry, *, term: int | None = None) -> None:
        """Say an event on the lab's clock."""
        offset_s = self._clock_offset_s
        event = shifted(entry.event, offset_s)
        on_its_clock = Entry(at_s=entry.at_s + offset_s, node=self._name, event=event)
        self.say(EventSaid(entry=on_its_clock, term=term))

    async def drain(self) -> None:
        """Wait until all that was said is on its way."""
        if self._channel is not None:
            await self._channel.drain()
        await asyncio.sleep(0)
