"""Replicas that are made of differences: whatever goes wrong on the way, none is quietly wrong."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import GeminiError, IntegrityError
from gemini_lab.memory.room import Room
from gemini_lab.memory.slab import Slab, SlotSpec, chunk_digest, flip_bit
from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.differences import MOST_DIFFERING, TRIED, Differences, ReplicaTrust
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.scheduled_route import ScheduledRoute
from gemini_lab.transfer.version import OutgoingVersion, Peers, Wire

CHUNK_BYTES = 32
SHARD_BYTES, DIFFERENCE_BYTES = 300, 100
HISTORY = Lineage(run=7, epoch=1)


def difference_of(rank: int, version: int) -> np.ndarray:
    """What made a version of the one before."""
    return np.random.default_rng(100 * version + rank).integers(
        0, 256, DIFFERENCE_BYTES, dtype=np.uint8
    )


def shard_of(rank: int, version: int) -> np.ndarray:
    """All differences so far, added up."""
    shard = np.full(SHARD_BYTES, rank, np.uint8)
    for earlier in range(1, version + 1):
        shard = added(shard, difference_of(rank, earlier))
    return shard


def added(shard: np.ndarray, difference: np.ndarray) -> np.ndarray:
    return shard + np.resize(difference, SHARD_BYTES)


class Adder:
    """Makes a version by adding; `spoil` may write to it, or raise, before it is looked at."""

    is_ready, is_lost = True, False

    def __init__(self, slab, spoil):
        self.room = Room.create(DIFFERENCE_BYTES, chunk_bytes=CHUNK_BYTES)
        self._slab, self._spoil = slab, spoil

    def begin(self, base, into):
        into.data[:] = added(np.asarray(base.data), self.room.data)
        assert base.is_current()
        self._made, self._version = into.data, into.version

    def finish(self):
        self._spoil(self, self._version, self._made)
        chunks = range(0, SHARD_BYTES, CHUNK_BYTES)
        return np.array([chunk_digest(self._made[n : n + CHUNK_BYTES]) for n in chunks], np.uint64)

    def close(self):
        self.room.close()


def nothing(*_):
    """Nothing goes wrong."""


class Rank:
    """One of two ranks that keep each other's replica."""

    def __init__(self, rank, store, *, spoil=nothing, group=CheckpointGroup, full_every=None):
        self.rank, self.moved = rank, []
        self.slab = Slab.create(
            [SlotSpec(r, SHARD_BYTES) for r in (rank, 1 - rank)], chunk_bytes=32
        )
        self.room = Room.create(DIFFERENCE_BYTES, chunk_bytes=CHUNK_BYTES)
        self.maker = Adder(self.slab, spoil)
        self.wire = Wire(group=group(store, rank=rank, world_size=2, timeout_s=30))
        self.peers = Peers(rank=rank, sends_to=(1 - rank,), receives_from={1 - rank: 1})
        self.differences = Differences(
            self.wire,
            self.peers,
            self.slab,
            own=self.room,
            makers={1 - rank: self.maker},
            full_every=full_every,
        )
        self.replicator = Replicator(
            self.wire,
            self.peers,
            self.slab,
            on_moved=self.moved.append,
            differences=self.differences,
        )

    def send(self, version, *, lineage=HISTORY, knows=True):
        self.room.data[:] = difference_of(self.rank, version)
        self.replicator.send(
            OutgoingVersion(
                version=version,
                pieces=[(0, torch.from_numpy(shard_of(self.rank, version)))],
                payload_bytes=SHARD_BYTES,
                lineage=lineage,
                difference=self.room.data if knows else None,
            )
        )
        self.replicator.wait()

    def close(self):
        self.replicator.close()
        self.room.close()
        self.slab.close()

    @property
    def forms(self):
        return [moved.form for moved in self.moved]


@pytest.fixture
def job():
    """Makes jobs of two ranks, each with settings of its own, and closes them."""
    made = []

    def make(*settings):
        store = dist.HashStore()
        with ThreadPoolExecutor(2) as pool:
            both = settings or ({}, {})
            ranks = list(pool.map(lambda n: Rank(n, store, **both[n]), range(2)))
        made.extend(ranks)
        return ranks

    yield make
    for rank in made:
        rank.close()


def send(ranks, versions, **how):
    """Both ranks send these versions; then all copies that are whole are what they should be."""
    with ThreadPoolExecutor(2) as pool:
        for version in versions:
            list(pool.map(lambda rank: rank.send(version, **how), ranks))  # noqa: B023 - waited for
            for rank in ranks:
                require_true(rank, version)


def require_true(rank, version):
    """What is whole in a rank's memory is right, and both shards are there in this version."""
    whole = rank.slab.copies()
    assert {copy.shard for copy in whole if copy.version == version} == {0, 1}
    for copy in whole:
        kept = rank.slab.read(copy.shard, copy.version)
        assert not kept.bad_chunks()
        assert bytes(kept.data) == shard_of(copy.shard, copy.version).tobytes()


def test_after_a_first_full_version_a_third_of_the_bytes_leaves(job):
    ranks = job()
    send(ranks, range(1, 6))
    for rank in ranks:
        assert rank.forms == ["copy", *["gradients"] * 4]
        assert [m.sent_bytes for m in rank.moved] == [SHARD_BYTES, *[DIFFERENCE_BYTES] * 4]


def test_every_so_many_versions_one_is_sent_in_full(job):
    ranks = job({"full_every": 3}, {"full_every": 3})
    send(ranks, range(1, 8))
    assert ranks[0].forms == [*["copy", "gradients", "gradients"] * 2, "copy"]


def test_what_has_no_version_right_before_it_is_sent_in_full(job):
    """One that was left out, one of another history, and one that more than a step has made."""
    ranks = job()
    send(ranks, [1, 2, 4])
    send(ranks, [5], lineage=replace(HISTORY, rewinds=1))
    send(ranks, [6], lineage=replace(HISTORY, rewinds=1), knows=False)
    send(ranks, [7], lineage=replace(HISTORY, rewinds=1))
    assert ranks[0].forms == ["copy", "gradients", "copy", "copy", "copy", "gradients"]


def test_all_send_in_full_where_one_rank_cannot_do_else(job):
    ranks = job()
    send(ranks, [1])
    ranks[1].maker.is_ready = False
    send(ranks, [2])
    assert [rank.forms for rank in ranks] == [["copy", "copy"]] * 2


def test_a_holder_that_is_replaced_gets_a_full_version_first(job):
    """Its memory is empty, and all start anew with it."""
    send(job(), [1, 2, 3])
    again = job()
    send(again, [4, 5])
    assert again[0].forms == ["copy", "gradients"]


def flips_in(*versions):
    """Flips one bit of what is made in these versions."""

    def spoil(_, version, made):
        if version in versions:
            made[17] ^= 4

    return spoil


def test_what_differs_comes_in_full_and_the_next_is_made_again(job):
    ranks = job({}, {"spoil": flips_in(3)})
    send(ranks, range(1, 6))
    differing = [moved.differing for moved in ranks[1].moved]
    assert [bool(one) for one in differing] == [False, False, True, False, False]
    assert "1 of its 10 chunks" in differing[2][0]
    assert [m.sent_bytes for m in ranks[0].moved][2:] == [
        DIFFERENCE_BYTES + SHARD_BYTES,
        *[DIFFERENCE_BYTES] * 2,
    ]
    assert ranks[0].forms == ["copy", *["gradients"] * 4]
    assert not any(moved.ended for rank in ranks for moved in rank.moved)


def test_what_differs_again_and_again_ends_it_on_all_ranks_at_once(job):
    ranks = job({}, {"spoil": flips_in(*range(100))})
    send(ranks, range(1, 8))
    for rank in ranks:
        assert rank.forms == ["copy", *["gradients"] * MOST_DIFFERING, "copy", "copy", "copy"]
        ended = [moved.version for moved in rank.moved if moved.ended]
        assert ended == [1 + MOST_DIFFERING]
        assert not rank.replicator.wants_differences


class Flipping(CheckpointGroup):
    """Flips a bit of a chunk that arrives, when it is told to."""

    is_to_flip = False

    def irecv(self, tensor, source, *, tag=0):
        work = super().irecv(tensor, source, tag=tag)
        if self.is_to_flip and tensor.numel() == CHUNK_BYTES:
            self.is_to_flip = False
            work.wait()
            tensor[5] ^= 1
            return Done()
        return work


class Done:
    """What is there already."""

    def wait(self):
        """Nothing to wait for."""


def test_a_bit_that_flips_in_a_gradient_on_the_wire_is_noticed_and_mended(job):
    ranks = job({}, {"group": Flipping})
    send(ranks, [1, 2])
    ranks[1].wire.group.is_to_flip = True
    send(ranks, [3, 4])
    assert not ranks[1].wire.group.is_to_flip
    assert [sorted(moved.differing) for moved in ranks[1].moved] == [[], [], [0], []]


def test_a_bit_that_flips_in_memory_before_is_noticed_and_mended(job):
    ranks = job()
    send(ranks, [1, 2])
    flip_bit(ranks[1].slab, 0, 2, 5, 1)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: rank.send(3), ranks))
    newest = ranks[1].slab.read(0, 3)
    assert bytes(newest.data) == shard_of(0, 3).tobytes()
    assert [sorted(moved.differing) for moved in ranks[1].moved] == [[], [], [0]]


def test_a_version_before_that_is_gone_costs_a_full_copy(job):
    ranks = job()
    send(ranks, [1, 2])
    ranks[1].slab.discard(0, 2)
    send(ranks, [3, 4])
    assert [sorted(moved.differing) for moved in ranks[1].moved] == [[], [], [0], []]


def test_who_makes_versions_and_is_lost_ends_it_with_the_version_whole(job):
    def lose(maker, version, _):
        if version == 3:
            maker.is_ready, maker.is_lost = False, True
            raise GeminiError("the process that makes it ended (9)")

    ranks = job({}, {"spoil": lose})
    send(ranks, range(1, 6))
    assert ranks[0].forms == ["copy", "gradients", "gradients", "copy", "copy"]
    assert ranks[1].moved[2].differing == {0: "the process that makes it ended (9)"}
    assert "1 of the processes" in ranks[0].moved[2].ended


def test_the_version_before_is_whole_until_the_new_one_is_verified(job):
    """What was made lies there, and nobody finds it: a rank that dies here leaves the old one."""
    seen = []

    def look(maker, *_):
        seen.append({c.version for c in maker._slab.copies() if c.shard == 0})

    ranks = job({}, {"spoil": look})
    send(ranks, [1, 2, 3])
    assert seen == [{1}, {2}]


def test_differences_leave_in_the_spans_of_a_schedule_and_full_versions_beside_it(job):
    ranks = job()
    chunks = [(0, 40), (40, 60)]
    schedule = ChunkSchedule(
        scheme="gemini",
        chunks=tuple(
            Chunk(span=span, replica=1, offset_bytes=offset, size_bytes=size)
            for span, (offset, size) in enumerate(chunks)
        ),
        every_iterations=1,
        buffer_bytes=200,
        sub_buffers=2,
        iteration_s=1.0,
        predicted_iteration_s=1.0,
        fingerprint="",
    )
    for rank in ranks:
        schedules = dict.fromkeys((0, 1), schedule)
        rank.replicator.follow(
            ScheduledRoute(rank.wire, rank.peers, schedules, wait_for_span=lambda _: None)
        )
    send(ranks, [1, 2])
    full, difference = ranks[0].moved
    assert [(one.span, one.sent_bytes) for one in full.sent] == [(None, SHARD_BYTES)]
    assert [(one.span, one.sent_bytes) for one in difference.sent] == [(0, 40), (1, 60)]


def test_ranks_that_send_different_versions_are_told_so(job):
    ranks = job()
    send(ranks, [1])
    met = threading.Barrier(2)

    def go_wrong(rank):
        met.wait(30)
        with pytest.raises(IntegrityError, match="equally often") as caught:
            rank.send(2 + rank.rank)
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        assert all("version" in text for text in pool.map(go_wrong, ranks))


@given(st.lists(st.integers(0, 2), max_size=3 * TRIED))
def test_trust_is_lost_once_and_only_to_as_many_differing_versions_of_the_newest(differing):
    trust = ReplicaTrust()
    for number, count in enumerate(differing):
        newest = differing[max(0, number + 1 - TRIED) : number + 1]
        was_lost = trust.is_lost
        reason = trust.note(differing=count, lost=0)
        assert bool(reason) == (not was_lost and sum(map(bool, newest)) >= MOST_DIFFERING)
        assert trust.is_lost == (was_lost or bool(reason))
