"""Chunks by way of a device's memory: whole, in one order on all ranks, and never stuck."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule
from gemini_lab.transfer.device_route import UPDATE, DeviceRoute, parts, rounds
from gemini_lab.transfer.local_copy import LocalCopy
from gemini_lab.transfer.version import OutgoingVersion, Peers, VersionBuffers

from .fake_lanes import Devices, FakeLanes, NotYetError

CALLS = 4
"""Collectives of an iteration; idle span n comes after n of them."""


def schedule(chunks: list[tuple[int | None, int]], *, replicas: int, parts: int) -> ChunkSchedule:
    """Chunks of (span, bytes), in order, once for every replica."""
    found = []
    for replica in range(1, replicas + 1):
        at = 0
        for span, size_bytes in chunks:
            found.append(Chunk(span=span, replica=replica, offset_bytes=at, size_bytes=size_bytes))
            at += size_bytes
    return ChunkSchedule(
        scheme="gemini",
        chunks=tuple(found),
        every_iterations=1,
        buffer_bytes=1024,
        sub_buffers=parts,
        iteration_s=1.0,
        predicted_iteration_s=1.0,
        fingerprint="",
    )


class Rank:
    """One rank's training, as a generator that stops wherever another rank may go on."""

    def __init__(self, devices: Devices, rank: int, schedules: dict[int, ChunkSchedule]) -> None:
        world = len(schedules)
        others = [(rank + n) % world for n in range(1, world)]
        self.rank, self.devices = rank, devices
        self.lanes = FakeLanes(devices, rank)
        self.sizes = {one: s.sent_bytes // (world - 1) for one, s in schedules.items()}
        self.slab = Slab.create(
            [SlotSpec(shard, self.sizes[shard]) for shard in (rank, *others)], chunk_bytes=64
        )
        self.others = others
        peers = Peers(
            rank=rank,
            sends_to=tuple(others),
            receives_from={source: (rank - source) % world for source in others},
        )
        self.route = DeviceRoute(self.lanes, peers, schedules, spans_after=range(CALLS + 1))
        self.state = torch.zeros(self.sizes[rank], dtype=torch.uint8)

    def train(self, versions: int, *, surprise: bool):
        """Iterations that each change the state after its last version has left."""
        pieces = [(0, self.state[:5]), (5, self.state[5:])]
        for number in range(1, versions + 1):
            self.lanes.compute(lambda v=number: self.state.copy_(payload(self, v)))
            buffers = VersionBuffers(
                own=self.slab.begin(self.rank, number),
                incoming={shard: self.slab.begin(shard, number) for shard in self.others},
            )
            size_bytes = self.sizes[self.rank]
            version = OutgoingVersion(version=number, pieces=pieces, payload_bytes=size_bytes)
            self.lanes.follow("local", self.lanes.mark("training"))
            self.route.begin(version, buffers)
            for call in range(1, CALLS + 1 + 2 * surprise):
                yield
                self.route.before_call()
                is_async = self.devices.draw.random() < 0.5
                work = self.lanes.collective(call, is_async=is_async)
                self.route.after_call(call, work)
                self.lanes.compute(lambda: None)
            self.route.before_update()
            local = LocalCopy(version, buffers.own, lanes=self.lanes)
            local.begin()
            copied = self.lanes.mark("local")
            while not self.devices.reached(copied):  # else the threads that seal it would wait
                yield
            while True:
                try:
                    self.sent = self.route.exchange(local.up_to, buffers)
                    break
                except NotYetError:
                    yield
            local.close()
            for shard, buffer in {self.rank: buffers.own, **buffers.incoming}.items():
                expected = payload(self, number, shard)
                assert bytes(buffer.data[: len(expected)]) == bytes(expected.numpy())
            buffers.own.commit(size_bytes)
            assert self.slab.read(self.rank, number).bad_chunks() == []


def payload(one: Rank, version: int, shard: int | None = None) -> torch.Tensor:
    """The bytes of a shard at a version."""
    shard = one.rank if shard is None else shard
    return (torch.arange(one.sizes[shard]) * 7 + 31 * version + 101 * shard).to(torch.uint8)


def run(ranks: list[Rank], devices: Devices, *, versions: int, surprise: bool = False) -> None:
    """Threads and lanes of all ranks, in a random order, until all have ended."""
    hosts = [one.train(versions, surprise=surprise) for one in ranks]
    idle = 0
    while hosts:
        if devices.draw.random() < 0.5:
            host = devices.draw.choice(hosts)
            if next(host, "ended") == "ended":
                hosts.remove(host)
        idle = 0 if devices.step() else idle + 1
        assert idle < 2000, "no rank can go on"


def place(one: tuple[int | None, int]) -> int:
    """Where in the iteration a chunk of this span belongs."""
    return UPDATE if one[0] is None else one[0]


SPANS = st.one_of(st.none(), st.integers(0, CALLS))
CHUNKS = st.lists(st.tuples(SPANS, st.integers(1, 40)), min_size=1, max_size=8).map(
    lambda found: sorted(found, key=place)
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(CHUNKS, min_size=2, max_size=3), st.integers(1, 3), st.booleans(), st.integers(0, 999)
)
def test_every_shard_arrives_whole_whatever_order_the_lanes_work_in(
    chunks, sub_buffers, surprise, seed
) -> None:
    """Also where the iteration calls more collectives than were profiled."""
    world = len(chunks)
    schedules = {
        rank: schedule(some, replicas=world - 1, parts=sub_buffers)
        for rank, some in enumerate(chunks)
    }
    devices = Devices(world, seed)
    ranks = [Rank(devices, rank, schedules) for rank in range(world)]
    run(ranks, devices, versions=3, surprise=surprise)
    for one in ranks:
        largest = max(c.size_bytes for other in one.others for c in schedules[other].chunks)
        assert len(one.lanes.rooms) - 1 <= max(sub_buffers, world - 1)
        assert all(room.numel() <= largest for room in one.lanes.rooms[1:])
        assert sum(sent.sent_bytes for sent in one.sent) == schedules[one.rank].sent_bytes
        one.slab.close()


def test_a_route_that_does_not_wait_for_training_is_caught() -> None:
    """The lanes of these tests do notice two communicators at work on one device."""
    schedules = {rank: schedule([(2, 8)], replicas=1, parts=1) for rank in (0, 1)}

    def is_caught(seed: int) -> bool:
        devices = Devices(2, seed)
        ranks = [Rank(devices, rank, schedules) for rank in (0, 1)]
        for one in ranks:
            one.lanes.join = lambda *_: None
        try:
            run(ranks, devices, versions=1)
        except AssertionError as error:
            return "two communicators" in str(error)
        return False

    assert any(is_caught(seed) for seed in range(50))


def test_sender_and_receiver_find_each_other_in_the_same_round() -> None:
    schedules = {
        0: schedule([(0, 4), (0, 4), (None, 2)], replicas=2, parts=2),
        1: schedule([(1, 9)], replicas=2, parts=2),
        2: schedule([(0, 3)], replicas=2, parts=2),
    }
    found = {}
    for rank in schedules:
        peers = Peers(
            rank=rank,
            sends_to=((rank + 1) % 3, (rank + 2) % 3),
            receives_from={(rank - 1) % 3: 1, (rank - 2) % 3: 2},
        )
        found[rank] = rounds(schedules, peers, [0, 1])
    sent = [(r, peer, chunk) for r, some in found.items() for o in some for chunk, peer in o.sends]
    taken = [(s, r, chunk) for r, some in found.items() for o in some for chunk, s in o.receives]
    assert sorted(sent, key=repr) == sorted(taken, key=repr)
    assert [one.after for one in found[0]] == sorted(one.after for one in found[0])
    assert found[0][-1].after == UPDATE


@pytest.mark.parametrize(("start", "size"), [(0, 4), (3, 9), (9, 6), (0, 15)])
def test_a_chunk_takes_its_bytes_from_the_tensors_that_have_them(start, size) -> None:
    whole = torch.arange(15, dtype=torch.uint8)
    pieces = [(0, whole[:5]), (5, whole[5:6]), (6, whole[6:])]
    out = torch.zeros(size, dtype=torch.uint8)
    chunk = Chunk(span=None, replica=1, offset_bytes=start, size_bytes=size)
    for low, high, part in parts(pieces, chunk):
        out[low:high] = part
    assert out.tolist() == list(range(start, start + size))
