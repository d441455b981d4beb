"""Messages over TCP, with a shared secret: how lab, root agent and agents talk.

A message is a frame: its length in four bytes, then its JSON. A connection begins with both sides
proving that they know the lab's token, which itself never crosses the network:

    listener                                opener
       nonce  ------------------------------>
              <------------------------------  nonce, proof, greeting
       proof  ------------------------------>

A proof is an HMAC over both nonces, the address that was dialled, the greeting and the side that
gives it. So nobody can pass a challenge on to another listener, open as somebody else, or answer in
a listener's place. Before that a frame has a few kilobytes at most. A closed connection is reported
at once as the end of the stream: it is how a dead process is noticed in milliseconds.
"""

import asyncio
import errno
import hashlib
import hmac
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from gemini_lab.errors import LaunchError, MessageError
from gemini_lab.recovery.messages import (
    FRAME_LIMIT_BYTES,
    Hello,
    Message,
    decode,
    encode,
    require_size,
)

LENGTH_BYTES: Final = 4
HEAD_BYTES: Final = 4096
"""Of a frame that is too large, what is kept: the message's name is there."""
HELLO_LIMIT_BYTES: Final = 4 * 2**10
"""Of a frame from somebody who has not proved anything yet."""
NONCE_BYTES: Final = 16
ROOM_BYTES: Final = 2**20
"""What waits here for the other end before whoever can wait does."""
HANDSHAKE_S: Final = 5.0
MOST_STRANGERS: Final = 128
"""Connections at once whose openers have not proved anything yet; more would take descriptors."""
PROBES: Final = 6  # that would fit in the time in which the other machine has to answer one
OWN_LACKS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Errors of a connection for want of something on this machine: the other one may be well."""
_BROKEN: Final = (ConnectionError, OSError, EOFError, ValueError)


class Channel:
    """One authenticated connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Hello,
        *,
        age_s: float = 0.0,
    ) -> None:
        self.peer = peer  # the opener's greeting
        # At the listener's end, how old the greeting may have been when it was read.
        self.age_s = age_s
        self._reader = reader
        self._writer = writer

    @property
    def is_closed(self) -> bool:
        return self._writer.is_closing()

    @property
    def has_room(self) -> bool:
        """Return whether little is queued for the other end, which may have stopped reading."""
        return self._writer.transport.get_write_buffer_size() < ROOM_BYTES

    def send(self, message: Message) -> None:
        """Queue one message; a closed connection drops it (the receiver notices by itself).

        Raises:
            MessageError: It is larger than the other end reads. Nothing of it was sent.
        """
        if not self._writer.is_closing():
            _write(self._writer, encode(message))

    async def drain(self) -> None:
        """Wait until the queue is short again: back-pressure for talkative senders."""
        with suppress(OSError):
            await self._writer.drain()

    async def receive(self) -> Message | None:
        """Return the next message, or `None` if the connection is closed or broken.

        A frame that is too large is passed over, as no message is. Who says what is no message
        otherwise cannot be understood from there on: that breaks the connection.
        """
        try:
            while True:
                try:
                    frame = await self._next_frame()
                except MessageError as error:
                    _complain(error)
                else:
                    return decode(frame)
        except MessageError as error:
            _complain(error)
            self.close()
        except _BROKEN:
            pass
        return None

    async def _next_frame(self) -> bytes:
        """Return the next frame.

        Raises:
            MessageError: It is too large; it was read to its end, and its name alone was kept.
        """
        size_bytes = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
        if size_bytes <= FRAME_LIMIT_BYTES:
            return await self._reader.readexactly(size_bytes)
        head = await self._reader.readexactly(HEAD_BYTES)
        left_bytes = size_bytes - len(head)
        while left_bytes:
            left_bytes -= len(await self._reader.readexactly(min(left_bytes, ROOM_BYTES)))
        require_size(size_bytes, head)
        return head

    def break_after(self, silent_s: int) -> None:
        """Break the connection if the other machine has not answered for this long.

        The kernels ask and answer: a process that is stopped or busy does not break it.
        """
        connection = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = {
            "TCP_KEEPIDLE": max(1, silent_s // 2),
            "TCP_KEEPINTVL": max(1, silent_s // PROBES),
            "TCP_KEEPCNT": PROBES // 2,
            "TCP_USER_TIMEOUT": 1000 * silent_s,
        }
        for name, value in options.items():
            if hasattr(socket, name):  # not all systems have all
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def close(self) -> None:
        self._writer.close()


async def serve(
    host: str, token: str, handle: Callable[[Channel], Awaitable[None]], *, port: int = 0
) -> tuple[asyncio.Server, int]:
    """Listen on `port` of `host`, or a free one; each authenticated connection runs `handle`.

    Of too many that have not authenticated themselves, the oldest are ended: who knows the token
    needs a moment to say so.
    """
    strangers: dict[asyncio.StreamWriter, None] = {}  # in order

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello, began_s = None, asyncio.get_running_loop().time()
        strangers[writer] = None
        if len(strangers) > MOST_STRANGERS:
            oldest = next(iter(strangers))
            del strangers[oldest]
            oldest.transport.abort()
        try:
            # Else it is a stranger, or a peer that died while it was introducing itself.
            with suppress(TimeoutError, MessageError, *_BROKEN):
                async with asyncio.timeout(HANDSHAKE_S):
                    hello = await _admit(reader, writer, token, f"{host}:{port}")
            strangers.pop(writer, None)
            if hello is not None:
                age_s = asyncio.get_running_loop().time() - began_s
                await handle(Channel(reader, writer, hello, age_s=age_s))
        finally:
            strangers.pop(writer, None)
            writer.close()

    server = await asyncio.start_server(welcome, host, port)
    port = int(server.sockets[0].getsockname()[1])
    return server, port


async def _admit(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, address: str
) -> Hello | None:
    """Return the greeting of an opener that knows the token; `None` for any other."""
    nonces = [secrets.token_bytes(NONCE_BYTES)]
    _write(writer, nonces[0])
    nonces.append(await _read(reader, limit_bytes=HELLO_LIMIT_BYTES))
    proof = await _read(reader, limit_bytes=HELLO_LIMIT_BYTES)
    greeting = await _read(reader, limit_bytes=HELLO_LIMIT_BYTES)
    if not hmac.compare_digest(proof, _proof(token, b"opener", address, nonces, greeting)):
        return None
    hello = decode(greeting)
    if not isinstance(hello, Hello):
        return None
    _write(writer, _proof(token, b"listener", address, nonces, greeting))
    return hello


async def connect(
    address: str, token: str, hello: Hello | Callable[[], Hello], *, timeout_s: float
) -> Channel:
    """Open a connection to `address` (`host:port`) and introduce ourselves.

    Args:
        address: Where somebody listens.
        token: The lab's secret.
        hello: The greeting, or what makes it when the listener has answered.
        timeout_s: For all of it.

    Raises:
        ConnectionRefusedError: Nothing listens there: the process is dead.
        TimeoutError: No answer in time: the machine may be gone.
        EOFError: The listener hung up: it is ending, or does not accept our token.
        LaunchError: The listener does not know our token, or speaks otherwise.
    """
    async with asyncio.timeout(timeout_s):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        said = None
        try:
            said = await _greet(reader, writer, token, address, hello)
        except ValueError as error:
            raise LaunchError(
                f"{address} answers as no process of a lab does: {error}; see who listens there "
                f"(ss -ltnp 'sport = :{port}')"
            ) from error
        finally:
            if said is None:
                writer.close()
        if said is None:
            raise LaunchError(
                f"{address} ended the connection before it had proved that it knows this lab's "
                "token; give the token of the lab that listens there"
            )
        return Channel(reader, writer, said)


async def answers(address: str, *, timeout_s: float) -> bool:
    """Return whether the machine of `address` answers at all, if only with a refusal.

    The kernels do: a process that is stopped or busy does not keep them from it.

    Raises:
        OSError: This machine lacks what a connection needs, so nobody was asked.
    """
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionError:
        return True
    except OSError as error:  # a timeout is one, too
        if error.errno in OWN_LACKS:
            raise
        return False
    writer.close()
    return True


async def _greet(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    token: str,
    address: str,
    hello: Hello | Callable[[], Hello],
) -> Hello | None:
    """Prove the token to a listener; return the greeting, or `None` if it does not know it."""
    nonces = [await _read(reader, limit_bytes=HELLO_LIMIT_BYTES), secrets.token_bytes(NONCE_BYTES)]
    said = hello if isinstance(hello, Message) else hello()
    greeting = encode(said)
    for part in (nonces[1], _proof(token, b"opener", address, nonces, greeting), greeting):
        _write(writer, part)
    answer = await _read(reader, limit_bytes=HELLO_LIMIT_BYTES)
    is_known = hmac.compare_digest(answer, _proof(token, b"listener", address, nonces, greeting))
    return said if is_known else None


def _proof(token: str, side: bytes, address: str, nonces: list[bytes], greeting: bytes) -> bytes:
    """Return the proof that `side` knows the token, in this connection and no other."""
    parts = [side, address.encode(), *nonces, greeting]
    said = b"".join(len(part).to_bytes(LENGTH_BYTES, "big") + part for part in parts)
    return hmac.new(token.encode(), said, hashlib.sha256).digest()


def _complain(error: MessageError) -> None:
    print(f"gemini_lab: {error}", file=sys.stderr)  # noqa: T201 - the process's log


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)


async def _read(reader: asyncio.StreamReader, *, limit_bytes: int) -> bytes:
    """Read the next frame; refuse one that is longer than allowed."""
    size_bytes = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if size_bytes > limit_bytes:
        raise ValueError(f"a frame of {size_bytes} bytes; at most {limit_bytes} are read")
    return await reader.readexactly(size_bytes)
