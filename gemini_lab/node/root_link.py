"""An agent's way to the root agent."""

from collections.abc import Callable

from gemini_lab.errors import MessageError
from gemini_lab.recovery.messages import Message
from gemini_lab.wire.tcp import Channel


class RootLink:
    """The connection to the newest root agent that has greeted; it greets anew after a cut.

    Nothing waits here: what a root agent has missed it asks for when it greets.

    Args:
        say: Called with the error about a message that is too large to be sent.
    """

    def __init__(self, say: Callable[[MessageError], None]) -> None:
        self._say = say
        self._channel: Channel | None = None

    @property
    def is_open(self) -> bool:
        """Whether a root agent is connected."""
        return self._channel is not None

    def open(self, channel: Channel) -> None:
        """A root agent is here, instead of the last one."""
        self.cut()
        self._channel = channel

    def close(self, channel: Channel) -> bool:
        """Forget `channel`, and say whether it was the one to the root agent till now."""
        if channel is not self._channel:
            return False
        self._channel = None
        return True

    def send(self, message: Message) -> None:
        """Tell the root agent, if there is one."""
        if self._channel is None:
            return
        try:
            self._channel.send(message)
        except MessageError as error:
            self._say(error)

    def cut(self) -> None:
        """Close the connection, as a failing network does."""
        if self._channel is not None:
            self._channel.close()
