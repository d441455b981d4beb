"""The door between processes: who knows the token comes in, and nobody in another's place."""

import asyncio
import contextlib
import errno
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from made import made

from gemini_lab.errors import LaunchError, MessageError
from gemini_lab.recovery.messages import CloseLab, ControlHello, OutputSaid, ProbeHello
from gemini_lab.wire.tcp import HANDSHAKE_S, MOST_STRANGERS, Channel, connect, serve
from gemini_lab_bench.chaos.namespaces import NodeNetwork, why_not

TOKEN = "secret"
HELLO = ProbeHello(name="node-1")


class House:
    """A listener, and who was let in."""

    def __init__(self) -> None:
        self.guests: list[Channel] = []

    async def welcome(self, channel: Channel) -> None:
        self.guests.append(channel)
        while (message := await channel.receive()) is not None:
            channel.send(message)

    async def open(self, token: str = TOKEN) -> str:
        self.server, port = await serve("127.0.0.1", token, self.welcome)
        return f"127.0.0.1:{port}"


@pytest.fixture
@contextlib.asynccontextmanager
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    for guest in made.guests:
        guest.close()


async def test_who_knows_the_token_is_let_in_and_messages_pass(house):
    channel = await connect(await house.open(), TOKEN, HELLO, timeout_s=5)
    large = made(OutputSaid, lines=["x" * 1000] * 2000)
    for message in (CloseLab(), large):
        channel.send(message)
        assert await channel.receive() == message
    channel.close()
    assert [guest.peer for guest in house.guests] == [HELLO]


@pytest.mark.parametrize("token", ["guessed", ""])
async def test_a_stranger_is_not_let_in(token, house):
    with pytest.raises((LaunchError, EOFError)):
        await connect(await house.open(), token, HELLO, timeout_s=5)
    assert house.guests == []


async def test_strangers_without_number_take_no_descriptors_and_keep_nobody_out(house):
    """Any user of a machine reaches the ports of loopback: the oldest of too many are ended."""
    host, port = (await house.open()).split(":")
    strangers = []
    for _ in range(MOST_STRANGERS + 1):
        reader, writer = await asyncio.open_connection(host, int(port))
        await reader.readexactly(4)  # it is being asked who it is
        strangers.append((reader, writer))
    try:
        async with asyncio.timeout(HANDSHAKE_S / 2):
            with contextlib.suppress(ConnectionError):
                while await strangers[0][0].read(100):
                    pass
        assert not strangers[1][0].at_eof()
        await connect(f"{host}:{port}", TOKEN, HELLO, timeout_s=5)
    finally:
        for _, writer in strangers:
            writer.close()
    assert [guest.peer for guest in house.guests] == [HELLO]


async def test_a_listener_that_does_not_know_the_token_is_not_believed(house):
    """Something else listens on the port that an agent had."""
    with pytest.raises((LaunchError, EOFError)):
        await connect(await house.open(token="another"), TOKEN, HELLO, timeout_s=5)


async def test_an_error_of_who_serves_a_connection_is_no_strangers(house):
    """It would be dropped with those, and nobody hear of it."""

    async def fail(_: Channel) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    told = asyncio.Event()
    house.welcome = fail
    asyncio.get_running_loop().set_exception_handler(lambda *_: told.set())
    channel = await connect(await house.open(), TOKEN, HELLO, timeout_s=5)
    assert await channel.receive() is None
    await asyncio.wait_for(told.wait(), 5)


async def test_a_challenge_that_is_passed_on_opens_no_other_door(house):
    """A stranger on a dead agent's port relays a live agent's bytes, both ways."""
    live = await house.open()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = live.rpartition(":")
        there = await asyncio.open_connection(host, int(port))

        async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1024):
                sink.write(data)
            sink.close()

        await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))

    stranger = await asyncio.start_server(relay, "127.0.0.1", 0)
    port = stranger.sockets[0].getsockname()[1]
    with pytest.raises((LaunchError, EOFError)):
        await connect(f"127.0.0.1:{port}", TOKEN, HELLO, timeout_s=5)
    stranger.close()
    assert house.guests == []


async def test_a_greeting_cannot_be_exchanged_for_another(house, monkeypatch):
    """Who stands in the way and changes a byte of what an opener says has no proof for it."""
    host, _, port = (await house.open()).rpartition(":")
    dial, answers = asyncio.open_connection, []

    async def meddle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await dial(host, int(port))
        writer.write(await there[0].readexactly(20))
        said = b""
        while b"node-1" not in said:
            said += await reader.read(4096)
        there[1].write(said.replace(b"node-1", b"node-2"))
        answers.append(await there[0].read(4096))
        writer.close()

    meddler = await asyncio.start_server(meddle, "127.0.0.1", 0)
    way = meddler.sockets[0].getsockname()[1]
    monkeypatch.setattr(asyncio, "open_connection", lambda host, _, **more: dial(host, way, **more))
    with pytest.raises((LaunchError, EOFError)):
        await connect(f"{host}:{port}", TOKEN, HELLO, timeout_s=5)
    meddler.close()
    assert answers == [b""]
    assert house.guests == []


async def test_a_stranger_cannot_have_memory_taken(house):
    """A frame that is announced as large is hung up on before a byte of it is kept."""
    host, _, port = (await house.open()).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await reader.readexactly(20)
    writer.write((2**26).to_bytes(4, "big") + b"x" * 100_000)
    with pytest.raises((EOFError, ConnectionError)):
        await asyncio.wait_for(reader.readexactly(1), 5)
    assert house.guests == []


async def test_what_is_no_greeting_opens_nothing(house):
    with pytest.raises((LaunchError, EOFError)):
        await connect(await house.open(), TOKEN, CloseLab(), timeout_s=5)  # type: ignore[arg-type]
    channel = await connect(await house.open(), TOKEN, ControlHello(), timeout_s=5)
    channel.close()
    assert [guest.peer for guest in house.guests] == [ControlHello()]


async def test_a_dead_listener_is_told_from_a_silent_one(house):
    address = await house.open()
    house.server.close()
    await house.server.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await connect(address, TOKEN, HELLO, timeout_s=5)
    silent = await asyncio.start_server(lambda *_: asyncio.sleep(60), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    with pytest.raises(TimeoutError):
        await connect(f"127.0.0.1:{port}", TOKEN, HELLO, timeout_s=0.3)
    silent.close()


async def test_what_is_too_large_is_refused_where_it_is_said_and_the_connection_stays(house):
    channel = await connect(await house.open(), TOKEN, HELLO, timeout_s=5)
    with pytest.raises(MessageError, match=r"a output_said of .* larger than a message may be"):
        channel.send(made(OutputSaid, lines=["x" * 1000] * 70_000))
    channel.send(CloseLab())
    assert await channel.receive() == CloseLab()
    channel.close()


async def test_what_is_too_large_is_passed_over_by_its_name(capfd, house):
    """Another version of gemini_lab may say it; nothing of it is kept, and the next is heard."""
    channel = await connect(await house.open(), TOKEN, HELLO, timeout_s=5)
    frame = b'{"op":"log_said","lines":"' + b"x" * 2**26 + b'"}'
    channel._writer.write(len(frame).to_bytes(4, "big") + frame)
    channel.send(CloseLab())
    assert await channel.receive() == CloseLab()
    channel.close()
    assert "gemini_lab: a log_said of 67,108,892 bytes is larger" in capfd.readouterr().err


LISTENS = """
import asyncio, sys
from gemini_lab.wire.tcp import serve

async def listen():
    server, port = await serve(sys.argv[1], "secret", lambda channel: channel.receive())
    print(port, flush=True)
    await asyncio.sleep(600)

asyncio.run(listen())
"""


def test_a_connection_breaks_once_the_other_machine_is_silent_and_not_with_a_stopped_process():
    if reason := why_not():
        pytest.skip(reason)

    async def wait_for_its_end(network: NodeNetwork, address: str, listener) -> None:
        channel = await connect(address, TOKEN, HELLO, timeout_s=20)
        channel.break_after(2)
        listener.send_signal(signal.SIGSTOP)
        end = asyncio.create_task(channel.receive())
        assert await asyncio.wait([end], timeout=6) == (set(), {end})
        network.cut(0, sent=True, received=True)
        assert await asyncio.wait_for(end, timeout=30) is None
        channel.close()

    with NodeNetwork(1, subnet="10.79.1") as network:
        command = network.command(0, [sys.executable, "-c", LISTENS, network.address(0)])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
            try:
                address = f"{network.address(0)}:{listener.stdout.readline().strip()}"
                asyncio.run(wait_for_its_end(network, address, listener))
            finally:
                listener.kill()
