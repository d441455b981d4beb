"""The root agent's connections: one owner each, one attempt at a time, on real sockets."""

import asyncio
import contextlib
import errno
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gemini_lab.log.events import LinkCut
from gemini_lab.node.agent_links import AgentLinks
from gemini_lab.recovery.messages import Fence, Fenced, Joined, MeasureLink, RootHello
from gemini_lab.recovery.protocol import AgentJoined, AgentLost, Emit, FromAgent, Happening
from gemini_lab.wire.tcp import Channel, serve

TOKEN = "secret"
PATIENCE_S = 20.0


class Agents:
    """Agents that greet a root; each test says what they do then."""

    def __init__(self) -> None:
        self.greeted = 0
        self.channels: list[Channel] = []
        self.told: asyncio.Queue[Happening] = asyncio.Queue()
        self.emitted: list[Emit] = []
        self.links = AgentLinks(
            hello=RootHello(name="node-0", term=1),
            token=TOKEN,
            tell=self.told.put_nowait,
            emit=self.emitted.append,
            clock=time.time,
        )

    async def start(
        self,
        serve_root: Callable[[Channel], Awaitable[None]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> str:
        """The address of an agent that does `serve_root` after its greeting."""

        async def welcome(channel: Channel) -> None:
            self.greeted += 1
            self.channels.append(channel)
            channel.send(Joined(epoch=3, workers=[0], is_ready=False))
            await serve_root(channel)

        self.server, port = await serve(host, TOKEN, welcome, port=port)
        return f"{host}:{port}"

    async def next(self) -> Happening:
        return await asyncio.wait_for(self.told.get(), PATIENCE_S)


async def listen(channel: Channel) -> None:
    while (message := await channel.receive()) is not None:
        if isinstance(message, Fence):
            channel.send(Fenced(epoch=message.epoch))


@pytest.fixture
@contextlib.asynccontextmanager
async def agents() -> AsyncIterator[Agents]:
    made = Agents()
    try:
        yield made
    finally:
        made.links.close()


async def test_who_answers_has_joined_and_what_it_says_is_passed_on(agents):
    address = await agents.start(listen)
    (joined,) = await agents.links.open({"node-1": address})
    assert (joined.node, joined.epoch, joined.workers) == ("node-1", 3, [0])
    agents.links.send("node-1", Fence(epoch=4))
    said = await agents.next()
    assert isinstance(said, FromAgent)
    assert said.message == Fenced(epoch=4)


async def test_a_link_that_was_cut_is_joined_anew_and_said_once(agents):
    address = await agents.start(listen)
    await agents.links.open({"node-1": address})
    agents.channels[0].close()
    assert isinstance(await agents.next(), AgentJoined)
    assert [said.event for said in agents.emitted] == [LinkCut(peer="node-1")]
    assert agents.greeted == 2


async def test_each_agent_measures_its_link_to_the_next_machine_once(agents):
    asked = []

    async def note(channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            asked.append(message)

    nodes = {f"node-{n}": await agents.start(note, host=f"127.0.0.{max(n, 2)}") for n in range(4)}
    await agents.links.open(nodes)
    agents.channels[0].close()
    assert isinstance(await agents.next(), AgentJoined)
    agents.links.send("node-0", Fence(epoch=4))  # what comes before it has arrived
    while Fence(epoch=4) not in asked:
        await asyncio.sleep(0.01)
    # Three of them share a machine; from there the next machine is the fourth.
    assert Counter(one.node for one in asked if isinstance(one, MeasureLink)) == {
        "node-0": 1,
        "node-3": 3,
    }


async def test_agents_of_one_machine_measure_no_link(agents):
    asked = []

    async def note(channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            asked.append(message)

    nodes = {f"node-{n}": await agents.start(note) for n in range(2)}
    await agents.links.open(nodes)
    agents.links.send("node-0", Fence(epoch=4))
    while not asked:
        await asyncio.sleep(0.01)
    assert asked == [Fence(epoch=4)]


async def test_an_agent_that_hangs_up_at_once_is_not_connected_to_in_a_storm(agents):
    """450 attempts a second were made where two sides closed each other's connections."""

    async def hang_up(channel: Channel) -> None:
        channel.close()

    address = await agents.start(hang_up)
    await agents.links.open({"node-1": address})
    for _ in range(5):
        for _ in range(50):  # everybody else who notices the break asks for the link, too
            agents.links.follow({"node-1": address}, is_settled=True)
        await asyncio.sleep(0.2)
    assert agents.greeted < 30


async def test_an_agent_whose_machine_refuses_is_lost_and_dead_once_its_lease_has_run_out(agents):
    address = await agents.start(listen)
    await agents.links.open({"node-1": address})
    agents.server.close()
    agents.channels[0].close()
    lost = await agents.next()
    assert isinstance(lost, AgentLost)
    assert (lost.node, lost.cause) == ("node-1", "refused")
    agents.links.follow({}, is_settled=True)
    causes = [(await agents.next()).cause for _ in range(2)]  # type: ignore[union-attr]
    assert causes == ["lease", "dead"]


@pytest.mark.parametrize("is_lost", [False, True])
async def test_an_agent_whose_port_refused_for_a_moment_is_a_member_again(is_lost, agents):
    """As a firewall does that rejects; whether its lease ran out meanwhile or not."""
    address = await agents.start(listen)
    await agents.links.open({"node-1": address})
    agents.server.close()
    agents.channels[0].close()
    assert (await agents.next()).cause == "refused"  # type: ignore[union-attr]
    if is_lost:
        agents.links.follow({}, is_settled=True)
        while (await agents.next()).cause != "dead":  # type: ignore[union-attr]
            pass
    await asyncio.sleep(1.0)  # it is tried again and again meanwhile
    await agents.start(listen, port=int(address.rpartition(":")[2]))
    agents.links.follow({"node-1": address}, is_settled=True)
    assert isinstance(await agents.next(), AgentJoined)
    agents.links.send("node-1", Fence(epoch=4))
    said = await agents.next()
    assert isinstance(said, FromAgent)
    assert said.message == Fenced(epoch=4)


async def test_a_refusal_from_before_its_lease_ran_out_does_not_make_an_agent_dead(agents):
    """It listens again by then: its memory is there."""
    address = await agents.start(listen)
    await agents.links.open({"node-1": address})
    agents.server.close()
    agents.channels[0].close()
    assert (await agents.next()).cause == "refused"  # type: ignore[union-attr]
    await asyncio.sleep(0)
    await agents.start(listen, port=int(address.rpartition(":")[2]))
    agents.links.follow({}, is_settled=True)
    assert (await agents.next()).cause == "lease"  # type: ignore[union-attr]
    await asyncio.sleep(0.5)
    assert agents.told.empty()
    agents.links.follow({"node-1": address}, is_settled=True)
    assert isinstance(await agents.next(), AgentJoined)


async def test_another_program_on_a_lost_agents_port_holds_nobody_up(agents):
    """It speaks first, as some do; a root agent begins when all that it asks have answered."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    stranger = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = stranger.sockets[0].getsockname()[1]
    asked = {"node-1": await agents.start(listen), "node-2": f"127.0.0.1:{port}"}
    found = await asyncio.wait_for(agents.links.open(asked), PATIENCE_S)
    assert [one.node for one in found] == ["node-1"]
    stranger.close()


async def test_an_agent_whose_connection_breaks_with_its_first_word_is_tried_again(agents):
    """Its process is killed then, say; a root agent begins when all that it asks have answered."""

    async def reset(channel: Channel) -> None:
        if agents.greeted == 1:
            connection = channel._writer.get_extra_info("socket")
            lingers = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingers)
            channel._writer.transport.abort()
        else:
            await listen(channel)

    asked = {"node-1": await agents.start(reset)}
    await asyncio.wait_for(agents.links.open(asked), PATIENCE_S)
    while not agents.links.connected:
        await asyncio.sleep(0.01)


async def test_an_agent_whose_lease_ran_out_is_lost_and_joins_again_when_it_is_registered(agents):
    address = await agents.start(listen)
    await agents.links.open({"node-1": address})
    agents.links.follow({}, is_settled=False)  # the store was away: that says nothing
    assert agents.told.empty()
    agents.links.follow({}, is_settled=True)
    lost = await agents.next()
    assert isinstance(lost, AgentLost)
    assert lost.cause == "lease"
    agents.links.follow({"node-1": address}, is_settled=True)
    assert isinstance(await agents.next(), AgentJoined)


async def test_a_silent_agent_that_dies_is_said_to_be_dead(agents):
    address = await agents.start(listen)
    await agents.links.open({"node-1": address})
    agents.links.follow({}, is_settled=True)
    assert (await agents.next()).cause == "lease"  # type: ignore[union-attr]
    agents.server.close()
    for channel in agents.channels:
        channel.close()
    assert (await agents.next()).cause == "dead"  # type: ignore[union-attr]


@pytest.mark.parametrize("line", [b"{}\n", b'{"op":"fence","epoch":1}\n', b"\xff\n"])
async def test_who_says_what_is_no_message_is_hung_up_on(line, capsys, agents):
    async def babble(channel: Channel) -> None:
        channel._writer.write(len(line).to_bytes(4, "big") + line)
        await asyncio.sleep(PATIENCE_S)

    address = await agents.start(babble)
    await agents.links.open({"node-1": address})
    if b"fence" in line:
        await asyncio.sleep(0.3)  # a message, but none that an agent says: passed over
        assert agents.told.empty()
    else:
        assert isinstance(await agents.next(), AgentJoined)
        assert "cannot read a message" in capsys.readouterr().err


async def test_an_agent_that_a_former_root_knew_is_found_dead_though_nothing_names_it_any_more(
    agents,
):
    address = await agents.start(listen)
    agents.server.close()
    agents.links.look_for({"node-7": address})
    lost = await agents.next()
    assert isinstance(lost, AgentLost)
    assert (lost.node, lost.cause) == ("node-7", "dead")


async def test_whose_address_is_anothers_now_is_dead_and_the_other_is_left_in_peace(agents):
    address = await agents.start(listen)
    agents.links.look_for({"node-7": address})
    agents.links.follow({"node-8": address}, is_settled=False)
    heard = [await agents.next(), await agents.next()]
    lost = next(one for one in heard if isinstance(one, AgentLost))
    joined = next(one for one in heard if isinstance(one, AgentJoined))
    assert (lost.node, lost.cause, joined.node) == ("node-7", "dead", "node-8")
    assert agents.links.connected == {"node-8"}
    assert agents.links.addresses == {"node-8": address}


async def test_a_root_whose_machine_has_no_descriptor_left_says_so_before_it_takes_others_for_lost(
    agents,
):
    """It would begin recoveries of nodes that train well, for ever."""
    lacks: list[int | None] = []
    agents.links._on_lack = lambda error: lacks.append(error.errno)
    address = await agents.start(listen)
    await agents.links.open({"node-1": address})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    agents.server.close()
    agents.channels[0].close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # what is open stays so
    try:
        lost = await agents.next()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(lost, AgentLost)
    assert lacks[0] == errno.EMFILE


async def test_links_that_are_closed_end_all_that_keeps_them_whenever_that_is():
    """A process whose connections are refused as it ends must not stay for ever."""

    async def closed_after(turns: int) -> set[str]:
        before = asyncio.all_tasks()
        links = Agents().links
        links.follow({f"node-{n}": "127.0.0.1:1" for n in range(3)}, is_settled=True)
        for _ in range(turns):
            await asyncio.sleep(0)
        links.close()
        links.follow({"node-3": "127.0.0.1:1"}, is_settled=True)  # the store is read once more
        made = asyncio.all_tasks() - before
        _, left = await asyncio.wait(made, timeout=PATIENCE_S) if made else ((), ())
        for task in left:
            task.cancel()
        return {task.get_coro().__qualname__ for task in left}

    for turns in range(60):  # the refusal comes amid these
        assert await closed_after(turns) == set(), turns
