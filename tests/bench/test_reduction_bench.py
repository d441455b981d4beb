"""Claims about when the bench of reductions takes a version for whole."""

import pytest
from made import made

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, VersionComplete
from gemini_lab_bench.benches.reduction import whole_times


def ended(at_s, rank, version):
    done = made(Iteration, rank=rank, iteration=version, duration_s=1.0)
    return Entry(at_s=at_s, node=f"node-{rank}", event=done)


def whole(at_s, rank, version, *, duration_s, whole_s):
    told = made(
        VersionComplete,
        rank=rank,
        version=version,
        sent_bytes=9,
        duration_s=duration_s,
        next_version=version + 1,
        whole_s=whole_s,
    )
    return Entry(at_s=at_s, node=f"node-{rank}", event=told)


def test_a_version_is_whole_on_the_last_rank_since_the_last_rank_made_it():
    """Made at 10.0 and 10.2; whole at 10 + 0.5 and at 10.2 + 0.75, and told of at 11.1."""
    log = [ended(10.0, 0, 3), ended(10.2, 1, 3)]
    log += [whole(11.1, 0, 3, duration_s=1.1, whole_s=0.5)]
    log += [whole(11.1, 1, 3, duration_s=0.9, whole_s=0.75)]
    assert whole_times(log) == [pytest.approx(0.75)]


def test_a_version_that_was_not_sent_has_no_time():
    log = [ended(10.0, 0, 3), ended(11.0, 0, 4), whole(11.5, 0, 4, duration_s=0.5, whole_s=0.25)]
    assert whole_times(log) == [0.25]
