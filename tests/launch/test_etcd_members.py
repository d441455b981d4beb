"""An embedded etcd of three members: what is stored outlives any of them, and any is replaced."""

import os
import signal
from dataclasses import replace

import psutil
import pytest
from test_etcd import PATIENCE_S, until

from gemini_lab.errors import LaunchError
from gemini_lab.launch.etcd import find_etcd
from gemini_lab.launch.etcd_members import MemberPlace, begin, take_place
from gemini_lab.launch.members import start_members
from gemini_lab.node.config import LAB_KEY
from gemini_lab.node.control_store import EtcdStore, StoreUnavailableError, patiently

MARK = "gemini_lab.launch.etcd_keeper"
HERE = "127.0.0.1:9"


def keepers(prefix) -> dict[str, psutil.Process]:
    """Who keeps the lab's members, by the endpoint of each."""
    found = {}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if MARK in words and process.environ().get("GEMINI_LAB_TEST_LAB") == prefix:
            member = words[-1]
            found[member.partition('"client":"https://')[2].partition('"')[0]] = process
    return found


def run_here(order, hosts):
    """Run members as MPI would, but all on this machine."""
    places = [MemberPlace.towards(order.reach) for _ in hosts]
    for own in places:
        if order.etcd is None:
            begin(own, places, order)
        else:
            take_place(own, order)
    return places


@pytest.fixture
def prefix(monkeypatch):
    """A lab's part of the store; its name marks its keepers."""
    try:
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    name = f"gemini_lab/members-{os.getpid()}"
    monkeypatch.setenv("GEMINI_LAB_TEST_LAB", name)
    yield name
    for keeper in keepers(name).values():
        kill(keeper)


def kill(keeper):
    """What the loss of a machine does to its member."""
    for process in [keeper, *keeper.children()]:  # the keeper first: it would start another one
        process.send_signal(signal.SIGKILL)


def test_a_lost_member_costs_nothing_and_a_new_machine_takes_its_place(prefix):
    members = start_members(["a", "b", "c"], prefix, reach=HERE, run=run_here)
    store = EtcdStore(members.address, prefix)
    patiently(lambda: store.put(LAB_KEY, "here"))
    patiently(lambda: store.put("key", "kept"))
    first = members.address.endpoints
    for number, lost in zip(
        "012", first, strict=True
    ):  # one after the other, until none of the first is left
        kill(keepers(prefix)[lost])
        assert patiently(store.items, patience_s=PATIENCE_S)["key"] == "kept"
        members.mend([f"new-{number}"])
        patiently(lambda number=number: store.put("newest", number), patience_s=PATIENCE_S)
    assert not set(first) & set(members.address.endpoints)
    assert set(keepers(prefix)) == set(members.address.endpoints)
    for endpoint in members.address.endpoints:
        alone = EtcdStore(
            replace(members.address, endpoints=(endpoint,), is_followed=False), prefix
        )
        assert patiently(alone.items)["newest"] == "2"
        alone.close()
    for wrong in ({"password": "guessed"}, {"user": None, "password": None}, {"ca_pem": None}):
        stranger = EtcdStore(replace(members.address, **wrong), prefix)
        with pytest.raises(StoreUnavailableError):
            stranger.items()
    assert patiently(store.items) == {LAB_KEY: "here", "key": "kept", "newest": "2"}
    patiently(lambda: store.delete(LAB_KEY))
    store.close()
    until(lambda: not keepers(prefix))
