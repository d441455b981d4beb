"""A change in the store is seen by whoever follows it, also when the watch fails them."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from gemini_lab.launch.etcd import start_etcd
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.control_store import StoreUnavailableError, patiently
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdClient, EtcdStore
from gemini_lab.node.membership import REREAD_S, SPREAD_S, StoreWatch

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdAddress]:
    with start_etcd() as started:
        yield started.address


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"gemini_lab/{request.node.name}"


@pytest.fixture
def writer(etcd: EtcdAddress, prefix: str) -> Iterator[EtcdStore]:
    """A client that writes the keys of one lab."""
    store = EtcdStore(etcd, prefix)
    yield store
    store.close()


@pytest.fixture
@contextlib.asynccontextmanager
async def watch(etcd: EtcdAddress, prefix: str) -> AsyncIterator[StoreWatch]:
    """A client that follows the keys of one lab."""
    reader, streams = EtcdClient(etcd, prefix), EtcdClient(etcd, prefix)
    try:
        yield StoreWatch(reader, streams, machine=AgentMachine())
    finally:
        await streams.close()
        await reader.close()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Keep the garbage: it holds what was dropped and not ended."""
    gc.disable()
    yield
    gc.enable()


async def due(watch: StoreWatch) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not watch.is_due():
            await asyncio.sleep(0.01)


async def test_a_quiet_store_is_left_alone_and_a_change_rings(writer, watch):
    assert watch.is_due()
    assert (await watch.read(whole=False)).items == {}
    await asyncio.sleep(0.2)
    assert not watch.is_due()
    writer.put("root", "somebody")
    await due(watch)
    assert (await watch.read(whole=False)).items == {"root": "somebody"}
    writer.delete("root")
    await due(watch)
    assert (await watch.read(whole=False)).items == {}


async def test_only_the_root_agent_hears_of_other_nodes(writer, watch):
    await watch.read(whole=False)
    writer.put("nodes/node-1", "{}")
    await asyncio.sleep(0.2)
    assert not watch.is_due()
    assert (await watch.read(whole=True)).items == {"nodes/node-1": "{}"}
    await asyncio.sleep(0.2)
    if watch.is_due():  # the other watch's end rang
        await watch.read(whole=True)
    writer.delete("nodes/node-1")
    await due(watch)
    assert (await watch.read(whole=True)).items == {}


async def test_a_lease_that_runs_out_rings(writer, watch):
    writer.put("root", "mortal", lease=writer.grant(1))
    await watch.read(whole=False)
    await due(watch)
    assert (await watch.read(whole=False)).items == {}


async def test_a_store_that_was_away_is_read_again_and_watched_again(writer, watch):
    writer.put("root", "first")
    await watch.read(whole=False)
    (server,) = (p for p in psutil.Process().children(recursive=True) if p.name() == "etcd")
    os.kill(server.pid, signal.SIGKILL)
    await due(watch)
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                assert (await watch.read(whole=False)).items == {"root": "first"}
                break
            except StoreUnavailableError:
                assert watch.is_due()
                await asyncio.sleep(0.1)
    await asyncio.to_thread(patiently, lambda: writer.put("root", "second"))
    await due(watch)
    assert (await watch.read(whole=False)).items == {"root": "second"}


async def test_a_heartbeat_keeps_a_lease_and_says_when_it_is_gone(etcd):
    store = EtcdStore(etcd, "gemini_lab/heartbeat")
    streams = EtcdClient(etcd, "gemini_lab/heartbeat")
    lease = store.grant(2)
    store.put("nodes/node-0", "{}", lease=lease)
    for _ in range(8):
        assert await streams.keep_alive(lease)
        await asyncio.sleep(0.5)
    assert store.items() == {"nodes/node-0": "{}"}
    store.revoke(lease)
    assert not await streams.keep_alive(lease)
    await streams.close()
    store.close()


async def test_a_heartbeat_goes_on_while_the_watch_is_changed_and_survives_a_closed_connection(
    etcd,
):
    """Who becomes root follows other keys from then on: its lease must not suffer."""
    store = EtcdStore(etcd, "gemini_lab/both")
    streams = EtcdClient(etcd, "gemini_lab/both")
    lease = store.grant(30)
    reader = EtcdClient(etcd, "gemini_lab/both")
    watch = StoreWatch(reader, streams, machine=AgentMachine())

    async def renew() -> int:
        renewed = 0
        for _ in range(60):
            with contextlib.suppress(StoreUnavailableError):  # said, and not fatal
                renewed += await streams.keep_alive(lease)
        return renewed

    beating = asyncio.create_task(renew())
    for number in range(12):
        await watch.read(whole=number % 2 == 0)
    assert await beating == 60
    beating = asyncio.create_task(renew())
    for _ in range(10):
        await asyncio.sleep(0.01)
        await streams.close()
    assert await beating > 0
    await streams.close()
    store.close()


async def test_a_heartbeat_that_was_given_up_leaves_no_answer_to_the_next_one(etcd):
    """Answers have no names: a lease that is gone would pass for one that stands."""
    client = EtcdClient(etcd, "gemini_lab/given-up", timeout_s=LIMIT_S)
    lease = await client.grant(60)
    assert await client.keep_alive(lease)
    (server,) = (p for p in psutil.Process().children(recursive=True) if p.name() == "etcd")
    server.suspend()
    try:
        given_up = asyncio.create_task(client.keep_alive(lease))
        await asyncio.sleep(0.2)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
    finally:
        server.resume()
    assert not await client.keep_alive(lease + 1)
    assert await client.keep_alive(lease)
    await client.close()


async def test_a_call_that_fails_ends_those_beside_it_and_the_next_ones_are_answered(etcd):
    client = EtcdClient(etcd, "gemini_lab/beside", timeout_s=1.0)
    await client.put("key", "kept")
    (server,) = (p for p in psutil.Process().children(recursive=True) if p.name() == "etcd")
    server.suspend()
    try:
        calls = [client.items() for _ in range(10)] + [client.get(["key"])]
        failed = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        server.resume()
    assert {type(one) for one in failed} == {StoreUnavailableError}
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(StoreUnavailableError):
                answered = await asyncio.gather(*(client.items() for _ in range(10)))
                break
    assert answered == [{"key": "kept"}] * 10
    await client.close()


@pytest.mark.usefixtures("uncollected")
async def test_no_connection_of_calls_that_failed_outlasts_close(etcd):
    """The caller keeps the errors and the client."""
    (server,) = (p for p in psutil.Process().children(recursive=True) if p.name() == "etcd")
    port = int(etcd.endpoints[0].rpartition(":")[2])

    def connected() -> list[str]:
        found = psutil.Process().net_connections("tcp")
        return [c.status for c in found if c.raddr and c.raddr.port == port]

    async def until_none() -> None:
        async with asyncio.timeout(LIMIT_S):
            while connected():
                await asyncio.sleep(0.1)

    client = EtcdClient(etcd, "gemini_lab/kept", timeout_s=1.0)
    lease = await client.grant(60)
    assert await client.keep_alive(lease)
    await client.watch(None, lambda **_: None)
    assert connected()
    server.suspend()
    try:
        given_up = asyncio.create_task(client.keep_alive(lease))
        await asyncio.sleep(0.2)
        given_up.cancel()
        calls = [given_up, *(client.items() for _ in range(4)), client.keep_alive(lease)]
        kept = await asyncio.gather(*calls, return_exceptions=True)
        kept += await asyncio.gather(client.items(), return_exceptions=True)
    finally:
        server.resume()
    await until_none()
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(StoreUnavailableError):
                await client.watch(None, lambda **_: None)
                break
    assert connected()
    await client.close()
    await until_none()
    assert len(kept) == 7
    assert all(isinstance(one, StoreUnavailableError) for one in kept[1:])


@pytest.mark.usefixtures("uncollected")
def test_an_etcd_that_comes_after_close_is_not_connected_with():
    """Refused, gRPC by itself tries again a second later."""
    kept = []
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{port.getsockname()[1]}"
        store = EtcdStore(EtcdAddress(endpoints=(endpoint,)), "gemini_lab/later")
        for _ in range(3):
            with pytest.raises(StoreUnavailableError) as raised:
                store.items()
            kept.append(raised.value)
        store.close()
        port.listen()
        port.settimeout(3.0)
        with pytest.raises(TimeoutError):
            port.accept()
    assert len(kept) == 3


def test_a_store_is_asked_from_threads_and_from_inside_a_running_loop(etcd):
    """A notebook's cell runs in one."""
    store = EtcdStore(etcd, "gemini_lab/threads")
    store.put("key", "kept")

    async def cell() -> dict[str, str]:
        return store.items()

    assert asyncio.run(cell()) == {"key": "kept"}
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: store.items(), range(80))) == [{"key": "kept"}] * 80
    store.close()
    assert store.items() == {"key": "kept"}
    store.close()


def test_a_process_that_waits_in_two_ways_has_one_loop_for_grpc(etcd, caplog):
    """Each loop that gRPC knows wakes with every answer, and all but one find nothing to read."""
    blocking, awaited = EtcdStore(etcd, "gemini_lab/ways"), EtcdClient(etcd, "gemini_lab/ways")

    async def ask() -> None:
        await asyncio.gather(*(awaited.items() for _ in range(20)))

    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(lambda: [blocking.items() for _ in range(200)])
        while not asked.done():
            asyncio.run(ask())  # a loop that is closed again
    assert asked.result() == [{}] * 200
    asyncio.run(awaited.close())
    blocking.close()
    assert [record.getMessage() for record in caplog.records] == []


async def test_an_etcd_that_is_not_there_is_named_in_one_line_with_the_reason():
    nowhere = EtcdAddress(endpoints=("127.0.0.1:1",))
    with pytest.raises(StoreUnavailableError) as by_stream:
        await EtcdClient(nowhere, "gemini_lab/none").keep_alive(1)
    with pytest.raises(StoreUnavailableError) as by_call:
        EtcdStore(nowhere, "gemini_lab/none").items()
    for raised in (by_stream, by_call):
        assert str(raised.value) == (
            "etcd at 127.0.0.1:1 did not answer within 1 s (Connection refused); "
            "`etcdctl --endpoints=127.0.0.1:1 endpoint health` asks it by hand"
        )


class DeafStore:
    """A store, and its streams, of which no change is ever told."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.watches = 0
        self.is_away = False
        self.tell: Callable[..., None] | None = None

    async def get(self, keys):
        if self.is_away:
            raise StoreUnavailableError("away")
        return {key: self.kept[key] for key in keys if key in self.kept}

    async def watch(self, keys, tell):
        del keys
        self.watches += 1
        self.tell = tell

    async def close(self) -> None:
        if self.tell is not None:
            self.tell(has_ended=True)


class Clock:
    """Stands still until it is moved."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def news_of(store: DeafStore, clock: Clock) -> StoreWatch:
    return StoreWatch(store, store, machine=AgentMachine(), clock=clock)  # type: ignore[arg-type]


async def test_what_a_watch_missed_is_found_later_and_another_watch_begins():
    store, clock = DeafStore(), Clock()
    watch = news_of(store, clock)
    await watch.read(whole=False)
    store.kept["root"] = "unheard"
    clock.now_s = REREAD_S - 1
    assert not watch.is_due()
    clock.now_s = REREAD_S + 1
    assert watch.is_due()
    assert (await watch.read(whole=False)).items == {"root": "unheard"}
    assert store.watches == 1
    assert watch.is_due()
    await watch.read(whole=False)
    assert store.watches == 2


def test_a_look_that_failed_is_due_again_at_once():
    store = DeafStore()
    watch = news_of(store, Clock())
    store.is_away = True
    with pytest.raises(StoreUnavailableError):
        asyncio.run(watch.read(whole=False))
    assert watch.is_due()


async def test_who_has_time_looks_within_a_while_and_not_all_at_the_same_moment():
    clock = Clock()
    many = [news_of(DeafStore(), clock) for _ in range(200)]
    for watch in many:
        await watch.read(whole=False)
        watch.ring()
    assert all(watch.is_due() for watch in many)
    clock.now_s = SPREAD_S / 2
    due_now = sum(watch.is_due(is_urgent=False) for watch in many)
    assert 0 < due_now < len(many)
    clock.now_s = SPREAD_S
    assert all(watch.is_due(is_urgent=False) for watch in many)
