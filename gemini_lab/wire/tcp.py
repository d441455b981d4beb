"""Messages over TCP, with a shared secret: how lab, root agent and agents talk.

One message is one line. The opener proves that it knows the lab's token by answering a random
challenge with an HMAC, so the token itself never crosses the network. A closed connection is
reported at once as the end of the stream: it is how a dead process is noticed in milliseconds.
"""

import asyncio
import hashlib
import hmac
import secrets
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from gemini_lab.errors import LaunchError, MessageError
from gemini_lab.recovery.messages import Hello, Message, decode, encode

LINE_LIMIT_BYTES: Final = 64 * 2**20
HANDSHAKE_S: Final = 5.0


class Channel:
    """One authenticated connection; `peer` is the opener's greeting."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Hello
    ) -> None:
        self.peer = peer
        self._reader = reader
        self._writer = writer

    @property
    def is_closed(self) -> bool:
        """Whether this end was closed."""
        return self._writer.is_closing()

    def send(self, message: Message) -> None:
        """Queue one message; a closed connection drops it (the receiver notices by itself)."""
        if not self._writer.is_closing():
            self._writer.write(encode(message) + b"\n")

    async def drain(self) -> None:
        """Wait until the queue is short again: back-pressure for talkative senders."""
        with suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> Message | None:
        """The next message, or `None` when the connection is closed or broken.

        Who says what is no message cannot be understood from there on: that breaks it, too.
        """
        try:
            line = await self._reader.readline()
        except (ConnectionError, OSError, ValueError):
            return None
        if not line.endswith(b"\n"):
            return None
        try:
            return decode(line)
        except MessageError as error:
            print(f"gemini_lab: {error}", file=sys.stderr)  # noqa: T201 - the process's log
            self.close()
            return None

    def close(self) -> None:
        """Close this end."""
        self._writer.close()


def _answer(token: str, challenge: str) -> str:
    return hmac.new(token.encode(), challenge.encode(), hashlib.sha256).hexdigest()


async def serve(
    host: str, token: str, handle: Callable[[Channel], Awaitable[None]]
) -> tuple[asyncio.Server, int]:
    """Listen on a free port of `host`; each authenticated connection runs `handle(channel)`.

    Returns:
        The server and its port.
    """

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer = await asyncio.wait_for(_check(reader, writer, token), HANDSHAKE_S)
            if peer is not None:
                await handle(Channel(reader, writer, peer))
        except (TimeoutError, ConnectionError, OSError, ValueError, MessageError):
            pass  # a stranger, or a peer that died while it was introducing itself
        finally:
            writer.close()

    server = await asyncio.start_server(welcome, host, 0, limit=LINE_LIMIT_BYTES)
    return server, int(server.sockets[0].getsockname()[1])


async def _check(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
) -> Hello | None:
    challenge = secrets.token_hex(16)
    writer.write(challenge.encode() + b"\n")
    proof = await reader.readline()
    if not hmac.compare_digest(proof.strip(), _answer(token, challenge).encode()):
        return None
    hello = decode(await reader.readline())
    if not isinstance(hello, Hello):
        return None
    writer.write(b"welcome\n")
    return hello


async def connect(address: str, token: str, hello: Hello, *, timeout_s: float) -> Channel:
    """Open a connection to `address` (`host:port`) and introduce ourselves with `hello`.

    Raises:
        ConnectionRefusedError: Nothing listens there: the process is dead.
        TimeoutError: No answer in time: the machine may be gone.
        LaunchError: The listener does not accept our token.
    """

    async def open_and_greet() -> Channel:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=LINE_LIMIT_BYTES)
        challenge = (await reader.readline()).decode().strip()
        writer.write(_answer(token, challenge).encode() + b"\n" + encode(hello) + b"\n")
        if await reader.readline() != b"welcome\n":
            writer.close()
            raise LaunchError(f"{address} does not accept this lab's token; is it another lab's?")
        return Channel(reader, writer, hello)

    return await asyncio.wait_for(open_and_greet(), timeout_s)
