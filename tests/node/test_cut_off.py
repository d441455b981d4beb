"""A root agent that reaches the store and no other agent leaves its place to one of them."""

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from membership_stand_in import StoreStandIn, member, shell_in

from gemini_lab.job import Job
from gemini_lab.log.events import Note
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.membership import Reading
from gemini_lab.node.root_shell import CUT_OFF_S, CutOff, Deposed, RootShell, reaches_others
from gemini_lab.recovery.messages import JobOrder
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState, Setup
from gemini_lab.seats import Seats


@pytest.mark.parametrize(
    ("others", "connected", "is_certain"),
    [
        ({"node-1", "node-2"}, {"node-0"}, True),
        ({"node-1", "node-2"}, {"node-0", "node-2"}, False),
        ({"node-1"}, {"node-0"}, False),  # its network may be the broken one
    ],
)
def test_who_reaches_none_of_several_others_for_long_is_cut_off(others, connected, is_certain):
    cut_off = CutOff(0.0)
    cut_off.is_certain(1.0, others={"node-1", "node-2"}, connected={"node-1"})
    assert not cut_off.is_certain(CUT_OFF_S, others=others, connected=connected)
    now_s = CUT_OFF_S + 1.5
    assert cut_off.is_certain(now_s, others=others, connected=connected) == is_certain


async def test_a_root_agent_that_is_cut_off_says_so_and_leaves_its_place_to_others():
    store, said = StoreStandIn(), []
    membership = member(store, "node-0")
    await membership.register()
    record = await membership.campaign(store.keys)
    shell = RootShell(
        membership=membership,
        record=record,
        token="secret",
        emit=said.append,
        request_nodes=lambda _wanted, _reason: None,
        machine=AgentMachine(),
    )
    shell._cut_off = CutOff(shell._clock() - 2 * CUT_OFF_S)
    acting = asyncio.create_task(shell.run())
    while not acting.done():
        await asyncio.sleep(0.01)
        shell.observe(Reading(items=dict(store.keys), is_whole=True), is_settled=True)
    await acting
    assert "root" not in store.keys
    assert await membership.campaign(store.keys) is None
    other = member(store, "node-1")
    await other.register()
    elected = await other.campaign(store.keys)
    assert (elected.name, elected.term) == ("node-1", 2)
    notes = [event.text for event in said if isinstance(event, Note)]
    assert notes == ["node-0 reaches none of 2 other agents: one of them is to be root"]


@contextlib.contextmanager
def silence() -> Iterator[str]:
    """An address at which nobody answers, and nobody refuses either: its queue is full."""
    with contextlib.ExitStack() as made:
        listener = made.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        host, port = listener.getsockname()
        for _ in range(8):
            one = made.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((host, port))
        yield f"{host}:{port}"


@pytest.mark.parametrize(
    ("others", "is_reached"),
    [("silent silent", False), ("silent refusing", True), ("silent", True)],
)
def test_one_machine_that_answers_at_all_is_enough(others, is_reached):
    """What refuses answers, too; of one alone nobody knows whose network is broken."""
    with silence() as silent:
        listens = {"silent": silent, "refusing": "127.0.0.1:1"}
        addresses = {f"node-{n}": listens[one] for n, one in enumerate(others.split())}
        assert asyncio.run(reaches_others(addresses, AgentMachine())) == is_reached


def training_on(nodes: int) -> RootState:
    order = JobOrder(
        number=1, run=7, job=Job(script="train.py"), seats=Seats(nodes=nodes), settings={}
    )
    members = tuple(f"node-{number}" for number in range(nodes))
    setup = Setup(order=order, placed=order.seats.seated(members))
    return RootState(phase="running", epoch=4, setup=setup)


@pytest.mark.parametrize("is_pausing", [False, True])
async def test_a_root_agent_that_misses_others_amid_a_pause_sits_it_out(is_pausing):
    """Each root agent after it would begin the recovery again, and the pause with it."""
    store = StoreStandIn()
    _, shell = await shell_in(store)
    state = replace(training_on(3), phase="waiting")
    root = shell._root = RootAgent(state=state, at_s=shell._clock())
    root.lifecycle.is_pausing = is_pausing
    store.keys["nodes/node-1"] = '{"address": "127.0.0.1:1"}'
    shell.observe(Reading(items=dict(store.keys), is_whole=True), is_settled=True)
    assert (shell._missed_since_s is None) == is_pausing
    shell._links.close()


def test_a_root_agent_that_is_cut_off_ends_no_epoch_before_it_leaves_its_place():
    """What it takes for lost trains on: an epoch that it began would end that."""
    store, said = StoreStandIn(), []

    async def wait_and_leave(silent):
        for name in ("node-1", "node-2"):
            store.keys[f"nodes/{name}"] = f'{{"address": "{silent}"}}'
        store.keys |= {"state": training_on(3).to_text(), "epoch": "4"}
        _, shell = await shell_in(store, emit=said.append)
        acting = asyncio.create_task(shell.run())
        while not acting.done():
            await asyncio.sleep(0.05)
            shell.observe(Reading(items=dict(store.keys), is_whole=True), is_settled=True)
            shell._cut_off = CutOff(shell._clock())  # as where connections have not broken yet
        await acting

    with silence() as silent:
        asyncio.run(asyncio.wait_for(wait_and_leave(silent), 60))
    assert store.keys["epoch"] == "4"
    assert "root" not in store.keys
    assert any(isinstance(event, Note) for event in said)


async def test_a_root_agent_that_can_open_nothing_says_so_and_leaves_before_it_begins_an_epoch():
    """It has asked nobody, so that it must not say that nobody answers."""
    store, said = StoreStandIn(), []
    _, shell = await shell_in(store, emit=said.append)
    shell._addresses = dict.fromkeys(("node-0", "node-1", "node-2"), "127.0.0.1:1")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # what is open stays so
    try:
        with pytest.raises(Deposed):
            await shell._until_others_are_reached()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    lacks = f"[Errno {errno.EMFILE}] {os.strerror(errno.EMFILE)}"
    text = f"node-0 cannot open connections ({lacks}): another agent is to be root"
    assert said == [Note(text=text)]
    assert "root" not in store.keys
