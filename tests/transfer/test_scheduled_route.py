"""Chunks of a schedule reach the slab whole, in order, and never more than the sub-buffers hold."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.pipeliner import Chunk, ChunkSchedule
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.link import LinkBucket
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.route import BackgroundRoute
from gemini_lab.transfer.scheduled_route import ScheduledRoute, incoming_chunks
from gemini_lab.transfer.version import OutgoingVersion, Peers, VersionBuffers, Wire

CHUNK_BYTES = 64


def schedule(sizes: list[int], *, replicas: int = 1, sub_buffers: int = 2) -> ChunkSchedule:
    """Chunks of these sizes, each in a span of its own, once for every replica."""
    chunks = [
        Chunk(span=n, replica=replica, offset_bytes=sum(sizes[:n]), size_bytes=size_bytes)
        for replica in range(1, replicas + 1)
        for n, size_bytes in enumerate(sizes)
    ]
    return ChunkSchedule(
        scheme="gemini",
        chunks=tuple(chunks),
        every_iterations=1,
        buffer_bytes=1024,
        sub_buffers=sub_buffers,
        iteration_s=1.0,
        predicted_iteration_s=1.0,
        fingerprint="",
    )


class Rank:
    """One of some ranks in threads of this process; each sends its shard to all others."""

    def __init__(self, store, rank: int, sizes: list[list[int]], *, gate, empty=None) -> None:
        world = len(sizes)
        others = [(rank + n) % world for n in range(1, world)]
        keeps = {source: (rank - source) % world for source in others}
        peers = Peers(rank=rank, sends_to=tuple(others), receives_from=keeps)
        group = CheckpointGroup(store, rank=rank, world_size=world, timeout_s=30)
        self.rank = rank
        self.slab = Slab.create(
            [SlotSpec(shard, sum(sizes[shard])) for shard in (rank, *others)],
            chunk_bytes=CHUNK_BYTES,
        )
        self.spans: list[int | None] = []
        self.moved: list = []
        wire = Wire(group=group, empty=empty)
        self.replicator = Replicator(
            wire, peers, self.slab, on_moved=self.moved.append, mark=lambda: 7 + rank
        )

        def wait_for_span(span):
            gate.wait(10)
            self.spans.append(span)

        schedules = {r: schedule(s, replicas=world - 1) for r, s in enumerate(sizes)}
        self.route = ScheduledRoute(wire, peers, schedules, wait_for_span=wait_for_span)
        self.replicator.follow(self.route)
        torch.manual_seed(rank)
        self.payload = torch.randint(256, (sum(sizes[rank]),), dtype=torch.uint8)

    def move(self, version: int) -> None:
        size_bytes = self.payload.numel()
        self.replicator.send(
            OutgoingVersion(version=version, pieces=[(0, self.payload)], payload_bytes=size_bytes)
        )
        self.replicator.wait()


@pytest.mark.parametrize("staged", [False, True], ids=["straight", "through sub-buffers"])
@pytest.mark.parametrize("sizes", [[[100, 7, 1, 500]] * 2, [[64, 64], [1, 2, 3, 300], [640]]])
def test_every_holder_gets_every_shard_whole(sizes, staged) -> None:
    gate = threading.Event()
    gate.set()
    store = dist.HashStore()
    world = len(sizes)
    with ThreadPoolExecutor(world) as pool:
        empty = (lambda _: None) if staged else None
        ranks = list(
            pool.map(lambda r: Rank(store, r, sizes, gate=gate, empty=empty), range(world))
        )
        for version in (1, 2):
            list(pool.map(Rank.move, ranks, [version] * world))
    for holder in ranks:
        assert holder.replicator.take_marks() == tuple(7 + rank for rank in range(world))
        assert holder.replicator.take_marks() == ()
        for owner in ranks:
            copy = holder.slab.read(owner.rank, 2)
            assert bytes(copy.data) == bytes(owner.payload.numpy())
            assert copy.bad_chunks() == []
        sent = [one for moved in holder.moved for one in moved.sent]
        assert sum(one.sent_bytes for one in sent) == 2 * (world - 1) * sum(sizes[holder.rank])
        waits = [span for moved in holder.moved for span in (0, *(one.span for one in moved.sent))]
        assert holder.spans == waits, "a version's first span is waited for before all else, too"
        holder.replicator.close()
        holder.slab.close()


def test_nothing_leaves_before_its_span_opens_and_the_old_version_stays_whole() -> None:
    gate = threading.Event()
    gate.set()
    store = dist.HashStore()
    sizes = [[100, 100]] * 2
    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(lambda r: Rank(store, r, sizes, gate=gate), range(2)))
        list(pool.map(lambda one: one.move(1), ranks))
        gate.clear()
        for one in ranks:
            one.payload += 1
        moves = [pool.submit(one.move, 2) for one in ranks]
        time.sleep(0.2)
        held = [sorted(copy.version for copy in one.slab.copies()) for one in ranks]
        assert held == [[1, 1], [1, 1]]
        assert all(one.spans == [0, 0, 1] for one in ranks)
        for one in ranks:  # not even copied at home
            assert bytes(one.payload.numpy())[:CHUNK_BYTES] not in bytes(one.slab.memory)
        gate.set()
        for move in moves:
            move.result(30)
    for one in ranks:
        assert sorted(copy.version for copy in one.slab.copies()) == [1, 1, 2, 2]
        one.replicator.close()
        one.slab.close()


def test_a_slow_receiver_holds_its_sender_back_and_never_has_more_than_its_sub_buffers() -> None:
    """Before it empties a sub-buffer it lets the sender go as far ahead as that may."""
    gate = threading.Event()
    gate.set()
    store, sizes, sub_buffers = dist.HashStore(), [[50] * 7] * 2, 2
    ahead: list[int] = []
    ranks: list[Rank] = []

    def left() -> int:
        return len(ranks[0].spans) - 1  # the first span is waited for twice

    def empty(_size_bytes: float) -> None:
        may = min(len(ahead) + sub_buffers, len(sizes[0]))
        give_up_s = time.monotonic() + 30
        while left() < may and time.monotonic() < give_up_s:
            time.sleep(0.001)
        ahead.append(left() - len(ahead))

    busses = [lambda _: None, empty]  # of the sender, and of the receiver
    with ThreadPoolExecutor(2) as pool:
        ranks += pool.map(lambda r: Rank(store, r, sizes, gate=gate, empty=busses[r]), range(2))
        sender, receiver = ranks
        assert len(receiver.route._rooms) == sub_buffers
        list(pool.map(lambda one: one.move(1), ranks))
    assert ahead == [2] * 6 + [1]
    assert bytes(receiver.slab.read(0, 1).data) == bytes(sender.payload.numpy())
    for one in ranks:
        one.replicator.close()
        one.slab.close()


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=2, max_size=4))
def test_a_rank_receives_in_the_one_order_that_all_ranks_share(sizes) -> None:
    world = len(sizes)
    schedules = {rank: schedule(s, replicas=world - 1) for rank, s in enumerate(sizes)}
    total = 0
    for rank in range(world):
        keeps = {(rank - n) % world: n for n in range(1, world)}
        found = incoming_chunks(schedules, Peers(rank=rank, receives_from=keeps))
        positions = [one.position for one in found]
        assert positions == sorted(positions)
        for source in keeps:
            mine = [one.chunk for one in found if one.source == source]
            assert sum(chunk.size_bytes for chunk in mine) == sum(sizes[source])
        total += len(found)
    assert total == sum(len(one.chunks) for one in schedules.values())


@pytest.mark.parametrize("by", ["background", "schedule"])
def test_the_next_chunk_is_copied_while_an_emulated_link_carries_one(tmp_path, by) -> None:
    """Else the link would be idle for as long as each copy takes, which no real one is."""

    class Link(LinkBucket):
        def reserve(self, size_bytes):
            steps.append("reserve")
            return super().reserve(size_bytes)

    class Group(CheckpointGroup):
        def isend(self, tensor, to, *, tag=0):
            steps.append("send")
            return super().isend(tensor, to, tag=tag)

    class Copying:
        """Copies nothing, and notes how many chunks it was asked for."""

        def up_to(self, end_bytes):
            steps.append(min(end_bytes, 3 * CHUNK_BYTES) // CHUNK_BYTES)

    steps: list = []
    store = dist.HashStore()
    specs = [SlotSpec(shard, 3 * CHUNK_BYTES) for shard in range(2)]
    plan = {rank: schedule([CHUNK_BYTES] * 3) for rank in range(2)}

    def exchange(rank: int) -> None:
        group = (Group if rank == 0 else CheckpointGroup)(store, rank=rank, world_size=2)
        peers = Peers(rank=rank, sends_to=(1 - rank,), receives_from={1 - rank: 1})
        copy_up_to = Copying().up_to if rank == 0 else lambda _: None
        with (
            closing(Slab.create(specs, chunk_bytes=CHUNK_BYTES)) as slab,
            Link(tmp_path / "link", bytes_per_s=1e6) as link,
        ):
            wire = Wire(group=group, link=link if rank == 0 else None)
            route = (
                BackgroundRoute(wire, peers)
                if by == "background"
                else ScheduledRoute(wire, peers, plan, wait_for_span=lambda _: None)
            )
            buffers = VersionBuffers(
                own=slab.begin(rank, 1), incoming={1 - rank: slab.begin(1 - rank, 1)}
            )
            route.exchange(copy_up_to, buffers)
            route.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(exchange, range(2)))
    assert steps == [1, "reserve", 2, "send", 2, "reserve", 3, "send", 3, "reserve", 3, "send"]
