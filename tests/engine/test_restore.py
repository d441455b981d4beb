"""A recovery plan carried out by all ranks, without a lab: from memory, peers or storage."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NoReturn

import pytest
import torch.distributed as dist
from made import made

from gemini_lab.engine.reshard_sources import UnusableCopyError
from gemini_lab.engine.restore import RestoreContext, RestoreReceipt, restore
from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import Slab, SlotSpec, flip_bit
from gemini_lab.recovery.plan import Copy, RecoveryPlan, plan_recovery
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings
from gemini_lab.shard.layout import ShardLayout, TensorSpec
from gemini_lab.shard.lineage import NO_LINEAGE, Lineage
from gemini_lab.storage import persistent_tier
from gemini_lab.transfer.group import CheckpointGroup

CHUNK_BYTES = 64
SIZE_BYTES = 200
NODES = ("node-0", "node-1", "node-2", "node-3")
SEATS = Seats(nodes=4, standbys=1, members=NODES).placed(Settings(replicas=2))


def payload(shard: int, version: int) -> bytes:
    return bytes((7 * n + 31 * version + 101 * shard) % 256 for n in range(SIZE_BYTES))


def write(slab: Slab, shard: int, version: int, lineage: Lineage = NO_LINEAGE) -> None:
    buffer = slab.begin(shard, version, lineage)
    buffer.data[:SIZE_BYTES] = memoryview(payload(shard, version))
    for index in range(buffer.chunk_count(SIZE_BYTES)):
        buffer.seal_chunk(index)
    buffer.commit(SIZE_BYTES)


def none_of(*_: object) -> NoReturn:
    """Stands for what is of other numbers of ranks: here all versions are of this one."""
    raise AssertionError


class Ranks:
    """The ranks of a job, one a node, in threads of this process; those on `lost` start empty."""

    def __init__(
        self, tmp_path, *, versions, lost=(), newest_on=(), patience_s=30, asks_again=False
    ) -> None:
        self.url = str(tmp_path)
        members = iter(["node-4", "node-5"])
        self.seats = SEATS.seated([next(members) if n in lost else n for n in NODES])
        store = dist.HashStore()
        self.slabs = []
        self.said: list[str] = []
        for rank in self.seats.ranks:
            slots = [SlotSpec(shard, SIZE_BYTES) for shard in self.seats.kept_shards(rank)]
            slab = Slab.create(slots, chunk_bytes=CHUNK_BYTES)
            self.slabs.append(slab)
            if NODES[rank] in lost:
                continue
            for version in (*versions, *([max(versions) + 1] if rank in newest_on else [])):
                for shard in self.seats.kept_shards(rank):
                    write(slab, shard, version)

        def place(rank: int) -> RestoreContext:
            group = CheckpointGroup(store, rank=rank, world_size=4, timeout_s=patience_s)
            return RestoreContext(
                rank=rank,
                seats=self.seats,
                slab=self.slabs[rank],
                group=group,
                persistent_url=self.url,
                lineage=NO_LINEAGE,
                layout=layout(rank),
                recast=none_of,
                old_slabs=none_of,
                say=self.said.append,
                pauses_s=(0.0, 2.0) if asks_again else (),
            )

        self.places = self.together(place)
        self.loaded: dict[int, bytes] = {}

    @property
    def plan(self) -> RecoveryPlan:
        """What the root agent would plan."""
        return plan_recovery(
            placement=self.seats.holders,
            members=self.seats.members,
            copies=[
                Copy(
                    shard=copy.shard,
                    version=copy.version,
                    node=self.seats.node_of(rank),
                    lineage=copy.lineage,
                )
                for rank, slab in enumerate(self.slabs)
                for copy in slab.copies()
            ],
            living=[str(node) for node in self.seats.members],
        )

    def together(self, work) -> list:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(work, range(4)))

    def restore(self, plan: RecoveryPlan) -> list:
        """What each rank got: a receipt, `None`, or the error that ended it."""

        def one(rank: int):
            def load(data: memoryview) -> dict:
                self.loaded[rank] = bytes(data)
                return {"last": rank}

            try:
                part = plan.parts()[self.places[rank].node]
                restored = restore(part, self.places[rank], load)
            except (UnusableCopyError, RuntimeError) as error:
                return error
            if restored is None:
                return None
            receipt, small = restored
            assert small == {"last": rank}
            return receipt

        return self.together(one)

    def held(self, rank: int) -> set[tuple[int, int]]:
        return {(copy.shard, copy.version) for copy in self.slabs[rank].copies()}


@pytest.fixture
def ranks(tmp_path):
    made = []

    def make(**how) -> Ranks:
        made.append(Ranks(tmp_path, **how))
        return made[-1]

    yield make
    for one in made:
        for slab in one.slabs:
            slab.close()


def test_every_rank_loads_its_own_copy_and_forgets_what_is_computed_again(ranks) -> None:
    job = ranks(versions=[3], newest_on=[1])
    plan = replace(job.plan, version=3)
    receipts = job.restore(plan)
    assert [(one.tier, one.holder) for one in receipts] == [("local", node) for node in NODES]
    assert all(one.retrieve_s == 0.0 and one.size_bytes == SIZE_BYTES for one in receipts)
    for rank in range(4):
        assert job.loaded[rank] == payload(rank, 3)
        assert {version for _, version in job.held(rank)} == {3}


def test_a_copy_of_the_same_version_but_another_history_is_forgotten(ranks) -> None:
    """As a node has it that was cut off while the others computed that version again."""
    left, now = Lineage(epoch=1), Lineage(epoch=2)
    job = ranks(versions=[2])
    for rank, slab in enumerate(job.slabs):
        for shard in job.seats.kept_shards(rank):
            write(slab, shard, 3, left if rank == 1 else now)
    receipts = job.restore(job.plan)
    assert [one.tier for one in receipts] == ["local", "peer", "local", "local"]
    assert job.loaded[1] == payload(1, 3)
    newest = [copy for copy in job.slabs[1].copies() if copy.version == 3]
    assert {copy.lineage for copy in newest} == {now}


def test_a_standby_gets_its_shard_and_the_replicas_it_keeps_from_peers(ranks) -> None:
    job = ranks(versions=[3], lost=["node-2"])
    receipts = job.restore(job.plan)
    assert [one.tier for one in receipts] == ["local", "local", "peer", "local"]
    assert receipts[2].holder == "node-3"
    assert receipts[2].retrieve_s > 0
    assert job.loaded[2] == payload(2, 3)
    assert job.held(2) == {(shard, 3) for shard in job.seats.kept_shards(2)}


def test_without_memory_every_rank_reads_the_persistent_tier(ranks, tmp_path) -> None:
    job = ranks(versions=[3], lost=["node-2", "node-3"])
    store(tmp_path, version=2)
    plan = replace(job.plan, version=2, tier="persistent", transfers=())
    for one in job.restore(plan):
        assert isinstance(one, RestoreReceipt)
        assert (one.tier, one.holder) == ("persistent", job.url)
    for rank in range(4):
        assert job.loaded[rank] == payload(rank, 2)
        assert (rank, 2) in job.held(rank)
        assert max(version for _, version in job.held(rank)) == 2


def store(folder, *, version: int) -> None:
    """Write that version of all shards to the persistent tier."""
    tier = persistent_tier(str(folder))
    records = [
        tier.write_shard(version, rank, payload(rank, version), layout(rank)) for rank in range(4)
    ]
    tier.commit(version, records, {})


def layout(rank: int) -> ShardLayout:
    numel = (SIZE_BYTES - 64) // 4
    tensor = TensorSpec(
        name="w", dtype="float32", shape=(numel,), offset_bytes=64, size_bytes=4 * numel
    )
    return made(
        ShardLayout,
        rank=rank,
        world_size=4,
        stage=3,
        optimizer="Adam",
        tensors=(tensor,),
        small_offset_bytes=0,
        small_capacity_bytes=64,
        payload_bytes=SIZE_BYTES,
    )


def test_when_training_starts_anew_nothing_is_loaded_and_nothing_kept(ranks) -> None:
    job = ranks(versions=[3])
    assert job.restore(replace(job.plan, version=None, tier="start")) == [None] * 4
    assert job.loaded == {}
    assert all(job.held(rank) == set() for rank in range(4))


def test_an_own_copy_that_was_damaged_is_reported_with_its_node(ranks) -> None:
    job = ranks(versions=[3])
    plan = job.plan
    flip_bit(job.slabs[1], 1, 3, 100, 4)
    results = job.restore(plan)
    error = results[1]
    assert isinstance(error, UnusableCopyError)
    assert (error.shard, error.version, error.holder) == (1, 3, "node-1")
    assert "1 chunks differ" in error.reason
    assert 1 not in job.loaded
    assert sum(isinstance(one, RestoreReceipt) for one in results) == 3


def test_a_peers_copy_that_was_damaged_is_reported_with_the_peers_node(ranks) -> None:
    """The peer waits for the rest of the plan, until its patience ends or the root fences it."""
    job = ranks(versions=[3], lost=["node-2"], patience_s=2)
    plan = job.plan
    flip_bit(job.slabs[3], 2, 3, 0, 0)
    _, _, error, peer = job.restore(plan)
    assert "Timed out" in str(peer)
    assert isinstance(error, UnusableCopyError)
    assert (error.shard, error.version, error.holder) == (2, 3, "node-3")
    assert (2, 3) not in job.held(2)


def test_a_version_that_the_persistent_tier_lacks_is_reported_without_a_node(ranks) -> None:
    job = ranks(versions=[3])
    for error in job.restore(replace(job.plan, version=2, tier="persistent", transfers=())):
        assert isinstance(error, UnusableCopyError)
        assert (error.version, error.holder) == (2, None)
        assert error.is_unread
        assert "its manifest is not there" in error.reason


def test_damage_in_the_persistent_tier_is_told_from_what_it_does_not_return(ranks, tmp_path):
    job = ranks(versions=[3], lost=["node-2", "node-3"])
    store(tmp_path, version=2)
    first, second = (next(tmp_path.glob(f"version-*/shard-000{rank}-*")) for rank in (0, 1))
    first.write_bytes(first.read_bytes()[:-1] + b"?")
    second.write_bytes(second.read_bytes()[:-1])
    errors = job.restore(replace(job.plan, version=2, tier="persistent", transfers=()))
    assert [(error.holder, error.is_unread) for error in errors[:2]] == [
        (None, False),
        (None, True),
    ]
    assert all(isinstance(one, RestoreReceipt) for one in errors[2:])


def test_a_store_that_returns_nothing_for_a_moment_is_asked_again_aloud(ranks, tmp_path):
    job = ranks(versions=[3], lost=["node-2", "node-3"], asks_again=True)
    store(tmp_path, version=2)
    file = next(tmp_path.glob("version-*/shard-0001-*"))
    away = file.rename(tmp_path / "away")
    threading.Timer(1.0, away.rename, [file]).start()
    restored = job.restore(replace(job.plan, version=2, tier="persistent", transfers=()))
    assert all(isinstance(one, RestoreReceipt) for one in restored)
    (said,) = job.said
    assert said.startswith("rank 1: of shard 1 of version 2")
    assert said.endswith("asked again in 2 s")
    assert job.loaded[1] == payload(1, 2)


def test_a_copy_that_the_engine_cannot_read_is_reported(ranks) -> None:
    job = ranks(versions=[3])

    def load(_: memoryview) -> dict:
        raise IntegrityError("the small state cannot be read")

    with pytest.raises(UnusableCopyError, match="small state") as caught:
        restore(job.plan.parts()["node-0"], job.places[0], load)
    assert caught.value.holder == "node-0"
