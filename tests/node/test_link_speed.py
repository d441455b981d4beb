"""The speed of a link between two agents, measured on real sockets."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gemini_lab.node import link_speed
from gemini_lab.node.link_speed import PIECE_BYTES, give_filler, link_fault
from gemini_lab.recovery.ailments import MachineFault
from gemini_lab.recovery.messages import Filler, MeasureLink, ProbeHello
from gemini_lab.wire.tcp import Channel, connect, serve

TOKEN = "secret"


def found(answer: Callable[[Channel], Awaitable[None]] | None) -> MachineFault | None:
    """What is found of a link to an agent that answers so; `None`: nothing listens there."""

    async def look() -> MachineFault | None:
        server, port = await serve("127.0.0.1", TOKEN, answer or give)
        if answer is None:
            server.close()
            await server.wait_closed()
        peer = MeasureLink(node="node-1", address=f"127.0.0.1:{port}")
        try:
            return await link_fault(peer, token=TOKEN, name="node-0")
        finally:
            server.close()

    return asyncio.run(look())


async def give(channel: Channel) -> None:
    assert isinstance(channel.peer, ProbeHello)
    await give_filler(channel, channel.peer.pieces)


async def trickle(channel: Channel) -> None:
    """Answer at some megabytes a second."""
    for _ in range(64):
        channel.send(Filler(fill="-" * PIECE_BYTES))
        await channel.drain()
        await asyncio.sleep(0.1)


async def hang(_: Channel) -> None:
    await asyncio.sleep(5)


async def hang_up(channel: Channel) -> None:
    channel.send(Filler(fill="-"))


def test_a_fast_link_is_no_fault(monkeypatch):
    monkeypatch.setattr(link_speed, "LEAST_LINK_SPEED", 1000)  # however busy this machine is
    assert found(give) is None


def test_a_slow_link_is_told_with_its_speed():
    fault = found(trickle)
    assert fault is not None
    assert fault.fault == "slow_link"
    assert fault.seen.endswith("/s from node-1")


def test_a_link_that_carries_nothing_in_time_is_slow(monkeypatch):
    monkeypatch.setattr(link_speed, "LIMIT_S", 0.3)
    assert found(hang) == MachineFault("slow_link", "0 B/s from node-1")


def test_the_sender_ends_later_than_the_agent_that_measures(monkeypatch):
    monkeypatch.setattr(link_speed, "LIMIT_S", 0.3)
    took_s = 0.0

    async def give_timed(channel: Channel) -> None:
        nonlocal took_s
        since_s = asyncio.get_running_loop().time()
        await give_filler(channel, 10**6)
        took_s = asyncio.get_running_loop().time() - since_s

    async def read_nothing() -> None:
        server, port = await serve("127.0.0.1", TOKEN, give_timed)
        hello = ProbeHello(name="node-0", pieces=64)
        channel = await connect(f"127.0.0.1:{port}", TOKEN, hello, timeout_s=5)
        async with asyncio.timeout(30):
            while not took_s:
                await asyncio.sleep(0.02)
        channel.close()
        server.close()

    asyncio.run(read_nothing())
    assert took_s >= 0.6


@pytest.mark.parametrize("answer", [None, hang_up], ids=["nothing listens", "it hangs up"])
def test_an_agent_that_is_gone_tells_nothing_of_the_link(answer):
    assert found(answer) is None
