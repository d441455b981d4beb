"""A node's memory: what touches every byte of it is done beside the loop that says "I live"."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import psutil
import pytest
from made import made

from gemini_lab.errors import CapacityError, ConfigError, IntegrityError
from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.node.bulk import IDLE_S, BulkEndedError, BulkProcesses
from gemini_lab.node.bulk_process import do
from gemini_lab.node.memory_manager import MemoryManager, ShardWriter
from gemini_lab.recovery.messages import (
    FreeSlabs,
    KeptCopy,
    ListVersions,
    Message,
    Persist,
    Persisted,
    Refused,
    SaveFailed,
    SlabRequest,
    SlotWanted,
    VersionsListed,
)
from gemini_lab.shard.layout import ShardLayout, lay_out
from gemini_lab.shard.lineage import Lineage
from gemini_lab.storage.persistent import PersistentTier
from gemini_lab.wire.local import LocalChannel

RUN = 7
MADE_IN = Lineage(run=RUN, epoch=1)
CHUNK_BYTES = 4096
BEATS = 20
PATIENCE_S = 60.0


def layout_of(shard: int, elements: int = 5000) -> ShardLayout:
    return made(
        ShardLayout,
        rank=shard,
        world_size=2,
        stage=3,
        optimizer="Adam",
        tensors=lay_out([("weights", "float32", (elements,))], start_bytes=64),
        small_offset_bytes=0,
        small_capacity_bytes=64,
        payload_bytes=64 + 4 * elements,
        weights={"w": (elements,)},
    )


def wanted(*shards: int, elements: int = 5000) -> SlabRequest:
    layout = layout_of(shards[0], elements)
    slots = [SlotWanted(shard, layout.payload_bytes) for shard in shards]
    return SlabRequest(slots=slots, chunk_bytes=CHUNK_BYTES, layout=layout)


def fill(slab: Slab, shard: int, version: int) -> bytes:
    """Write a version as a worker does; returns its bytes."""
    buffer = slab.begin(shard, version, MADE_IN)
    buffer.data[:] = np.random.default_rng((shard, version)).integers(0, 256, buffer.data.size)
    for index in range(buffer.chunk_count(buffer.data.nbytes)):
        buffer.seal_chunk(index)
    buffer.commit(buffer.data.nbytes)
    return bytes(buffer.data)


class OwnBulk(BulkProcesses):
    """The bulk processes of a node of its own, of which nothing may be left."""

    async def __aenter__(self) -> Self:
        await self.warm_up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        assert bulk_processes() == []


@pytest.fixture
def bulk(request: pytest.FixtureRequest) -> OwnBulk:
    return OwnBulk(idle_s=getattr(request, "param", IDLE_S))


@pytest.fixture
def memory(bulk: OwnBulk) -> Iterator[MemoryManager]:
    made = MemoryManager(bulk)
    yield made
    made.close()


def test_memory_that_is_refused_is_let_go_of_with_all_that_came_along():
    """A bulk process lives on: what it holds by mistake is nobody's, and never free again."""
    fds = [os.memfd_create("no slab"), Slab.create([SlotSpec(0, 8)], chunk_bytes=8).fd]
    given = [os.dup(fd) for fd in fds]
    channel, theirs = LocalChannel.pair()
    do(channel, FreeSlabs(), [*given])
    assert isinstance(theirs.receive()[0], Refused)
    for fd in given:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def bulk_processes(parent: int | None = None) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            if is_alive and "gemini_lab.node.bulk_process" in process.cmdline():
                found.append(process)
    return found


async def beats_on_during(work: Coroutine[None, None, object], bulk: BulkProcesses) -> object:
    """Stop whatever works, see the loop beat on, and let it work again; gives what it gave."""
    bulk.signal_all(signal.SIGSTOP)
    task = asyncio.create_task(work)
    for _ in range(BEATS):
        await asyncio.sleep(0.01)
    assert not task.done()
    bulk.signal_all(signal.SIGCONT)
    return await task


def hang_writes(url: str, version: int, file: str) -> None:
    """Have the next write of this shard never return: its file is a pipe that nobody reads."""
    folder = Path(url, f"version-{version:012}")
    folder.mkdir(parents=True)
    os.mkfifo(folder / f"{file}.part")


async def file_of(memory: MemoryManager, version: int, url: str) -> str:
    """The name of the only shard's file, by saving it somewhere."""
    said = await memory.persist(Persist(epoch=1, version=version, url=url), is_full=False)
    return said.records[0].file


# -- the loop is free ------------------------------------------------------------------------------


async def test_the_loop_beats_on_while_slabs_are_made_read_saved_damaged_and_freed(
    tmp_path, bulk, memory
):
    slab = await beats_on_during(memory.slab(0, wanted(0, 1)), bulk)
    payload = fill(slab, 0, version=3)
    found = await beats_on_during(memory.inventory(RUN), bulk)
    assert found.copies == [KeptCopy(0, 3, MADE_IN)]
    order = Persist(epoch=1, version=3, url=str(tmp_path))
    said = await beats_on_during(memory.persist(order, is_full=False), bulk)
    assert (said.version, said.lineage) == (3, MADE_IN)
    [record] = said.records
    assert (tmp_path / "version-000000000003" / record.file).read_bytes().endswith(payload)
    hit = await beats_on_during(memory.flip_bit(shard=None, bit=12345), bulk)
    assert (hit.shard, hit.version) == (0, 3)
    assert [damaged.chunk for damaged in (await memory.inventory(RUN)).damaged] == [
        hit.byte // CHUNK_BYTES
    ]
    await beats_on_during(memory.free(), bulk)
    assert memory.own_shards() == []


async def test_a_replica_is_saved_in_its_lost_owners_place(tmp_path, memory):
    slab = await memory.slab(0, msgspec.structs.replace(wanted(0, 1), replicas=[layout_of(1)]))
    payloads = {shard: fill(slab, shard, version=3) for shard in (0, 1)}
    order = Persist(epoch=2, version=3, url=str(tmp_path), shards=[1, 0], lineage=MADE_IN)
    assert memory.has(order)
    assert not memory.has(msgspec.structs.replace(order, version=4))
    said = await memory.persist(order, is_full=False)
    assert (said.lineage, [one.shard for one in said.records]) == (MADE_IN, [1, 0])
    tier = PersistentTier(str(tmp_path))
    tier.commit(3, said.records, {})
    assert {shard: bytes(tier.read_file(3, shard)[0]) for shard in (0, 1)} == payloads
    assert tier.read_file(3, 1)[1] == layout_of(1)


# -- a store that hangs ----------------------------------------------------------------------------


async def test_an_inventory_is_taken_while_a_save_hangs(tmp_path, bulk, memory):
    fill(await memory.slab(0, wanted(0)), 0, version=3)
    url = str(tmp_path / "hangs")
    hang_writes(url, 3, await file_of(memory, 3, str(tmp_path / "works")))
    save = asyncio.create_task(memory.persist(Persist(epoch=1, version=3, url=url), is_full=False))
    for _ in range(3):
        assert (await memory.inventory(RUN)).copies == [KeptCopy(0, 3, MADE_IN)]
    assert not save.done()
    assert len(bulk_processes()) == 2
    await bulk.close()
    with pytest.raises(BulkEndedError):
        await save


async def test_a_listing_that_hangs_ends_when_nobody_waits_for_it_any_more(tmp_path, bulk):
    folder = tmp_path / "version-000000000001"
    folder.mkdir()
    os.mkfifo(folder / "manifest.json")
    listing = bulk.ask(ListVersions(url=str(tmp_path)), VersionsListed)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(listing, 0.5)
    await until(lambda: bulk_processes() == [])


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


async def test_the_next_version_is_saved_after_one_that_hangs(tmp_path, bulk, memory):
    slab = await memory.slab(0, wanted(0))
    fill(slab, 0, version=3)
    hangs, works = str(tmp_path / "hangs"), str(tmp_path / "works")
    hang_writes(hangs, 3, await file_of(memory, 3, works))
    answers: asyncio.Queue[Message] = asyncio.Queue()
    writer = ShardWriter(
        memory=memory, bulk=bulk, answer=answers.put_nowait, background=asyncio.create_task
    )
    writer.obey(Persist(epoch=1, version=3, url=hangs))
    await until(lambda: len(bulk_processes()) == 1)
    writer.obey(Persist(epoch=1, version=4, url=works))
    assert answers.empty()
    fill(slab, 0, version=4)
    writer.begin_if_whole()
    said = await answers.get()
    assert isinstance(said, Persisted)
    assert said.version == 4
    assert len(bulk_processes()) == 1, "the one that hung is gone"


async def test_a_full_store_is_told_and_later_writes_succeed(tmp_path, bulk, memory):
    fill(await memory.slab(0, wanted(0)), 0, version=3)
    answers: asyncio.Queue[Message] = asyncio.Queue()
    writer = ShardWriter(
        memory=memory, bulk=bulk, answer=answers.put_nowait, background=asyncio.create_task
    )
    writer.is_full = True
    writer.obey(Persist(epoch=1, version=3, url=str(tmp_path)))
    said = await answers.get()
    assert isinstance(said, SaveFailed)
    assert "it is full" in said.reason
    writer.is_full = False
    await memory.slab(1, wanted(1))  # memory is no file on that disk
    fill(await memory.slab(1, wanted(1)), 1, version=3)
    writer.obey(Persist(epoch=1, version=3, url=str(tmp_path), number=1))
    said = await answers.get()
    assert isinstance(said, Persisted)
    assert [record.shard for record in said.records] == [0, 1]


async def test_an_order_that_is_repeated_is_answered_again_and_not_done_again(
    tmp_path, bulk, memory
):
    """The connection to the root agent broke as the answer was sent, or while it is written."""
    fill(await memory.slab(0, wanted(0)), 0, version=3)
    answers: asyncio.Queue[Message] = asyncio.Queue()
    writer = ShardWriter(
        memory=memory, bulk=bulk, answer=answers.put_nowait, background=asyncio.create_task
    )
    order = Persist(epoch=1, version=3, url=str(tmp_path), number=1)
    writer.obey(order)
    writer.obey(order)
    said = await answers.get()
    assert isinstance(said, Persisted)
    assert answers.empty()
    (file,) = tmp_path.glob("version-*/shard-*")
    file.unlink()
    writer.obey(order)
    assert await answers.get() == said
    assert not file.exists()
    writer.obey(msgspec.structs.replace(order, number=2))  # a new try
    assert await answers.get() == said
    assert file.exists()


# -- processes that die ----------------------------------------------------------------------------


async def test_a_standby_answers_an_inventory_at_once_though_its_bulk_process_stands_still(
    bulk, memory
):
    bulk.signal_all(signal.SIGSTOP)
    found = await asyncio.wait_for(memory.inventory(RUN), PATIENCE_S / 2)
    assert (found.copies, found.damaged) == ([], [])


async def test_a_bulk_process_killed_in_an_inventory_costs_no_copy(bulk, memory):
    fill(await memory.slab(0, wanted(0)), 0, version=3)
    bulk.signal_all(signal.SIGSTOP)
    inventory = asyncio.create_task(memory.inventory(RUN))
    await asyncio.sleep(0.1)
    bulk.signal_all(signal.SIGKILL)
    assert (await inventory).copies == [KeptCopy(0, 3, MADE_IN)]


@pytest.mark.parametrize("bulk", [2.0], indirect=True)
async def test_a_bulk_process_that_stands_still_in_an_inventory_is_ended_and_costs_no_copy(
    bulk, memory
):
    fill(await memory.slab(0, wanted(0)), 0, version=4)
    bulk.signal_all(signal.SIGSTOP)
    found = await memory.inventory(RUN)
    assert found.copies == [KeptCopy(0, 4, MADE_IN)]


async def test_a_bulk_process_killed_while_idle_is_replaced_before_anyone_notices(bulk, memory):
    fill(await memory.slab(0, wanted(0)), 0, version=3)
    bulk.signal_all(signal.SIGKILL)
    await until(lambda: bulk_processes() == [])
    assert (await memory.inventory(RUN)).copies == [KeptCopy(0, 3, MADE_IN)]


async def test_a_bulk_process_killed_in_a_save_fails_that_save_alone(tmp_path, bulk, memory):
    fill(await memory.slab(0, wanted(0)), 0, version=3)
    bulk.signal_all(signal.SIGSTOP)
    order = Persist(epoch=1, version=3, url=str(tmp_path))
    save = asyncio.create_task(memory.persist(order, is_full=False))
    await asyncio.sleep(0.1)
    bulk.signal_all(signal.SIGKILL)
    with pytest.raises(BulkEndedError, match=r"ended \(9\)"):
        await save
    assert (await memory.persist(order, is_full=False)).version == 3


def test_nothing_is_left_of_an_owner_that_is_killed_while_its_save_hangs(tmp_path):
    """Its memory has no name: it is gone with the last process that has it."""
    here = Path(__file__).parent
    code = f"""
        import asyncio, sys
        sys.path[:0] = {[str(here), str(here.parent)]!r}
        from test_memory_manager import *

        async def tell():
            async with OwnBulk() as bulk:
                memory = MemoryManager(bulk)
                fill(await memory.slab(0, wanted(0)), 0, version=3)
                hangs = {str(tmp_path / "hangs")!r}
                hang_writes(hangs, 3, await file_of(memory, 3, {str(tmp_path / "works")!r}))
                order = Persist(epoch=1, version=3, url=hangs)
                save = asyncio.create_task(memory.persist(order, is_full=False))
                await memory.inventory(RUN)
                print("hangs", flush=True)
                await save

        asyncio.run(tell())
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout.readline() == "hangs\n"
        left = bulk_processes(owner.pid)
        assert len(left) == 2
        owner.kill()
    _, alive = psutil.wait_procs(left, timeout=20)
    assert alive == []


# -- what the memory is ----------------------------------------------------------------------------


async def test_a_slab_stays_what_it_is_for_the_same_place_and_comes_along_to_another(memory):
    slab = await memory.slab(0, wanted(0, 1))
    own, replica = fill(slab, 0, version=3), fill(slab, 1, version=3)
    assert await memory.slab(0, wanted(0, 1)) is slab
    anew = await memory.slab(0, wanted(1, 2))
    assert bytes(anew.read(1, 3, MADE_IN).data) == replica != own
    assert (await memory.inventory(RUN)).copies == [KeptCopy(1, 3, MADE_IN)]
    assert memory.own_shards() == [1]


async def test_slabs_of_another_number_of_ranks_are_set_aside_until_they_are_let_go(memory):
    memory.turn_to(4)
    old = fill(await memory.slab(0, wanted(0, 1)), 0, version=3)
    memory.turn_to(3)
    fill(await memory.slab(0, wanted(0, 2)), 0, version=4)
    (slab,), layouts = memory.set_aside(4)
    assert bytes(slab.read(0, 3, MADE_IN).data) == old
    assert [layout.rank for layout in layouts] == [0]
    found = await memory.inventory(RUN)
    assert found.copies == [KeptCopy(0, 4, MADE_IN, 3), KeptCopy(0, 3, MADE_IN, 4)]
    await memory.settle(3)
    assert memory.set_aside(4) == ([], [])
    assert (await memory.inventory(RUN)).copies == [KeptCopy(0, 4, MADE_IN, 3)]


async def test_a_run_that_goes_back_to_its_size_finds_the_slabs_that_it_had(memory):
    memory.turn_to(4)
    slab = await memory.slab(0, wanted(0, 1))
    memory.turn_to(3)  # which its script refuses
    await memory.slab(0, wanted(0, 2))
    memory.turn_to(4)
    assert await memory.slab(0, wanted(0, 1)) is slab


async def test_a_node_that_trains_no_more_lets_its_slabs_go_with_the_others(memory):
    memory.turn_to(4)
    fill(await memory.slab(0, wanted(0, 1)), 0, version=3)
    await memory.settle(3)
    assert (await memory.inventory(RUN)).copies == []


async def test_a_node_of_many_workers_is_read_at_once(memory):
    for place in range(16):
        fill(await memory.slab(place, wanted(place, elements=100)), place, version=2)
    found = await memory.inventory(RUN)
    assert sorted(copy.shard for copy in found.copies) == list(range(16))
    assert (await memory.inventory(RUN + 1)).copies == []


async def test_what_is_refused_keeps_its_kind(memory):
    with pytest.raises(CapacityError, match="checkpoint slab"):
        await memory.slab(0, wanted(0, elements=2**44))
    with pytest.raises(IntegrityError, match="no complete copy of shard 5"):
        await memory.flip_bit(shard=5, bit=0)
    await memory.slab(0, wanted(0))
    with pytest.raises(ConfigError, match="changed since"):
        await memory.slab(0, wanted(0, elements=70))
    with pytest.raises(IntegrityError, match="version 1 of shard 0 is not complete"):
        await memory.persist(Persist(epoch=1, version=1, url="/nowhere"), is_full=False)
