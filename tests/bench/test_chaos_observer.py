"""The observer of a run's memory: what it calls a gap, and that it reads real agents' slabs."""

import os
import shutil
import subprocess
import sys

from test_chaos_store import save
from waiting import until

from gemini_lab.memory.slab import CopyInfo
from gemini_lab.shard.lineage import Lineage
from gemini_lab.storage.persistent import PersistentTier
from gemini_lab_bench.chaos.observer import Observer, TierObserver, Wholeness
from gemini_lab_bench.chaos.tier import BreakableTier
from gemini_lab_bench.chaos.victims import MARK


def copy(shard, version, epoch=1):
    return CopyInfo(shard, version, 8, 0, Lineage(run=7, epoch=epoch))


def look(*looks):
    seen = Wholeness(2)
    for at_s, held in enumerate(looks):
        seen.look({holder: set(copies) for holder, copies in held.items()}, at_s)
    return seen


WHOLE = {"a": [copy(0, 3)], "b": [copy(1, 3)]}
HALF = {"a": [copy(0, 3)], "b": []}


def test_no_version_is_missed_before_the_first_was_whole():
    assert look({"a": [], "b": []}, HALF).gaps_s == []


def test_a_version_that_is_gone_though_its_holders_live_is_a_gap_and_one_gap_only():
    seen = look(WHOLE, HALF, HALF, WHOLE, HALF)
    assert seen.gaps_s == [1, 4]
    assert seen.looks == 2


def test_a_version_that_went_with_its_holder_is_none():
    assert look(WHOLE, {"a": [copy(0, 3)]}, HALF).gaps_s == []


def test_shards_of_two_versions_or_of_two_histories_are_none_that_is_whole():
    assert look(WHOLE, {"a": [copy(0, 4)], "b": [copy(1, 3)]}).gaps_s == [1]
    assert look(WHOLE, {"a": [copy(0, 3)], "b": [copy(1, 3, epoch=2)]}).gaps_s == [1]


def test_a_version_may_be_in_many_places_and_beside_others():
    assert look(WHOLE, {"a": [copy(0, 3), copy(1, 3), copy(0, 4)], "b": []}).gaps_s == []


AGENT = """
import os, sys
from gemini_lab.memory.slab import Slab, SlotSpec
os.dup2(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), 2)  # as agents: their name is its file's
slab = Slab.create([SlotSpec(0, 64)], chunk_bytes=64)
def write(version):
    buffer = slab.begin(0, version)
    buffer.seal_chunk(0)
    buffer.commit(64)
write(1)
print("there", flush=True)
sys.stdin.readline()
slab.discard(0, 1)
print("gone", flush=True)
sys.stdin.readline()
"""


def test_what_a_living_agent_lets_go_of_is_seen_from_outside(tmp_path):
    is_agent = "gemini_lab.node.agent"  # in its command line
    command = [sys.executable, "-c", AGENT, str(tmp_path / "node-0.log"), is_agent]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    mark = f"observed-{tmp_path.name}"
    with (
        subprocess.Popen(
            command, env={**os.environ, MARK: mark}, start_new_session=True, **pipes
        ) as agent,
        Observer(mark, 1) as observer,
    ):
        assert agent.stdout.readline() == b"there\n"
        until(lambda: observer.seen.looks)
        assert observer.seen.gaps_s == []
        agent.stdin.write(b"\n")
        agent.stdin.flush()
        assert agent.stdout.readline() == b"gone\n"
        until(lambda: observer.seen.gaps_s)
        agent.stdin.close()


def test_the_newest_whole_version_is_told_whenever_it_is_another_one():
    seen = look(WHOLE, {**WHOLE, "c": [copy(0, 4)]}, {"a": [copy(0, 4)], "b": [copy(1, 4)]}, HALF)
    assert [(one.at_s, one.version) for one in seen.newest] == [(0, 0), (0, 3), (2, 4), (3, 0)]
    both = {"a": [copy(0, 7), copy(0, 3, epoch=2)], "b": [copy(1, 7), copy(1, 3, epoch=2)]}
    newest = look(both).newest[-1]
    assert (newest.version, newest.epoch) == (3, 2)  # 7 was left behind


def test_what_is_whole_in_the_tier_is_seen_past_all_that_is_broken_of_the_way_there(tmp_path):
    with BreakableTier(tmp_path) as tier, TierObserver(tier.data) as observer:
        written = PersistentTier(str(tier.url))
        until(lambda: observer.seen)
        assert observer.newest(set()) == 0
        for version in (8, 16):
            save(written, version)
        until(lambda: observer.newest(set()) == 16)
        tier.go_away()
        assert observer.readable() == {8, 16}
        tier.flip(8 * 100)
        assert (observer.newest(tier.spoilt), observer.readable()) == (8, {8})
        shutil.rmtree(tier.data / "version-000000000016")
        until(lambda: observer.newest(set()) == 8)
    assert [versions for _, versions in observer.seen][-1] == {8}
