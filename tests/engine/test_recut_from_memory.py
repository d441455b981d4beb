"""Shards of N ranks become those of N' ranks from the memory of those who stay, without a lab."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch.distributed as dist

from gemini_lab.engine.reshard_sources import UnusableCopyError
from gemini_lab.engine.restore import RestoreContext, restore
from gemini_lab.memory.slab import Slab, SlotSpec, flip_bit
from gemini_lab.recovery.plan import Cut, PlanPart
from gemini_lab.seats import Seats, in_order
from gemini_lab.settings import Settings
from gemini_lab.shard.codec import encode_framed
from gemini_lab.shard.layout import framed
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.group import CheckpointGroup
from tests.shard.cut_models import SMALL_BYTES, Model, payload_of, values_of

VERSION, MADE, NOW = 7, Lineage(1, 1), Lineage(1, 2)
MODEL = Model(groups=((("a", 997), ("b", 41), ("tied", 64)), (("c", 330),)), frozen=("e",))
ZERO_2 = Model(groups=MODEL.groups, stage=2, reverses=True)
FSDP = Model(groups=MODEL.groups, stage=4)


@dataclass
class Job:
    """Slabs of nodes that trained together, as their agents keep them.

    Attributes:
        smalls: What a rank's new small state was made of.
    """

    model: Model
    seats: Seats
    slabs: dict[str, list[Slab]] = field(default_factory=dict)
    smalls: dict[int, list[bytes]] = field(default_factory=dict)

    @classmethod
    def of(cls, model, nodes, *, per_node=1):
        """So many nodes with a version that is whole and has all replicas."""
        seats = Seats(nodes=nodes, workers_per_node=per_node, members=names(nodes))
        job = cls(model, seats.placed(Settings(replicas=min(2, nodes))))
        layouts, values = model.layouts(job.seats.world_size), values_of(model)
        for rank in job.seats.ranks:
            kept = job.seats.kept_shards(rank)
            slots = [SlotSpec(shard, layouts[shard].payload_bytes) for shard in kept]
            slab = Slab.create(slots, chunk_bytes=256)
            job.slabs.setdefault(job.seats.node_of(rank), []).append(slab)
            for shard in kept:
                small = encode_framed({"rank": shard})
                data = small + payload_of(layouts[shard], values)[len(small) :]
                write(slab, shard, data)
        return job

    @property
    def layouts(self):
        return self.model.layouts(self.seats.world_size)

    def cuts(self, members):
        """Who of these has which shard."""
        return tuple(
            Cut(
                shard=shard,
                holders=tuple(
                    node
                    for node in in_order(members)
                    for slab in self.slabs.get(node, ())
                    if shard in {copy.shard for copy in slab.copies()}
                ),
            )
            for shard in self.seats.ranks
        )

    def resized(self, members):
        """The same with these nodes, and what each rank told of how it came to its shard."""
        per_node = self.seats.workers_per_node
        seats = Seats(nodes=len(members), workers_per_node=per_node, members=tuple(members))
        new = Job(self.model, seats.placed(Settings(replicas=min(2, len(members)))))
        part = PlanPart(version=VERSION, tier="memory", lineage=MADE, cuts=self.cuts(members))
        store = dist.HashStore()

        def one(rank):
            slots = [SlotSpec(rank, new.layouts[rank].payload_bytes)]
            slab = Slab.create(slots, chunk_bytes=256)
            new.slabs.setdefault(seats.node_of(rank), []).append(slab)
            group = CheckpointGroup(store, rank=rank, world_size=seats.world_size, timeout_s=30)

            def recast(layouts, smalls):
                assert [layout.rank for layout in layouts] == list(self.seats.ranks)
                new.smalls[rank] = list(smalls)
                return encode_framed({"rank": rank})

            def old_slabs(ranks):
                assert ranks == self.seats.world_size
                slabs = self.slabs.get(seats.node_of(rank), [])
                kept = {slot.shard for each in slabs for slot in each.slots}
                return slabs, [self.layouts[shard] for shard in kept]

            place = RestoreContext(
                rank=rank,
                seats=new.seats,
                slab=slab,
                group=group,
                persistent_url=None,
                lineage=NOW,
                layout=new.layouts[rank],
                recast=recast,
                old_slabs=old_slabs,
                say=lambda _: None,
            )
            try:
                restored = restore(part, place, lambda data: {"data": bytes(data)})
            except (UnusableCopyError, RuntimeError) as error:
                return error
            return restored

        with ThreadPoolExecutor(seats.world_size) as pool:
            return new, list(pool.map(one, seats.ranks))

    def check(self, told):
        """Every rank has the bytes that it would have if it had always been so many."""
        values = values_of(self.model)
        for rank, (_, loaded) in enumerate(told):
            expected = payload_of(self.layouts[rank], values)
            assert loaded["data"][SMALL_BYTES:] == expected[SMALL_BYTES:]
            assert framed(loaded["data"]) == encode_framed({"rank": rank})


def names(count):
    return tuple(f"node-{number}" for number in range(count))


def write(slab, shard, data):
    buffer = slab.begin(shard, VERSION, MADE)
    buffer.data[: len(data)] = memoryview(data)
    for index in range(buffer.chunk_count(len(data))):
        buffer.seal_chunk(index)
    buffer.commit(len(data))


@pytest.mark.parametrize("model", [MODEL, ZERO_2, FSDP], ids=["ZeRO-3", "ZeRO-2", "FSDP2"])
@pytest.mark.parametrize(
    ("then", "members"),
    [
        (4, ["node-0", "node-2", "node-3"]),  # one was lost
        (4, ["node-0", "node-2"]),  # who have all shards between them
        (3, ["node-0", "node-1", "node-2", "node-9"]),  # one came
        (2, ["node-8", "node-0", "node-1", "node-9", "node-7"]),
    ],
)
def test_new_shards_have_the_bytes_that_so_many_ranks_would_have_had(model, then, members):
    job, told = Job.of(model, then).resized(members)
    job.check(told)
    for receipt, _ in told:
        assert receipt.ranks_then == then
        assert receipt.read_bytes == receipt.local_bytes + receipt.peer_bytes > 0


def test_several_ranks_on_a_node_find_what_lies_in_one_anothers_memory():
    job, told = Job.of(MODEL, 3, per_node=2).resized(["node-0", "node-2"])
    job.check(told)


def test_what_lies_in_the_own_nodes_memory_goes_over_no_network():
    _, told = Job.of(MODEL, 2).resized(["node-0"])  # its slab has both shards
    ((receipt, _),) = told
    assert (receipt.tier, receipt.holder) == ("local", "node-0")
    assert (receipt.peer_bytes, receipt.local_bytes > 0) == (0, True)


def test_every_rank_is_told_the_small_states_of_all_there_were():
    job, _ = Job.of(MODEL, 4).resized(["node-0", "node-2", "node-3"])
    assert list(job.smalls.values()) == [[encode_framed({"rank": r}) for r in range(4)]] * 3


def test_a_copy_with_a_wrong_bit_is_named_and_nothing_is_made_of_it():
    job = Job.of(MODEL, 2)
    (slab,) = job.slabs["node-0"]
    flip_bit(slab, 1, VERSION, byte_offset=600, bit=3)
    new, (error,) = job.resized(["node-0"])
    assert isinstance(error, UnusableCopyError)
    assert (error.shard, error.version, error.holder) == (1, VERSION, "node-0")
    assert new.slabs["node-0"][0].copies() == []
