"""Versions on their way: whenever a rank dies, one version is whole."""

import concurrent.futures
import contextlib
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from json_lines import json_lines

from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.route import BackgroundRoute
from gemini_lab.transfer.version import SAMPLES, Asked, OutgoingVersion, Peers, Wire, moment_of

from .fake_lanes import GlooLanes
from .kill_mover import VERSIONS

STATE = torch.arange(100, dtype=torch.uint8)
VERSION = OutgoingVersion(version=1, pieces=[(0, STATE)], payload_bytes=100)


@pytest.fixture
def alone():
    """What a replicator of a job of one rank is made of: it copies into its own slab alone."""
    group = CheckpointGroup(dist.HashStore(), rank=0, world_size=1)
    slab = Slab.create([SlotSpec(0, 100)], chunk_bytes=32)
    yield Wire(group=group), Peers(rank=0), slab
    slab.close()


def test_another_route_is_refused_while_a_version_is_under_way(alone):
    may_end = threading.Event()
    with Replicator(*alone, on_moved=lambda _: may_end.wait(30)) as replicator:
        replicator.send(VERSION)
        with pytest.raises(RuntimeError, match="wait for it"):
            replicator.follow(BackgroundRoute(*alone[:2]))
        may_end.set()
        replicator.wait()
        replicator.follow(BackgroundRoute(*alone[:2]))


def test_a_route_is_closed_when_it_is_left_and_the_last_one_with_the_mover(alone):
    class Route(BackgroundRoute):
        """Says when it is closed."""

        def close(self):
            closed.append(self)

    closed = []
    routes = [Route(*alone[:2]) for _ in range(2)]
    with Replicator(*alone, on_moved=lambda _: None) as replicator:
        replicator.follow(routes[0])
        replicator.send(VERSION)
        replicator.wait()
        replicator.follow(routes[1])
        assert closed == routes[:1]
    assert closed == routes
    assert bytes(alone[2].read(0, 1).data) == bytes(STATE.numpy())


class Watched(GlooLanes):
    """Lanes that know which threads have entered, as CUDA does."""

    def __init__(self):
        super().__init__(None)
        self.entered, self.gave = {threading.get_ident()}, set()
        self.here = 0

    def enter_thread(self):
        self.entered.add(threading.get_ident())

    def require_here(self, tensors):
        self.here += len([*tensors])

    def copy(self, lane, target, source):
        self.gave.add(threading.get_ident())
        super().copy(lane, target, source)


def test_a_thread_makes_the_device_its_own_before_it_gives_it_work(alone):
    """Else CUDA copies by way of the first GPU, and takes memory there for every worker."""
    wire, peers, slab = alone
    lanes = Watched()
    with Replicator(replace(wire, lanes=lanes), peers, slab, on_moved=lambda _: None) as replicator:
        replicator.send(VERSION)
        replicator.wait()
    assert bytes(slab.read(0, 1).data) == bytes(STATE.numpy())
    assert lanes.gave
    assert lanes.gave <= lanes.entered - {threading.get_ident()}
    assert lanes.here == 1  # its tensors were asked for, once


def test_what_broke_on_the_movers_thread_is_raised_where_training_waits(alone):
    def break_down(_):
        raise OSError("the disk is gone")

    with Replicator(*alone, on_moved=break_down) as replicator:
        replicator.send(VERSION)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a peer may be gone") as caught:
                replicator.wait()
            assert isinstance(caught.value.__cause__, OSError)


WRITES = {
    "a tensor": lambda _, tensor: tensor.add_(1),
    "what it is a view of": lambda base, _: base.add_(1),
    "an optimizer's way": lambda _, tensor: torch._foreach_add_([tensor], 1),
    "past torch": lambda _, tensor: tensor.data.add_(1),
    "nothing": lambda *_: None,
}


@pytest.mark.parametrize("write", WRITES)
def test_a_version_that_is_written_to_on_its_way_is_dropped_and_the_one_before_stays(alone, write):
    class Halting(BackgroundRoute):
        """Begins when it is told to."""

        def wait_for_first(self):
            assert may_begin.wait(30)

    may_begin = threading.Event()
    base = torch.zeros(200, dtype=torch.uint8)
    pieces = [(0, base[:50]), (50, base[100:150])]
    versions = [OutgoingVersion(version=v, pieces=pieces, payload_bytes=100) for v in (1, 2)]
    with Replicator(*alone, on_moved=lambda _: None) as replicator:
        replicator.send(versions[0])
        replicator.wait()
        base.add_(1)  # between two versions
        replicator.follow(Halting(*alone[:2]))
        replicator.send(versions[1])
        WRITES[write](base, pieces[1][1])
        may_begin.set()
        outcome = contextlib.nullcontext() if write == "nothing" else pytest.raises(IntegrityError)
        with outcome:
            replicator.wait()
    whole = {copy.version: bytes(alone[2].read(0, copy.version).data) for copy in alone[2].copies()}
    assert whole[1] == bytes(100)
    assert whole.get(2) == (bytes([1] * 100) if write == "nothing" else None)


@pytest.mark.parametrize("first", range(0, 100_000, 12_500))
def test_weights_that_are_swapped_while_a_version_is_copied_are_noticed_wherever_it_was(
    alone, first
):
    """As averages are for an evaluation, through `.data`; when it is whole they are back."""
    slab = Slab.create([SlotSpec(0, 100_000)], chunk_bytes=4096)
    tensor = torch.zeros(100_000, dtype=torch.uint8)

    class Swapping(BackgroundRoute):
        def exchange(self, copy_up_to, buffers):
            copy_up_to(first)
            tensor.data.fill_(1)
            copy_up_to(first + 12_500)
            tensor.data.fill_(0)
            return super().exchange(copy_up_to, buffers)

    wire, peers, _ = alone
    version = OutgoingVersion(version=1, pieces=[(0, tensor)], payload_bytes=100_000)
    assert len(moment_of(version).places) == SAMPLES + 1
    with Replicator(wire, peers, slab, on_moved=lambda _: None) as replicator:
        replicator.follow(Swapping(wire, peers))
        replicator.send(version)
        with pytest.raises(IntegrityError, match="of 33 samples of the tensors"):
            replicator.wait()
    assert slab.copies() == []
    slab.close()


def test_a_small_model_is_looked_at_beside_a_large_room_for_small_state():
    pieces = [(0, torch.zeros(2000, dtype=torch.uint8)), (1_000_000, torch.zeros(100))]
    version = OutgoingVersion(version=1, pieces=pieces, payload_bytes=1_000_400)
    places = moment_of(version).places
    assert sum(start >= 1_000_000 for start, _ in places) > 1
    assert all(start + size <= 1_000_400 for start, size in places)


@pytest.mark.parametrize(("how", "tried"), [("background", 6 * VERSIONS + 1), ("scheduled", 9)])
def test_a_rank_killed_at_any_chunk_leaves_one_version_of_every_shard_whole(how, tried):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_mover.py")), how],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    stories = list(json_lines(done.stdout.splitlines()))
    assert len(stories) == tried
    for story in stories:
        died = story["die_at"] <= 6 * VERSIONS
        assert story["statuses"][1] == (-9 if died else 0)
        being_moved = (story["die_at"] - 1) // 6 + 1
        whole = set(story["left"]["0"]) & set(story["left"]["1"])
        if being_moved > 1:  # the version before the one that was being moved
            assert max(whole) >= being_moved - 1, story


def test_that_a_rank_was_asked_to_stop_is_known_with_the_next_whole_version(alone):
    asked = []
    with Replicator(
        *alone, on_moved=lambda _: None, asked=lambda: Asked(hold=bool(asked))
    ) as replicator:
        replicator.send(VERSION)
        replicator.wait()
        assert not replicator.is_hold_agreed
        asked.append(True)
        assert not replicator.is_hold_agreed
        replicator.send(replace(VERSION, version=2))
        replicator.wait()
        assert replicator.is_hold_agreed


def versions_in(slab):
    return sorted((copy.shard, copy.version) for copy in slab.copies())


def test_a_withheld_version_exists_only_when_it_is_released_and_is_of_the_moment_it_was_sent(alone):
    slab, state = alone[2], STATE.clone()
    with Replicator(*alone, on_moved=lambda _: None) as replicator:
        replicator.send(VERSION)
        withheld = replace(VERSION, version=2, pieces=[(0, state)], is_withheld=True)
        replicator.send(withheld)
        replicator.wait()
        state.zero_()  # as a script that loads its best weights after its loop
        assert versions_in(slab) == [(0, 1)]
        replicator.release()
        replicator.wait()
        assert versions_in(slab) == [(0, 1), (0, 2)]
        assert bytes(slab.read(0, 2).data) == bytes(STATE.numpy())


@pytest.fixture
def two():
    """Two ranks that keep each other's replica: their replicators and slabs."""
    store, slabs, replicators = dist.HashStore(), [], []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        groups = [*pool.map(lambda rank: CheckpointGroup(store, rank=rank, world_size=2), range(2))]
    for rank, group in enumerate(groups):
        slabs.append(Slab.create([SlotSpec(shard, 100) for shard in range(2)], chunk_bytes=32))
        peers = Peers(rank=rank, sends_to=(1 - rank,), receives_from={1 - rank: 1})
        replicators.append(Replicator(Wire(group=group), peers, slabs[-1], on_moved=lambda _: None))
    yield replicators, slabs
    for slab in slabs:
        slab.close()


def test_of_ranks_that_send_different_versions_none_gets_either(two):
    replicators, slabs = two
    for replicator, number in zip(replicators, (1, 2), strict=True):
        replicator.send(replace(VERSION, version=number))
    for replicator, other in zip(replicators, (2, 1), strict=True):
        with pytest.raises(IntegrityError, match=f"sends version {other} while .* equally often"):
            replicator.wait()
        replicator.close()
    assert [versions_in(slab) for slab in slabs] == [[], []]


def test_a_withheld_version_of_one_rank_waits_for_the_others_word(two):
    """Else the version before, with which the others would go on, could not be chosen any more."""
    replicators, slabs = two
    for is_withheld in (False, True):
        for replicator in replicators:
            version = replace(VERSION, version=1 + is_withheld, is_withheld=is_withheld)
            replicator.send(version)
        for replicator in replicators:
            replicator.wait()
    replicators[0].release()
    time.sleep(0.3)
    assert [versions_in(slab) for slab in slabs] == [[(0, 1), (1, 1)]] * 2
    replicators[1].release()
    for replicator in replicators:
        replicator.wait()
        replicator.close()
    assert [versions_in(slab) for slab in slabs] == [[(0, 1), (0, 2), (1, 1), (1, 2)]] * 2


def test_a_withheld_version_that_is_broken_off_never_exists(alone):
    replicator = Replicator(*alone, on_moved=lambda _: None)
    replicator.send(replace(VERSION, is_withheld=True))
    replicator.wait()
    assert replicator.stop(5.0)
    with pytest.raises(RuntimeError, match="sending the checkpoint failed"):
        replicator.wait()
    replicator.close()
    assert versions_in(alone[2]) == []
