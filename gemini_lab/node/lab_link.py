"""An agent's way to the lab's owner: events and output there, on the owner's clock."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Final

from gemini_lab.errors import MessageError
from gemini_lab.log.entry import Entry, shifted
from gemini_lab.log.events import (
    AnyEvent,
    Iteration,
    IterationBegun,
    Note,
    Transfer,
    VersionComplete,
)
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.recovery.messages import EventSaid, LabHello, Message, OutputSaid, WordsSaid
from gemini_lab.units import MIB
from gemini_lab.wire.tcp import Channel

BACKLOG: Final = 10_000  # messages
PRINTED_BYTES: Final = 32 * MIB  # of what workers printed, that are kept
FREQUENT: Final = (Iteration, IterationBegun, Transfer, VersionComplete)
"""What each iteration says: where something must be dropped, it is the oldest of these."""
HOLD_S: Final = 0.25
"""For so long at most a word on an iteration waits for others, to go to the root agent together."""
Word = IterationBegun | Iteration | VersionComplete
CLOCK_TRUST_S: Final = 0.5  # clocks that differ less are closer than this way of comparing them


class LabLink:
    """The connection to the lab's owner, and what it has not heard for certain.

    A message is kept until the owner says that it is on disk. An owner that was cut off hears the
    rest when it is back. One that takes another one's place is told again what the last one may
    have missed; what it has already, it knows by itself.

    An owner that is stopped or slow costs neither memory nor training: what it does not take waits
    here, and of too much the oldest words of single iterations are dropped before any other. Of a
    flood of printed lines, those are dropped that the owner does not take as fast. It is told how
    many when it takes messages again. Recovery needs none of them: the root agent has a connection
    of its own.
    """

    def __init__(
        self,
        name: str,  # this node's
        *,
        # Messages that wait, and as many again that were sent and may not be on disk.
        most: int = BACKLOG,
        # This machine's clock, which somebody may set.
        wall_s: Callable[[], float] = AgentMachine.wall_s,
        steady_s: Callable[[], float] = AgentMachine.steady_s,  # A monotonic clock
    ) -> None:
        self._name = name
        self._most = most
        self._channel: Channel | None = None
        self.was_opened = False
        self._unheard: deque[Message] = deque()  # sent
        self._waiting: deque[Message] = deque()  # to be sent, after these
        self._pump: asyncio.Task[None] | None = None
        self._owner = ""
        self._first = 0  # how many messages the owner took before the first of these
        self._dropped = self._dropped_lines = 0
        self._printed_bytes = 0  # in both
        self._wall_s, self._steady_s = wall_s, steady_s
        self._clock_offset_s = 0.0
        self._set_at_s = self._wall_set_at_s

    @property
    def is_open(self) -> bool:
        """Whether the lab is connected."""
        return self._channel is not None and not self._channel.is_closed

    def open(self, channel: Channel, hello: LabHello) -> None:
        """Send what has waited to the lab that has connected, and follow its clock from now on."""
        self.close()
        if self._pump is not None:
            self._pump.cancel()  # who was here before may never take the rest
            self._pump = None
        self._channel, self.was_opened = channel, True
        # What the owner has taken need not be on its disk: it is not said again, but kept.
        is_known = hello.owner == self._owner
        said = max(0, hello.taken - self._first) if is_known else 0
        self._first = min(self._first, hello.taken) if is_known else hello.taken
        self._owner = hello.owner
        self._set_at_s = self._wall_set_at_s
        self._clock_offset_s = _offset_s(hello.at_s - self._wall_s(), age_s=channel.age_s)
        again = list(itertools.islice(self._unheard, said, None))
        for _ in again:
            self._unheard.pop()
        self._waiting.extendleft(reversed(again))
        self._push()

    def heard(self, count: int) -> None:
        """Forget the first `count` messages that were sent to the owner: they are on its disk."""
        while self._first < count and self._unheard:
            self._forget_first()
        if self._dropped_lines and self._printed_bytes < PRINTED_BYTES // 2:
            text = (
                f"{self._dropped_lines} lines that workers on {self._name} printed were dropped: "
                "they print faster than the lab writes it down"
            )
            self._dropped_lines = 0
            self.emit(Note(text=text))

    def close(self, channel: Channel | None = None) -> None:
        """Forget the connection, or only `channel` if that is still the one."""
        if channel is None and self._channel is not None:
            self._channel.close()
        if channel in {None, self._channel}:
            self._channel = None

    def say(self, message: Message) -> None:
        """Tell the lab; without a connection the message waits."""
        if isinstance(message, OutputSaid):
            if self._printed_bytes + _printed_bytes(message) > PRINTED_BYTES:
                self._dropped_lines += len(message.lines)
                return
            self._printed_bytes += _printed_bytes(message)
        self._waiting.append(message)
        self._push()
        while len(self._waiting) > self._most:
            self._drop_one()

    def _push(self) -> None:
        """Send what waits, as far as the owner takes it."""
        channel = self._channel
        while self._waiting and channel is not None and not channel.is_closed:
            if not channel.has_room:
                if self._pump is None or self._pump.done():
                    self._pump = asyncio.create_task(self._push_on(channel))
                return
            message = self._waiting.popleft()
            try:
                channel.send(message)
            except MessageError as error:  # the owner never counts it
                self._let_go(message)
                self.note(f"{self._name}: {error}")
                continue
            self._unheard.append(message)
            if len(self._unheard) > self._most:
                self._forget_first()
            if not self._waiting and self._dropped:
                text = f"{self._dropped} messages of {self._name} were dropped: no lab took them"
                self._dropped = 0
                self.note(text)

    async def _push_on(self, channel: Channel) -> None:
        """Go on when the owner has taken some of what was sent."""
        await channel.drain()
        self._pump = None
        self._push()

    def _drop_one(self) -> None:
        """Drop what waits and tells least: the oldest word of an iteration, if there is one."""
        places = enumerate(self._waiting)
        index = next((place for place, message in places if _is_frequent(message)), 0)
        self._let_go(self._waiting[index])
        del self._waiting[index]
        self._dropped += 1

    def _forget_first(self) -> None:
        self._first += 1
        self._let_go(self._unheard.popleft())

    def _let_go(self, message: Message) -> None:
        if isinstance(message, OutputSaid):
            self._printed_bytes -= _printed_bytes(message)

    def emit(self, event: AnyEvent, *, term: int | None = None) -> None:
        """Say an event of this node, or of the root agent of `term`."""
        self.pass_on(Entry(at_s=self._wall_s(), node=self._name, event=event), term=term)

    def note(self, text: str) -> None:
        """Say what a person should know."""
        self.emit(Note(text=text))

    def pass_on(self, entry: Entry, *, term: int | None = None) -> None:
        """Say an event on the lab's clock, also where this machine's was set meanwhile."""
        step_s = self._wall_set_at_s - self._set_at_s
        if abs(step_s) > CLOCK_TRUST_S:
            self._clock_offset_s -= step_s
            self._set_at_s += step_s
        offset_s = self._clock_offset_s
        event = shifted(entry.event, offset_s)
        on_its_clock = Entry(at_s=entry.at_s + offset_s, node=self._name, event=event)
        self.say(EventSaid(entry=on_its_clock, term=term))

    @property
    def _wall_set_at_s(self) -> float:
        """When the steady clock began, on this machine's: another moment once that was set."""
        return self._wall_s() - self._steady_s()

    async def drain(self) -> None:
        """Wait until all that was said is on its way."""
        while self._channel is not None:
            await self._channel.drain()
            self._push()
            if not self._waiting or not self.is_open:
                break
        await asyncio.sleep(0)


def _is_frequent(message: Message) -> bool:
    return isinstance(message, EventSaid) and isinstance(message.entry.event, FREQUENT)


def _printed_bytes(said: OutputSaid) -> int:
    return sum(map(len, said.lines))


def _offset_s(ahead_s: float, *, age_s: float) -> float:
    """Return the difference of another clock, of which an older reading was `ahead_s` of this one.

    Clocks that may be the same are taken to be: a busy machine answers late.
    """
    if -CLOCK_TRUST_S - age_s <= ahead_s <= CLOCK_TRUST_S:
        return 0.0
    return ahead_s + age_s / 2


class RootLink:
    """The connection to the newest root agent that has greeted; it greets again after a cut.

    What workers say of an iteration goes in one message for all of the node's ranks: once each has
    its version whole, and at the latest after `HOLD_S`. Of thousands of ranks the root agent could
    not hear each word alone. What ends a recovery, the first iteration of a start, goes at once;
    and nothing overtakes what was said before it.

    Nothing else waits here: what a root agent has missed it asks for when it greets.

    Args:
        say: Called with the error about a message that is too large to be sent.
    """

    def __init__(self, say: Callable[[MessageError], None]) -> None:
        self._say = say
        self._channel: Channel | None = None
        self._words: list[Word] = []  # of one epoch
        self._epoch = -1  # that epoch
        self._is_whole: dict[int, bool] = {}  # by rank, of those that had a version whole in it
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether a root agent is connected."""
        return self._channel is not None

    def open(self, channel: Channel) -> None:
        """Use this connection to a root agent instead of the last one."""
        self._forget()
        self.cut()
        self._channel = channel

    def close(self, channel: Channel) -> bool:
        """Forget `channel`, and say whether it was the one to the root agent till now."""
        if channel is not self._channel:
            return False
        self._forget()
        self._channel = None
        return True

    def send(self, message: Message) -> None:
        """Tell the root agent, if there is one."""
        if self._channel is None:
            return
        if isinstance(message, EventSaid) and isinstance(message.entry.event, Word):
            self._hold(message.entry.event)
        else:
            self._flush()
            self._send(message)

    def cut(self) -> None:
        """Close the connection, as a failing network does."""
        if self._channel is not None:
            self._channel.close()

    def _hold(self, word: Word) -> None:
        if word.epoch != self._epoch:
            self._flush()
            self._epoch, self._is_whole = word.epoch, {}
        self._words.append(word)
        is_first = word.rank not in self._is_whole
        if isinstance(word, VersionComplete):
            self._is_whole[word.rank] = True
        if is_first or all(self._is_whole.values()):
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HOLD_S, self._flush)

    def _flush(self) -> None:
        words = self._words
        self._forget()
        if words:
            self._send(WordsSaid(epoch=self._epoch, words=words))

    def _forget(self) -> None:
        self._words = []
        self._is_whole = dict.fromkeys(self._is_whole, False)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self, message: Message) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(message)
        except MessageError as error:
            self._say(error)
