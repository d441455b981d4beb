"""What people want of a run reaches its root agent, whatever owners' clocks say."""

import time
from types import SimpleNamespace

import pytest

from gemini_lab.lab.agents import AgentCluster
from gemini_lab.node.config import DRAIN_KEY, LabRecord
from tests.launch.store_stand_in import StoreStandIn

HOUR_NS = 3600 * 10**9
WORDS = {
    "give_up": lambda lab: lab.give_up_progress(1),
    "rewind": lambda lab: lab.rewind(1, steps=2, skip=True),
    "resize": lambda lab: lab.resize(1, 3),
    f"{DRAIN_KEY}node-2": lambda lab: lab.drain(1, "node-2"),
}


@pytest.mark.parametrize("key", WORDS)
def test_a_word_counts_although_the_clock_of_whoever_gave_the_last_one_was_ahead(key):
    """The root agent takes a number that is not above the last one for a word that it knows."""
    ahead = time.time_ns() + HOUR_NS
    store = StoreStandIn(
        give_up=f"1 {ahead}", rewind=f"1 {ahead} 1 1", resize=f"1 {ahead} 2", job="whatever"
    )
    store.keys[f"{DRAIN_KEY}node-1"] = f"1 {ahead}"
    store.lost_answers = 1  # said again, it is the same word
    lab = AgentCluster(
        store=store,
        record=LabRecord(
            identity="1", machines=2, lease_s=2.0, warm=True, threads=1, detached=None
        ),
        operator=SimpleNamespace(token="secret"),
        loop=None,
        audience=None,
    )
    WORDS[key](lab)
    run, number, *_ = store.keys[key].split()
    assert (run, int(number)) == ("1", ahead + 1)
