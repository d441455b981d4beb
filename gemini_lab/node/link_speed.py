"""The speed of the link to another machine, measured once when an agent joins.

Versions and recoveries go over this link, so one that runs at a hundredth of its speed (a bad
cable, a switch port that fell back) slows every iteration down, and nothing else names it.
"""

import asyncio
from contextlib import suppress
from typing import Final

from gemini_lab.errors import GeminiError
from gemini_lab.recovery.ailments import MachineFault
from gemini_lab.recovery.messages import Filler, MeasureLink, ProbeHello
from gemini_lab.units import format_bytes
from gemini_lab.wire.tcp import Channel, connect

PIECE_BYTES: Final = 2**20
UNCOUNTED: Final = 16
"""Pieces before the clock starts: TCP needs some round trips to reach a long link's speed."""
COUNTED: Final = 16
CONNECT_S: Final = 5.0
LIMIT_S: Final = 10.0
LEAST_LINK_SPEED: Final = 32 * 2**20  # bytes/s
"""A 1 Gbit/s link reaches three times as much; one that fell back to 100 Mbit/s a third."""


async def give_filler(channel: Channel, pieces: int) -> None:
    """Send another agent as many pieces as it asked for."""
    with suppress(TimeoutError):
        # Twice as long as the other one listens: over a slow link, one that ended first would look
        # like an agent that is gone.
        async with asyncio.timeout(2 * LIMIT_S):
            for _ in range(pieces):
                channel.send(Filler(fill="-" * PIECE_BYTES))
                await channel.drain()


async def link_fault(peer: MeasureLink, *, token: str, name: str) -> MachineFault | None:
    """Receive `Filler` from an agent, and return the fault if that takes far too long.

    An agent that does not answer is no fault of this machine; its connections are watched anyway.

    Args:
        peer: The agent that is asked.
        token: The lab's secret.
        name: This node.
    """
    clock = asyncio.get_running_loop().time
    hello = ProbeHello(name=name, pieces=UNCOUNTED + COUNTED)
    try:
        channel = await connect(peer.address, token, hello, timeout_s=CONNECT_S)
    except (OSError, EOFError, GeminiError):
        return None
    since_s, pieces = clock(), 0
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                for number in range(hello.pieces):
                    if await channel.receive() is None:
                        return None
                    pieces += 1
                    if number == UNCOUNTED - 1:
                        since_s, pieces = clock(), 0
    finally:
        channel.close()
    speed = pieces * PIECE_BYTES / max(clock() - since_s, 1e-9)
    if speed >= LEAST_LINK_SPEED:
        return None
    return MachineFault("slow_link", f"{format_bytes(speed)}/s from {peer.node}")
