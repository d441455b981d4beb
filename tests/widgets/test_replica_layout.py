"""Where nodes and copies stand in the replica map."""

import itertools
import math

import pytest
from gemini_lab_widgets.replica_layout import (
    ORDERS,
    flow,
    ring_label,
    ring_places,
    shown_shards,
    units_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

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


def laid(told, order, *, columns=24):
    by_shard, _ = shown_shards(told)
    return flow(by_shard, units_of(told, by_shard, order), columns=columns)


@settings(max_examples=30)
@given(
    st.integers(33, 300),
    st.integers(2, 4),
    st.integers(0, 9),
    st.integers(4, 60),
    st.sampled_from(list(ORDERS)),
)
def test_every_copy_has_a_place_of_its_own_on_a_band(nodes, replicas, racks, columns, order):
    told = table(nodes, replicas=replicas, racks=racks)
    plan = laid(told, order, columns=columns)
    assert sorted((c.shard, c.position) for c in plan.copies) == sorted(
        (c.shard, c.position) for c in told.copies
    )
    places = list(zip(plan.x, plan.y, strict=True))
    for (x, y), (u, v) in itertools.pairwise(sorted(places, key=lambda at: (at[1], at[0]))):
        assert y != v or u - x >= 1
    assert max(plan.x) < columns + 0.5
    assert max(plan.y) < plan.rows
    for x, y in places:
        assert any(b.left < x < b.right and b.top < y < b.bottom for b in plan.bands)


def test_a_replica_group_stands_together_in_one_line():
    plan = laid(table(1000), "place")
    lines = {}
    for copy, y in zip(plan.copies, plan.y, strict=True):
        lines.setdefault(copy.shard // 2, set()).add(int(y))
    assert all(max(found) - min(found) == 1 for found in lines.values())


def test_shards_with_the_fewest_whole_copies_stand_first():
    plan = laid(table(100, lost={41, 70, 71}), "worst")
    assert [copy.shard for copy in plan.copies[:8:2]] == [70, 71, 40, 41]


def test_racks_have_their_names_above_them():
    plan = laid(table(40, racks=12), "rack")
    assert [band.label for band in plan.bands][:3] == ["rack-0", "rack-1", "rack-2"]
    assert plan.bands[-1].label == "rack-11"
    assert plan.bands[0].top >= 0.9  # room for a line of text


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
