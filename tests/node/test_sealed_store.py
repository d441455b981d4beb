"""What stands in a lab's store counts only where it was written with the lab's token."""

import asyncio
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from membership_stand_in import StoreStandIn, member, shell_in

from gemini_lab.errors import ConfigError, LaunchError
from gemini_lab.job import Job
from gemini_lab.lab.announcement import Announcement
from gemini_lab.lab.run_locator import Access, labs_in
from gemini_lab.launch.etcd import find_etcd, start_etcd
from gemini_lab.launch.join import find_lab, prefix_of
from gemini_lab.log.events import Note, RootElected
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.control_store import StoreForgedError, patiently
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdStore
from gemini_lab.node.root_shell import RootShell
from gemini_lab.node.sealed_store import SEAL_CHARACTERS, SealedStore
from gemini_lab.node.start_config import LAB_KEY, LabRecord
from gemini_lab.recovery.messages import JobOrder, Joined, RootHello
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import Seats
from gemini_lab.wire.tcp import serve

NOWHERE = EtcdAddress(endpoints=("127.0.0.1:1",))
OURS = {"prefix": "gemini_lab/ours", "token": "t" * 32, "identity": "1"}
KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
VALUES = st.text(st.characters(codec="utf-8"), max_size=50)


def store_of(address=NOWHERE, **other) -> SealedStore:
    """Ours, but for what is another one's."""
    told = OURS | other
    return SealedStore(address, told.pop("prefix"), **told)


def refuses(store: SealedStore, key: str, stored: bytes) -> bool:
    try:
        store.sealed.read({key: stored})
    except StoreForgedError as error:
        return repr(store.prefix + key[:80]) in str(error)
    return False


@given(KEYS, VALUES, st.data())
def test_a_value_of_which_any_byte_is_another_is_refused(key, value, data):
    store = store_of()
    stored = store.sealed.written(key, value).encode()
    assert store.sealed.read({key: stored}) == ({} if key == "over" else {key: value})
    at = data.draw(st.integers(0, len(stored) - 1))
    flipped = bytearray(stored)
    flipped[at] ^= data.draw(st.integers(1, 255))
    parts = (bytes(flipped), stored[:at], stored + b"x", value.encode(), b"", b"\xff" * 80)
    assert key == "over" or all(refuses(store, key, part) for part in parts)


@given(KEYS, KEYS, VALUES)
def test_a_value_is_of_one_key_of_one_lab(key, other_key, value):
    store = store_of()
    stored = store.sealed.written(key, value).encode()
    if other_key not in {key, "over"}:
        assert refuses(store, other_key, stored)
    if key not in {"over", LAB_KEY}:
        for other in ({"prefix": "gemini_lab/o"}, {"token": "u" * 32}, {"identity": "2"}):
            assert refuses(store_of(**other), key, stored)


@given(KEYS, VALUES)
def test_no_part_of_a_key_passes_for_one_of_the_value(key, value):
    """A key is what a stranger may choose, and so is where a seal lies."""
    store = store_of()
    proof = store.sealed.written(key, "x" + value)[:SEAL_CHARACTERS]
    if key + "x" != "over":
        assert refuses(store, key + "x", f"{proof}{value}".encode())


def test_the_labs_own_key_tells_its_identity_and_is_read_without_it():
    stored = store_of(identity="").sealed.written(LAB_KEY, "record").encode()
    assert store_of().sealed.read({LAB_KEY: stored}) == {LAB_KEY: "record"}
    assert refuses(store_of(token="u" * 32), LAB_KEY, stored)


# -- a real store, and a stranger who can write to it ----------------------------------------------


@pytest.fixture(scope="module")
def etcd():
    """Where an etcd is; without one it is skipped."""
    try:
        find_etcd()
    except LaunchError as error:
        pytest.skip(str(error))
    with start_etcd() as started:
        yield started.address


@pytest.fixture
def stores(etcd, request):
    """A lab's own view of its part, and that of a stranger who knows all but the token."""
    prefix = prefix_of(request.node.name)
    own, stranger = store_of(etcd, prefix=prefix), EtcdStore(etcd, prefix)
    yield own, stranger
    for store in (own, stranger):
        store.close()


def test_what_a_stranger_writes_is_refused_by_name_and_its_removal_is_enough(stores):
    own, stranger = stores
    patiently(lambda: own.put("job", "ours"))
    for forged in ("theirs", stranger.items()["job"][:-1] + "!", "\0"):
        genuine = stranger.items()["job"]
        stranger.put("job", forged)
        for read in (own.items, lambda: own.get(["job"]), lambda: patiently(own.items)):
            with pytest.raises(
                StoreForgedError, match=r"/job' in the store at .*etcdctl del .*/job'"
            ):
                read()
        assert own.names() == {"job"}
        stranger.put("job", genuine)
        assert own.items() == {"job": "ours"}


def test_a_value_is_replaced_and_deleted_only_by_who_knows_what_is_there(stores):
    """A seal is the same each time: what guards a write is compared as it stands in etcd."""
    own, stranger = stores
    assert own.create("root", "me")
    assert own.put_if({"state": "1"}, guard="root", held="me")
    assert not own.put_if({"state": "2"}, guard="root", held="you")
    stranger.put("root", "me")
    assert not own.put_if({"state": "2"}, guard="root", held="me")
    assert not own.delete_if("root", "me")
    stranger.delete("root")
    assert own.items() == {"state": "1"}


def test_a_stranger_adds_no_key_of_a_lab_by_moving_or_repeating_one(stores):
    own, stranger = stores
    patiently(lambda: own.put("drain/node-0", "1 2"))
    stranger.put("drain/node-1", stranger.items()["drain/node-0"])
    with pytest.raises(StoreForgedError, match="drain/node-1"):
        own.items()


RECORD = LabRecord(identity="1", machines=1, lease_s=2.0, warm=True, threads=None)


def test_a_lab_begins_without_what_an_earlier_one_of_its_name_left(etcd, stores):
    """Its root agents would go on with a run that is over, or wait for what they cannot read."""
    own, _ = stores
    earlier = store_of(etcd, prefix=own.prefix, identity="0")
    patiently(lambda: earlier.put("state", "{}"))
    Announcement(own, RECORD).make()
    assert set(own.items()) == {LAB_KEY}
    earlier.close()


def test_a_lab_of_another_token_is_under_way_and_stays_as_it_is(etcd, stores):
    own, _ = stores
    Announcement(own, RECORD).make()
    other = store_of(etcd, prefix=own.prefix, token="u" * 32)
    with pytest.raises(ConfigError, match="a lab is under way at"):
        Announcement(other, msgspec.structs.replace(RECORD, identity="2")).make()
    name = own.prefix.split("/")[1]
    with pytest.raises(StoreForgedError, match="this lab's token"):
        Access(name=name, etcd=etcd, token="u" * 32).way()
    assert set(own.items()) == {LAB_KEY}
    other.close()


def test_a_node_with_another_token_is_refused_before_it_takes_a_name(etcd, stores):
    own, _ = stores
    Announcement(own, RECORD).make()
    assert find_lab(own, "exp", wait_s=0, tell=print) == RECORD
    other = store_of(etcd, prefix=own.prefix, token="u" * 32)
    with pytest.raises(ConfigError, match="'exp' was started with another token"):
        find_lab(other, "exp", wait_s=600, tell=print)
    assert own.names() == {LAB_KEY}
    other.close()


def test_the_list_of_labs_takes_no_harm_from_what_is_no_lab(etcd, stores):
    own, _ = stores
    Announcement(own, RECORD).make()
    nobodys = EtcdStore(etcd, f"{own.prefix.rstrip('/')}-2")
    patiently(lambda: nobodys.put(LAB_KEY, "x" * 1000))
    names = [lab.name for lab in labs_in(etcd)]
    assert own.prefix.split("/")[1] in names
    assert nobodys.prefix.split("/")[1] not in names
    nobodys.close()


# -- a root agent ----------------------------------------------------------------------------------


class Forged(StoreStandIn):
    """A store whose values are a stranger's for a while."""

    is_forged = True

    async def items(self):
        if self.is_forged:
            raise StoreForgedError("ours/job is not ours")
        return await super().items()


async def test_a_root_agent_begins_nothing_anew_where_it_cannot_believe_the_store():
    store, said = Forged(), []
    _, shell = await shell_on(store, said)
    acting = asyncio.create_task(shell.run())
    while not said:
        await asyncio.sleep(0.01)
    assert shell._root is None
    store.is_forged = False
    while shell._root is None:
        await asyncio.sleep(0.01)
    await end(acting)
    assert said[0] == Note(text="ours/job is not ours; no failure is answered until then")
    assert isinstance(said[1], RootElected)
    assert "state" not in store.keys


async def shell_on(store, said):
    membership = member(store, "node-0")
    await membership.register()
    record = await membership.campaign({})
    return membership, RootShell(
        membership=membership,
        record=record,
        token="secret",
        emit=said.append,
        request_nodes=lambda _wanted, _reason: None,
        machine=AgentMachine(),
    )


async def end(acting) -> None:
    acting.cancel()
    with suppress(asyncio.CancelledError):
        await acting


async def test_a_state_that_was_true_once_is_not_gone_on_with():
    """Nodes have seen a newer epoch: whoever wrote the old state again would have it all undone."""
    store, said = StoreStandIn(), []

    async def welcome(channel):
        assert isinstance(channel.peer, RootHello)
        channel.send(Joined(epoch=5, workers=[], is_ready=True))
        await channel.receive()

    server, port = await serve("127.0.0.1", "secret", welcome)
    store.keys = {"nodes/node-1": f'{{"address": "127.0.0.1:{port}"}}'}
    old, new = (RootState(epoch=epoch).to_text() for epoch in (3, 5))
    store.keys["state"] = old
    _, shell = await shell_in(store, emit=said.append)
    acting = asyncio.create_task(shell.run())
    while len(said) < 2:
        await asyncio.sleep(0.01)
    assert shell._root is None
    assert store.keys["state"] == old
    store.keys["state"] = new
    while shell._root is None:
        await asyncio.sleep(0.01)
    await end(acting)
    server.close()
    (note,) = [event.text for event in said if isinstance(event, Note)]
    assert "is of epoch 3, and nodes have seen epoch 5" in note


@pytest.mark.parametrize(("number", "is_taken"), [(2, False), (3, False), (4, True)])
async def test_an_order_that_was_carried_out_once_is_not_carried_out_again(number, is_taken):
    _, shell = await shell_in(StoreStandIn())
    shell._job_number = 3
    job = Job(script="s.py")
    order = JobOrder(number=number, run=1, job=job, seats=Seats(nodes=1), settings={})
    shell._order = order  # as it was read
    shell._observe_job({}, registered=0, now=1.0)
    assert shell._happenings.empty() != is_taken
