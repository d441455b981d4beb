"""An embedded etcd of three members: what is stored outlives any of them, and any is replaced."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest
from made import made
from test_etcd import PATIENCE_S, until

from gemini_lab.errors import LaunchError
from gemini_lab.job import python_command
from gemini_lab.launch.etcd import Authority, find_etcd, own_address
from gemini_lab.launch.etcd_keeper import LEAVE_S, MemberProcess
from gemini_lab.launch.etcd_members import MemberPlace, join_cluster, start_members
from gemini_lab.node.control_store import StoreUnavailableError, patiently
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.orphan_etcd import end_left_stores
from gemini_lab.node.processes import (
    AGENT,
    STORE_KEEPER,
    is_alive,
    processes_of,
    release_store,
)
from gemini_lab.node.sealed_store import SealedStore
from gemini_lab.node.start_config import LAB_KEY, AgentConfig, AgentUp, LabRecord
from gemini_lab.recovery.messages import LabHello
from gemini_lab.wire.tcp import connect

HERE = "127.0.0.1:9"
TOKEN = "secret"


def keepers(prefix) -> dict[str, psutil.Process]:
    """Who keeps the lab's members, by the endpoint of each."""
    found = {}
    for process in processes_of(STORE_KEEPER, prefix):
        try:
            member = msgspec.json.decode(process.cmdline()[-1], type=MemberProcess)
        except psutil.Error:  # it has ended
            continue
        found[member.client.removeprefix("https://")] = process
    return found


def run_here(order, hosts):
    """Run members as MPI would, but all on this machine."""
    with ExitStack() as held:
        places = [held.enter_context(MemberPlace.towards(order.reach)) for _ in hosts]
        for own in places:
            join_cluster(own, places, order)
    return places


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """A lab's part of the store; its name marks its keepers."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a killed keeper leaves its folder
    try:
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    name = f"gemini_lab/members-{os.getpid()}"
    yield name
    for keeper in keepers(name).values():
        kill(keeper)
    until(lambda: not zombies())


def zombies() -> list[psutil.Process]:
    """Keepers that have ended and that nobody has waited for: this process has started them."""
    children = psutil.Process().children()
    return [one for one in children if one.status() == psutil.STATUS_ZOMBIE]


def kill(keeper):
    """What the loss of a machine does to its member."""
    for process in [keeper, *keeper.children()]:  # the keeper first: it would start another one
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("losses", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_lost_member_costs_nothing_and_a_new_machine_takes_its_place(prefix, losses):
    """One after the other, until, after three, none of the first is left."""
    members = start_members(["a", "b", "c"], prefix, reach=HERE, run=run_here)
    store = EtcdStore(members.address, prefix)
    patiently(lambda: store.put(LAB_KEY, "here"))
    patiently(lambda: store.put("key", "kept"))
    first = members.address.endpoints[:losses]
    for lost in first:
        kill(keepers(prefix)[lost])
        assert patiently(store.items, patience_s=PATIENCE_S)["key"] == "kept"
        members.mend(["new"])
        patiently(lambda lost=lost: store.put("newest", lost), patience_s=PATIENCE_S)
    assert not set(first) & set(members.address.endpoints)
    assert set(keepers(prefix)) == set(members.address.endpoints)
    for endpoint in members.address.endpoints:
        alone = EtcdStore(
            replace(members.address, endpoints=(endpoint,), is_followed=False), prefix
        )
        assert patiently(alone.items)["newest"] == first[-1]
        alone.close()
    foreign = own_address(members.address.endpoints, Authority.make()).own
    trusting = replace(foreign, authority_pem=members.authority.pem)
    for own in (None, foreign, trusting):
        stranger = EtcdStore(replace(members.address, own=own), prefix)
        with pytest.raises(StoreUnavailableError):
            stranger.items()
    assert patiently(store.items) == {LAB_KEY: "here", "key": "kept", "newest": first[-1]}
    patiently(lambda: store.delete(LAB_KEY))
    store.close()
    until(lambda: not keepers(prefix))


@pytest.mark.parametrize("has_lab", [True, pytest.param(False, marks=pytest.mark.long)])
def test_members_outlive_all_agents_and_end_with_their_lab(prefix, has_lab):
    """With the lab's key, or, when a lab did not get that far, by a word of who started it."""
    members = start_members(["a", "b", "c"], prefix, reach=HERE, run=run_here)
    store = EtcdStore(members.address, prefix)
    if has_lab:
        patiently(lambda: store.put(LAB_KEY, "here"))
        with stand_in_agent(prefix) as agent:
            agent.kill()
        patiently(lambda: store.put("key", "kept"))
        assert patiently(store.items) == {LAB_KEY: "here", "key": "kept"}
        patiently(lambda: store.delete(LAB_KEY))
    store.close()
    members.see_off()
    until(lambda: not keepers(prefix))


def test_members_end_when_an_agent_here_says_so_and_all_agents_here_have_ended(prefix):
    start_members(["a", "b", "c"], prefix, reach=HERE, run=run_here)
    with stand_in_agent(prefix) as agent, stand_in_agent(prefix) as killed:
        killed.kill()
        release_store(prefix)
        agent.kill()
    until(lambda: not keepers(prefix))


def test_an_agent_that_only_cannot_reach_its_lab_ends_no_member(prefix):
    """The lab may be well: all members end with its key, or when it says so."""
    members = start_members(["a", "b", "c"], prefix, reach=HERE, run=run_here)
    store = SealedStore(members.address, prefix, token=TOKEN)
    patiently(lambda: store.put(LAB_KEY, "here"))
    with real_agent(members.address, prefix) as agent:
        asyncio.run(cut_off(agent))
        etcds = [etcd for keeper in keepers(prefix).values() for etcd in keeper.children()]
        for etcd in etcds:  # it reaches the store no more, either
            etcd.suspend()
        assert agent.wait(PATIENCE_S) == 0
        for etcd in etcds:
            etcd.resume()
    time.sleep(2 * LEAVE_S)
    assert len(keepers(prefix)) == 3
    assert set(patiently(store.items)) >= {LAB_KEY}
    patiently(lambda: store.delete(LAB_KEY))
    store.close()
    until(lambda: not keepers(prefix))


def test_keepers_end_where_many_agents_say_so_at_once(prefix):
    """Each says it to all: a signal comes while another one is heeded."""
    start_members(["a", "b", "c"], prefix, reach=HERE, run=run_here)
    with stand_in_agent(prefix) as agent:
        told = [keeper.pid for keeper in keepers(prefix).values()] * 3000
        for pid in told:
            os.kill(pid, signal.SIGTERM)
        agent.kill()
    until(lambda: not keepers(prefix))


def test_members_whose_keepers_were_killed_end_with_the_last_agent_here(prefix):
    """They speak with each other for ever, and no client need be connected with each of them."""
    start_members(["a", "b", "c"], prefix, reach=HERE, run=run_here)
    etcds = orphaned(prefix)
    with stand_in_agent(prefix) as agent:
        end_left_stores()
        assert all(is_alive(etcd) for etcd in etcds)
        end_left_stores(over=prefix)
        assert not any(is_alive(etcd) for etcd in etcds)
        agent.kill()
    assert not [*Path(tempfile.gettempdir()).iterdir()]


def test_a_member_that_only_kept_members_are_connected_with_is_ended(prefix):
    """They stand for those of other machines; a keeper here asks any member of its lab."""
    start_members(["a", "b", "c"], prefix, reach=HERE, run=run_here)
    endpoint = next(iter(keepers(prefix)))
    (left,) = orphaned(prefix, 1)
    with stand_in_keeper(endpoint) as keeper:
        end_left_stores()
        keeper.kill()
    assert not is_alive(left)
    assert all(keeper.children() for keeper in keepers(prefix).values())


def orphaned(prefix, count=3) -> list[psutil.Process]:
    """So many of the lab's members, whose keepers have been killed."""
    found = [*keepers(prefix).values()][:count]
    etcds = [child for keeper in found for child in keeper.children()]
    for keeper in found:
        keeper.kill()
        keeper.wait(PATIENCE_S)
    return etcds


def stand_in_agent(prefix) -> subprocess.Popen[bytes]:
    """A process that looks like an agent of the lab."""
    code = "import sys; sys.stdin.read()"
    return subprocess.Popen([sys.executable, "-c", code, AGENT, prefix], stdin=subprocess.PIPE)


def real_agent(etcd, prefix) -> subprocess.Popen[bytes]:
    """An agent of the lab that starts no worker."""
    config = AgentConfig(
        name="node-0",
        token=TOKEN,
        etcd=etcd,
        prefix=prefix,
        lab=LabRecord(identity="", machines=1, lease_s=2.0, warm=False, threads=None),
    )
    agent = subprocess.Popen(
        python_command(AGENT, prefix), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    agent.stdin.write(msgspec.json.encode(config) + b"\n")
    agent.stdin.flush()
    return agent


async def cut_off(agent) -> None:
    """Connect to an agent as its lab, and close the connection without a word."""
    up = msgspec.json.decode(agent.stdout.readline(), type=AgentUp)
    hello = made(LabHello, owner="lab")
    (await connect(up.address, TOKEN, hello, timeout_s=PATIENCE_S)).close()


def stand_in_keeper(endpoint) -> subprocess.Popen[bytes]:
    """A process that looks like a keeper, and is connected to a member."""
    host, port = endpoint.split(":")
    code = (
        f"import socket, sys; held = socket.create_connection(({host!r}, {port}));"
        "print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, STORE_KEEPER, "another"]
    keeper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    keeper.stdout.readline()
    return keeper
