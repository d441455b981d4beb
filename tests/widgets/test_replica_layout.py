"""Where nodes and copies stand in the replica map."""

import itertools
import math

import pytest
from gemini_lab_widgets.replica_layout import (
    ring_arrow,
    ring_label,
    ring_places,
    shown_shards,
    together,
)

from gemini_lab.placement import plan_placement
from gemini_lab.report.tables.replica_map import CopyRow, ReplicaTable
from gemini_lab.report.tables.status import NodeRow


def table(nodes, *, replicas=2, racks=0, lost=()):
    """All copies are whole but those on lost positions."""
    placement = plan_placement(nodes=nodes, replicas=replicas)
    copies = [
        CopyRow(
            shard=shard,
            position=holder,
            holder=f"node-{holder}",
            version=7,
            state="lost" if holder in lost else "whole",
            is_writing=False,
        )
        for shard, kept in enumerate(placement.holders)
        for holder in kept
    ]
    seated = [
        NodeRow(
            name=f"node-{position}",
            position=position,
            health="training",
            rack=f"rack-{position % racks}" if racks else "",
        )
        for position in range(nodes)
    ]
    return ReplicaTable(
        strategy=placement.strategy,
        replicas=replicas,
        groups=placement.groups,
        nodes=tuple(seated),
        standbys=(),
        copies=tuple(copies),
        what_if=(),
        survival=(),
        version=7,
        persistent_version=None,
    )


def test_the_shards_of_a_group_stand_together_and_each_stands_once():
    told = table(101, replicas=3)
    placed = together(told, range(101))
    assert sorted(shard for group in placed for shard in group) == [*range(101)]
    assert {tuple(group) for group in told.groups} <= {tuple(group) for group in placed}
    assert together(told, [7]) == [[7]]


def test_arrows_end_at_the_rim_of_their_holder():
    placement = plan_placement(nodes=9, replicas=3)
    where = ring_places(placement.groups, 9)
    ends = [
        ring_arrow(where[shard], where[holder]).head
        for shard, kept in enumerate(placement.holders)
        for holder in kept
        if holder != shard
    ]
    assert len({*ends}) == len(ends) == 18
    assert all(0.8 < math.hypot(x, y) < 1.01 for x, y in ends)


@pytest.mark.parametrize(("nodes", "left_out"), [(1000, 0), (1500, 167)])
def test_beyond_four_thousand_copies_only_whole_shards_are_left_out(nodes, left_out):
    by_shard, count = shown_shards(table(nodes, replicas=3, lost={nodes - 1}))
    assert count == left_out
    assert nodes - 1 in by_shard


TEXT = 0.1
"""The height of a name, in the ring's own lengths."""


@pytest.mark.parametrize("nodes", [17, 24, 32])
def test_names_of_neighbours_do_not_cover_each_other_however_long_they_are(nodes):
    pairs = [range(first, min(first + 2, nodes)) for first in range(0, nodes, 2)]
    where = ring_places(pairs, nodes)
    for one, other in itertools.pairwise(
        ring_label(where[position], nodes) for position in range(nodes)
    ):
        if (one.align, one.angle) == (other.align, other.angle):  # others grow apart
            along = other.x - one.x, other.y - one.y
            apart = along[0] * math.sin(one.angle) - along[1] * math.cos(one.angle)
            assert abs(apart) >= TEXT
