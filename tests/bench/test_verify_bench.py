"""What the bench of wrong sums makes of its tries."""

import itertools

import pytest
from made import made

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, WrongSums
from gemini_lab_bench.benches.verify import Try, longer_in, tries_rows


def found(*nodes):
    return made(WrongSums, iteration=5, ranks=(1,), nodes=nodes, replays=2, version=4)


def test_a_try_counts_where_its_node_alone_was_named():
    tries = [
        Try(where="gradient", node="node-1", found=found("node-1")),
        Try(where="gradient", node="node-1", found=found("node-1", "node-2")),
        Try(where="optimizer", node="node-1", found=None),
    ]
    rows = {row.name: row.values for row in tries_rows(tries, clean=7)}
    assert rows["bit in gradient: of 2, the node was named"] == (1,)
    assert rows["bit in optimizer: of 1, the node was named"] == (0,)
    assert rows["bits without any effect on sums"] == (1,)
    assert rows["right machines that were accused"] == (1,)
    assert rows["replays until it was"] == (2, 2)


def test_a_verified_iteration_is_compared_with_those_beside_it():
    """Iteration 5 takes 1.5 s longer before it ends, its update 0.5 s more in the next one."""
    lasted = [1.0] * 5 + [2.0] * 3
    lasted[4] += 1.5
    lasted[5] += 0.5
    ended = itertools.accumulate(lasted)
    log = [
        Entry(
            at_s=at_s,
            node="node-0",
            event=made(Iteration, iteration=number),
        )
        for number, at_s in enumerate(ended, start=1)
    ]
    (longer,) = longer_in(log)
    assert longer == pytest.approx(2.0)
