"""The lab hears every word of its agents once, whatever breaks and whoever is slow."""

import asyncio
import json
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from gemini_lab.lab.agent_cluster import AgentCluster
from gemini_lab.lab.connections import AgentConnections
from gemini_lab.lab.loop import LoopThread
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import NodeReady, Note, RunFinished
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.lab_link import LabLink
from gemini_lab.node.start_config import AgentUp, LabRecord
from gemini_lab.recovery.messages import CloseLab, Flush, Flushed, Heard
from gemini_lab.wire.tcp import serve

TOKEN = "secret"


class AgentStandIn:
    """Talks to the lab as an agent does, and says `late` only when it is asked to say it all."""

    def __init__(self, name, *, late=()):
        self.name, self.link, self.late = name, LabLink(name), list(late)
        self.heard = 0
        self.has_ended = False

    async def open(self, port=0):
        self.server, port = await serve("127.0.0.1", TOKEN, self.welcome, port=port)
        return f"127.0.0.1:{port}"

    async def welcome(self, channel):
        self.channel = channel
        self.link.open(channel, channel.peer)
        while (message := await channel.receive()) is not None:
            match message:
                case Heard():
                    self.heard = message.messages
                    self.link.heard(message.messages)
                case Flush():
                    for event in self.late:
                        self.link.emit(event)
                    self.link.say(Flushed())
                case CloseLab():
                    self.has_ended = True
                    channel.close()
        self.link.close(channel)


class AudienceStandIn:
    """Keeps what it is told, and breaks on what it is told to break on."""

    def __init__(self, *, breaks_on=()):
        self.texts, self.notes = [], []
        self.breaks_on = {*breaks_on}

    def take(self, entry: Entry):
        text = getattr(entry.event, "text", entry.kind)
        self.texts.append(text)
        if text in self.breaks_on:
            raise IndexError("pop from an empty deque")

    def take_note(self, text):
        self.notes.append(text)

    def settle(self):
        pass


@pytest.fixture
def meet():
    """Has a lab meet agents; gives its loop. What is started lies in `meet.started`."""
    started = []
    with ExitStack() as undo:

        def start(audience, *agents, beside=None):
            loop = undo.enter_context(LoopThread())
            addresses = {each.name: loop.finish(each.open(), timeout_s=10) for each in agents}
            nodes = {f"nodes/{n}": json.dumps({"address": at}) for n, at in addresses.items()}
            cluster = AgentCluster(
                store=SimpleNamespace(
                    items=lambda: nodes, names=lambda: set(nodes), delete=lambda _: None
                ),
                record=LabRecord(
                    identity="1", machines=2, lease_s=2.0, warm=True, threads=1, detached=None
                ),
                operator=SimpleNamespace(token=TOKEN),
                loop=loop,
                audience=audience,
                beside=beside,
            )
            cluster.take_over()
            started.append(cluster)
            return loop

        start.started = started
        yield start


def wait_for(loop, what):
    """Wait until something is so; for half a minute at most."""

    async def look():
        while not what():
            await asyncio.sleep(0.01)

    loop.finish(look(), timeout_s=30)


def test_a_runs_end_is_taken_behind_the_last_words_of_every_node(meet):
    audience = AudienceStandIn()
    slow = AgentStandIn("node-1", late=[Note(text="iteration 100 on rank 1")])
    root = AgentStandIn("node-0")
    loop = meet(audience, root, slow)
    loop.call(root.link.emit, RunFinished(iteration=100))
    wait_for(loop, lambda: "run_finished" in audience.texts)
    assert audience.texts == ["iteration 100 on rank 1", "run_finished"]


class BusyAgent(AgentStandIn):
    """Does something else, on a loop of its own, where it is connected to."""

    def __init__(self, name, loop):
        super().__init__(name)
        self.loop = loop

    async def open(self):
        opening = super().open()
        address = await asyncio.to_thread(self.loop.finish, opening, timeout_s=10)
        self.loop.call(time.sleep, 0.3)
        return address


def test_an_owner_that_takes_over_hears_all_nodes_before_a_runs_end(meet):
    audience = AudienceStandIn()
    with LoopThread() as busy:
        root, slow = AgentStandIn("node-0"), BusyAgent("node-1", busy)
        root.link.emit(RunFinished(iteration=12))
        slow.link.emit(Note(text="iteration 12"))
        loop = meet(audience, root, slow)
        wait_for(loop, lambda: len(audience.texts) == 2)
    assert audience.texts == ["iteration 12", "run_finished"]


def test_a_start_tries_an_agent_again_whose_port_refuses_for_a_moment(meet):
    """Also beside one that answers at once."""
    loop = meet(AudienceStandIn())
    (lab,) = meet.started
    late, prompt = AgentStandIn("node-0"), AgentStandIn("node-1")
    address = loop.finish(late.open(), timeout_s=10)
    loop.call(late.server.close)
    there = loop.finish(prompt.open(), timeout_s=10)
    ups = [
        AgentUp(name=one.name, address=at, pid=1) for one, at in ((late, address), (prompt, there))
    ]
    started = loop.spawn(lab._connect(ups))
    wait_for(loop, lambda: "node-1" in lab.members or started.done())
    loop.finish(late.open(int(address.rpartition(":")[2])), timeout_s=10)
    started.result(30)
    assert {*lab.members} == {"node-0", "node-1"}


def test_a_lab_connects_again_to_agents_also_while_its_store_is_away(meet):
    """An agent that hears neither its lab nor the store for long ends."""
    agent = AgentStandIn("node-0")
    loop = meet(AudienceStandIn(), agent)
    (lab,) = meet.started
    wait_for(loop, lambda: "node-0" in lab.members)
    there, reads = lab._store.items, []

    def away():
        raise StoreUnavailableError("away")

    lab._store.items = lambda: reads.append(1) or there()
    wait_for(loop, lambda: reads)
    lab._store.items = away
    last = agent.channel
    loop.call(last.close)
    wait_for(loop, lambda: agent.channel is not last)


def test_a_lab_that_breaks_on_a_message_says_so_and_goes_on_listening(meet, capfd):
    audience = AudienceStandIn(breaks_on=["2"])
    agent = AgentStandIn("node-0")
    loop = meet(audience, agent)
    for number in range(1, 5):
        loop.call(agent.link.emit, Note(text=str(number)))
    wait_for(loop, lambda: "4" in audience.texts)
    assert audience.texts == ["1", "2", "3", "4"]
    assert audience.notes == ["the lab's own error: IndexError: pop from an empty deque"]
    assert "IndexError" in capfd.readouterr().err
    wait_for(loop, lambda: agent.heard == 4)


def test_what_was_said_while_a_connection_was_cut_is_heard_once(meet):
    audience = AudienceStandIn()
    agent = AgentStandIn("node-0")
    loop = meet(audience, agent)
    for number in range(1, 4):
        loop.call(agent.link.emit, Note(text=str(number)))
    wait_for(loop, lambda: "3" in audience.texts)
    loop.call(agent.channel.close)
    loop.call(agent.link.emit, Note(text="4"))
    wait_for(loop, lambda: "4" in audience.texts)
    assert audience.texts == ["1", "2", "3", "4"]


async def test_whose_lease_had_run_out_is_connected_to_anew_and_heard_once():
    """A connection that was cut brings what was said on it long after it is mended."""
    told = []
    spawned = []
    listener = SimpleNamespace(hear=lambda _, said: told.append(said.entry.event.text))
    connections = AgentConnections(
        TOKEN, listener, lambda work: spawned.append(asyncio.create_task(work))
    )
    agent = AgentStandIn("node-1")
    known = {"node-1": await agent.open()}
    agent.link.emit(Note(text="1"))
    await connections.meet(known)
    old = agent.channel
    await connections.meet({})
    agent.link.emit(Note(text="2"))
    async with asyncio.timeout(30):
        while agent.channel is old or len(told) < 2:
            await connections.meet(known)
            await asyncio.sleep(0.01)
        new = agent.channel
        await connections.meet(known)
    assert agent.channel is new
    new.close()
    await asyncio.gather(*spawned)
    assert told == ["1", "2"]


def test_a_node_is_as_ready_as_it_was_when_its_connection_has_broken(meet):
    agent = AgentStandIn("node-1")
    loop = meet(AudienceStandIn(), agent)
    (cluster,) = meet.started
    loop.call(agent.link.emit, NodeReady(name="node-1", import_s=1.0))
    wait_for(loop, lambda: cluster.ready)
    old = agent.channel
    loop.call(old.close)
    wait_for(loop, lambda: agent.channel is not old and cluster.members)
    assert cluster.ready == {"node-1"}


def test_the_agent_beside_which_an_owner_runs_is_the_last_to_be_told_to_end(meet):
    others, beside = AgentStandIn("node-1"), AgentStandIn("node-0")
    loop = meet(AudienceStandIn(), others, beside, beside="node-0")
    (cluster,) = meet.started
    cluster.leave()
    assert (others.has_ended, beside.has_ended) == (True, False)
    cluster.leave_beside()
    wait_for(loop, lambda: beside.has_ended)
