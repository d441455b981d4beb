"""What an agent says to the lab's owner is kept until it is on disk, whoever the owner is."""

import asyncio
import os
import re
import secrets
import signal
import subprocess
import sys

import pytest
from made import made

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, Note, RunStarted
from gemini_lab.node.lab_link import PRINTED_BYTES, LabLink
from gemini_lab.recovery.messages import EventSaid, LabHello, OutputSaid
from gemini_lab.units import MIB
from gemini_lab.wire.tcp import ROOM_BYTES, connect, serve


class Owner:
    """The owner's end of a connection: what arrived."""

    def __init__(self, age_s=0.0):
        self.arrived = []
        self.is_closed = False
        self.has_room = True
        self.age_s = age_s

    def send(self, message):
        if not self.is_closed:
            self.arrived.append(message)

    def close(self):
        self.is_closed = True

    @property
    def texts(self):
        return [m.entry.event.text for m in self.arrived if isinstance(m, EventSaid)]


@pytest.fixture
def link():
    return LabLink("node-0", most=5)


def say(link, *numbers):
    for number in numbers:
        link.emit(Note(text=str(number)))


def opened(link, name=None, taken=0):
    """The next owner, or the one of this name once more."""
    owner = Owner()
    link.open(owner, LabHello(at_s=0.0, owner=name or secrets.token_hex(8), taken=taken))
    return owner


def test_the_next_owner_hears_again_what_is_not_on_disk_and_nothing_else(link):
    say(link, 1)
    first = opened(link)
    say(link, 2, 3)
    assert first.texts == ["1", "2", "3"]
    link.heard(2)
    say(link, 4)
    second = opened(link)
    assert first.is_closed
    assert second.texts == ["3", "4"]
    link.heard(1)
    assert opened(link).texts == ["4"]


def test_what_is_said_again_is_the_very_same(link):
    first, second = (say(link, 1), opened(link))[1], opened(link)
    assert first.arrived == second.arrived


def test_messages_that_no_owner_took_are_counted_when_one_comes(link):
    say(link, *range(8))
    owner = opened(link)
    assert owner.texts[:5] == ["3", "4", "5", "6", "7"]
    assert "3 messages of node-0 were dropped" in owner.texts[5]


def test_a_slow_disk_keeps_the_count_right(link):
    owner = opened(link)
    say(link, *range(8))
    assert len(owner.texts) == 8
    link.heard(6)
    assert opened(link).texts == ["6", "7"]


def test_an_owner_that_was_cut_off_hears_the_rest_and_nothing_twice(link):
    before = opened(link, "lab")
    say(link, 1, 2, 3)
    link.heard(1)
    before.close()
    say(link, 4)
    again = opened(link, "lab", taken=2)  # the third was on its way
    assert again.texts == ["3", "4"]
    assert opened(link, "lab", taken=4).texts == []
    link.heard(3)
    assert opened(link, "lab", taken=3).texts == ["4"]
    assert opened(link, "another lab").texts == ["4"]


def test_what_a_cut_off_owner_had_not_on_disk_is_told_the_next_one(link):
    opened(link, "lab")
    say(link, 1, 2, 3)
    assert opened(link, "lab", taken=3).texts == []
    link.heard(1)
    assert opened(link, "the next").texts == ["2", "3"]


def test_what_was_dropped_while_an_owner_was_cut_off_confuses_no_count(link):
    opened(link, "lab").close()
    say(link, *range(7))
    again = opened(link, "lab", taken=0)
    assert again.texts[:5] == ["2", "3", "4", "5", "6"]
    link.heard(4)
    assert opened(link, "lab", taken=4).texts[0] == "6"


def test_a_clock_that_is_set_moves_nothing_in_the_log():
    now = {"wall": 1000.0, "steady": 5.0}
    link = LabLink("node-0", wall_s=lambda: now["wall"], steady_s=lambda: now["steady"])
    owner = Owner()
    link.open(owner, LabHello(at_s=3000.0, owner="lab", taken=0))
    for wall_s, steady_s in ((1001, 6), (4602, 7), (1003.2, 8)):  # set by an hour, and back
        now |= {"wall": wall_s, "steady": steady_s}
        say(link, 0)
    assert [m.entry.at_s for m in owner.arrived] == pytest.approx([3001, 3002, 3003])
    link.open(again := Owner(), LabHello(at_s=3004.0, owner="lab", taken=0))
    assert [m.entry.at_s for m in again.arrived] == [m.entry.at_s for m in owner.arrived]


@pytest.mark.parametrize(
    ("ahead_s", "age_s", "offset_s"),
    [(0.4, 0, 0), (-3, 4, 0), (-9, 4, -7), (9, 4, 11), (-3600, 0, -3600)],
    ids=["close", "late", "behind, and late", "ahead, and late", "behind"],
)
def test_a_greeting_that_comes_late_is_no_other_clock(ahead_s, age_s, offset_s):
    link = LabLink("node-0", wall_s=lambda: 1000.0, steady_s=lambda: 5.0)
    link.open(owner := Owner(age_s), LabHello(at_s=1000 + ahead_s, owner="lab", taken=0))
    say(link, 0)
    assert owner.arrived[0].entry.at_s == pytest.approx(1000 + offset_s)


def test_a_flood_of_printed_lines_takes_no_more_memory_than_is_set_aside_and_is_told_of():
    """A script that prints faster than the lab writes must not take its node's memory."""
    link = LabLink("node-0")
    owner = opened(link)
    for _ in range(40):
        link.say(made(OutputSaid, lines=["x" * MIB]))
    say(link, 1)  # events are kept all the same
    assert len(owner.arrived) == PRINTED_BYTES // MIB + 1
    link.heard(PRINTED_BYTES // MIB)
    assert owner.texts[0] == "1"
    assert owner.texts[1].startswith("8 lines that workers on node-0 printed were dropped")
    link.say(made(OutputSaid, lines=["x" * MIB]))
    link.heard(PRINTED_BYTES // MIB + 3)
    assert len(owner.texts) == 2
    assert owner.arrived[-1].lines == ["x" * MIB]


class SlowOwner(Owner):
    """Takes something, and then nothing until it is waited for."""

    def __init__(self):
        super().__init__()
        self.has_room = False
        self.is_gone = asyncio.Event()

    async def drain(self):
        await self.is_gone.wait()
        self.has_room = True


async def test_an_owner_that_never_takes_the_rest_does_not_keep_it_from_the_next_one():
    """Its machine is frozen, or gone without a word: what is on its way there stays so."""
    link, frozen, following = LabLink("node-0"), SlowOwner(), SlowOwner()
    link.open(frozen, made(LabHello, owner="a"))
    say(link, 1)
    await asyncio.sleep(0)
    link.open(following, made(LabHello, owner="b"))
    following.is_gone.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert following.texts == ["1"]


OWNER = """
import asyncio, sys, time
from gemini_lab.recovery.messages import EventSaid, LabHello
from gemini_lab.wire.tcp import connect

async def main():
    hello = LabHello(at_s=time.time(), owner="lab", taken=0)
    channel = await connect(sys.argv[1], "token", hello, timeout_s=20)
    while (message := await channel.receive()) is not None:
        if isinstance(message, EventSaid):
            event = message.entry.event
            print(event.text if event.kind == "note" else event.iteration, flush=True)

asyncio.run(main())
"""


def test_an_owner_that_is_stopped_costs_no_memory_and_hears_all_but_the_oldest_iterations():
    """A real process, stopped with SIGSTOP while a node says more than its connection takes."""
    asyncio.run(stopped_owner(most=1000, count=40_000))


async def stopped_owner(*, most, count):
    link, opened = LabLink("node-0", most=most), asyncio.get_running_loop().create_future()

    async def welcome(channel):
        link.open(channel, channel.peer)
        opened.set_result(channel)
        await channel.receive()

    server, port = await serve("127.0.0.1", "token", welcome)
    command = [sys.executable, "-c", OWNER, f"127.0.0.1:{port}"]
    owner = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        channel = await asyncio.wait_for(opened, 60)
        owner.send_signal(signal.SIGSTOP)
        for number in range(count):
            if number % (count // 4) == 0:
                link.note(f"a word {number}")
            link.emit(made(Iteration, iteration=number, duration_s=1.0))
            if number % 100 == 0:
                await asyncio.sleep(0)
        held_bytes = channel._writer.transport.get_write_buffer_size()
        assert held_bytes < 2 * ROOM_BYTES
        assert len(link._waiting) <= most
        owner.send_signal(signal.SIGCONT)
        heard = []
        while not (heard and heard[-1].endswith("no lab took them")):
            heard.append((await asyncio.wait_for(owner.stdout.readline(), 60)).decode().strip())
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        await owner.wait()
        server.close()
    numbers = [int(line) for line in heard if line.isdecimal()]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == count - 1
    told = int(heard[-1].split()[0])
    assert told == count - len(numbers) > 0
    assert [line for line in heard if line.startswith("a word")] == [
        f"a word {number}" for number in range(0, count, count // 4)
    ]


async def test_what_is_too_large_to_be_sent_is_said_and_counts_for_nothing(link):
    """The owner acknowledges by numbers: one that it never saw would shift all that follow."""
    arrived = []

    async def take(channel):
        while (message := await channel.receive()) is not None:
            arrived.append(message)

    server, port = await serve("127.0.0.1", "secret", take)
    hello = made(LabHello, owner="one")
    link.open(await connect(f"127.0.0.1:{port}", "secret", hello, timeout_s=5), hello)
    say(link, 1)
    link.pass_on(Entry(at_s=0.0, node="node-0", event=too_large()))
    say(link, 2)
    await link.drain()
    for _ in range(1000):
        if len(arrived) < 3:
            await asyncio.sleep(0.01)
    link.heard(3)
    link.close()
    server.close()
    first, refusal, last = [m.entry.event.text for m in arrived]
    assert (first, last) == ("1", "2")
    assert re.match("node-0: a event_said of .* bytes is larger than a message may be", refusal)


def too_large():
    """An event of a hundred megabytes."""
    names = tuple("x" * 1000 for _ in range(100_000))
    return RunStarted(
        name="x", script="x", args=names, nodes=1, standbys=0, workers_per_node=1, racks=None
    )
