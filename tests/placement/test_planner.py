"""Claims about where shards are kept."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemini_lab.errors import CapacityError, ConfigError
from gemini_lab.placement import (
    Placement,
    best_possible,
    enumerated_probability,
    plan_placement,
)
from gemini_lab.placement.memory import fill_by_capacity
from gemini_lab.recovery.plan import Copy, plan_recovery

CLUSTERS = st.integers(1, 40).flatmap(
    lambda nodes: st.tuples(st.just(nodes), st.integers(1, min(nodes, 6)))
)
KINDS = st.sampled_from(["auto", "ring", "random"])


@given(cluster=CLUSTERS, strategy=KINDS, seed=st.integers(0, 5))
def test_every_shard_has_m_distinct_holders_its_owner_first(cluster, strategy, seed):
    nodes, replicas = cluster
    placement = plan_placement(nodes=nodes, replicas=replicas, strategy=strategy, seed=seed)
    for owner, holders in enumerate(placement.holders):
        assert holders[0] == owner
        assert len(holders) == len(set(holders)) == replicas
        assert set(holders) <= set(range(nodes))


@given(cluster=CLUSTERS, strategy=KINDS)
def test_every_position_keeps_m_shards_its_own_first(cluster, strategy):
    nodes, replicas = cluster
    placement = plan_placement(nodes=nodes, replicas=replicas, strategy=strategy)
    assert set(placement.loads) == {replicas}
    for position in range(nodes):
        kept = placement.kept_by(position)
        assert kept[0] == position
        assert all(position in placement.holders[shard] for shard in kept)


@given(cluster=CLUSTERS, strategy=KINDS)
def test_a_placement_survives_its_json_form(cluster, strategy):
    nodes, replicas = cluster
    placement = plan_placement(nodes=nodes, replicas=replicas, strategy=strategy)
    assert Placement.from_json(placement.to_json()) == placement


@given(cluster=CLUSTERS, data=st.data())
def test_a_loss_is_survived_exactly_when_no_shard_lost_all_its_holders(cluster, data):
    nodes, replicas = cluster
    placement = plan_placement(nodes=nodes, replicas=replicas)
    lost = data.draw(st.sets(st.integers(0, nodes - 1)))
    assert placement.survives(lost) == all(set(kept) - lost for kept in placement.holders)


def test_five_nodes_and_two_replicas_make_one_group_and_one_ring():
    """Paper, Fig. 3c."""
    placement = plan_placement(nodes=5, replicas=2)
    assert placement.strategy == "mixed"
    assert placement.groups == ((0, 1), (2, 3, 4))
    assert placement.holders == ((0, 1), (1, 0), (2, 3), (3, 4), (4, 2))


@given(cluster=CLUSTERS.filter(lambda cluster: cluster[0] <= 14), racked=st.booleans())
def test_hosts_for_the_nodes_left_over_reach_the_papers_upper_bound(cluster, racked):
    """ceil(N/m) fatal sets; 5 nodes with m = 3: 0.8, where Algorithm 1 has 0.5."""
    nodes, replicas = cluster
    racks = [f"r{i % 3}" for i in range(nodes)] if racked else None
    placement = plan_placement(nodes=nodes, replicas=replicas, strategy="hosted", racks=racks)
    chance = enumerated_probability(placement, replicas)
    assert chance == best_possible(nodes, replicas)
    assert sum(placement.loads) == nodes * replicas
    assert max(placement.loads) <= replicas + nodes % replicas


def fewest_together(racks, replicas):
    """Shards with two copies in one rack, at least, by every choice of group, guests and hosts."""
    least, left_over = len(racks), len(racks) % replicas
    for last in itertools.combinations(range(len(racks)), replicas + left_over):
        others = [racks[node] for node in range(len(racks)) if node not in last]
        # Groups of what is outside can be apart just where no rack has more than there are groups.
        groups = len(others) // replicas
        if groups and max(map(others.count, others)) > groups:
            continue
        for home in itertools.combinations(last, replicas):
            guests = [node for node in last if node not in home]
            for hosts in itertools.combinations(home, replicas - left_over):
                sets = ((home, replicas), ((*guests, *hosts), left_over))
                least = min(
                    least,
                    sum(
                        count
                        for kept, count in sets
                        if len({racks[node] for node in kept}) < replicas
                    ),
                )
    return least


@given(racks=st.lists(st.sampled_from("abcd"), min_size=3, max_size=9), replicas=st.integers(2, 4))
def test_hosted_copies_are_in_different_racks_wherever_they_can_be(racks, replicas):
    nodes = len(racks)
    if nodes <= replicas or nodes % replicas == 0:
        return
    placement = plan_placement(nodes=nodes, replicas=replicas, strategy="hosted", racks=racks)
    together = sum(len({racks[node] for node in kept}) < replicas for kept in placement.holders)
    possible = fewest_together(racks, replicas)
    assert (together == 0) == (possible == 0)
    if nodes < 2 * replicas:
        assert together == possible
    assert any(f"{together} of {nodes} shards have two copies" in n for n in placement.notes) == (
        together > 0
    )


def test_a_guest_shares_no_rack_with_its_hosts_where_racks_suffice():
    """Of five nodes in four racks, the two in rack a keep no copy of one shard together."""
    placement = plan_placement(nodes=5, replicas=3, strategy="hosted", racks=list("abcda"))
    assert placement.notes == ()
    assert not any({0, 4} <= set(kept) for kept in placement.holders)


def test_hosts_need_room_for_their_guests():
    """Node 0 keeps all five shards; where it has room for four, memory decides the placement."""
    asked = {"nodes": 5, "replicas": 3, "strategy": "hosted", "shard_bytes": 1}
    assert plan_placement(**asked, memory_bytes=[10, 6, 6, 6, 6]).strategy == "hosted"
    assert plan_placement(**asked, memory_bytes=[8, 6, 6, 6, 6]).strategy == "uneven"


def test_groups_are_used_where_m_divides_n():
    placement = plan_placement(nodes=16, replicas=2)
    assert placement.strategy == "group"
    assert placement.groups == tuple((i, i + 1) for i in range(0, 16, 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 2, "replicas": 3}, r"replicas=3 needs at least 3 nodes \(got 2\)"),
        ({"nodes": 0}, r"`nodes` must be from 1 on.*got 0"),
        ({"nodes": 4, "replicas": 0}, r"`replicas` must be from 1 on.*got 0"),
        ({"nodes": 5, "strategy": "group"}, r"groups of 2 do not divide 5 nodes \(1 left over\)"),
        ({"nodes": 4, "strategy": "star"}, "'star'"),
        ({"nodes": 4, "racks": ["a"]}, r"one entry a node: 4 \(got 1\)"),
        ({"nodes": 4, "shard_bytes": 3}, "give both"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_numbers(settings, message):
    with pytest.raises(ConfigError, match=message):
        plan_placement(**settings)


@given(
    node_bytes=st.lists(st.integers(min_value=1, max_value=100), min_size=2, max_size=12),
    replicas=st.integers(min_value=1, max_value=3),
)
def test_shards_of_unlike_size_leave_no_node_with_more_than_algorithm_1_would(node_bytes, replicas):
    """And groups are as large as they were: what changes is who is in a group with whom."""
    nodes = len(node_bytes)
    replicas = min(replicas, nodes)
    plain = plan_placement(nodes=nodes, replicas=replicas)
    fair = plan_placement(nodes=nodes, replicas=replicas, node_bytes=node_bytes)

    def most(placement):
        kept = (placement.kept_by(node) for node in range(nodes))
        return max(sum(node_bytes[shard] for shard in shards) for shards in kept)

    assert most(fair) <= most(plain)
    assert sorted(map(len, fair.groups)) == sorted(map(len, plain.groups))
    assert fair.loads == plain.loads
    assert (fair.strategy, fair.replicas) == (plain.strategy, plain.replicas)


def test_a_large_stage_shares_a_group_with_a_small_one():
    assert plan_placement(nodes=4, node_bytes=[80, 80, 20, 20]).groups == ((0, 2), (1, 3))
    assert plan_placement(nodes=4, node_bytes=[80, 80, 70, 70]).groups == ((0, 1), (2, 3))
    with pytest.raises(ConfigError, match="needs one entry a node: 4"):
        plan_placement(nodes=4, node_bytes=[80])


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    replicas=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_groups_span_racks_whenever_any_grouping_could(sizes, replicas, order):
    """With N = g * m, members can be apart in all groups exactly when no rack has more than g."""
    racks = [str(rack) for rack, size in enumerate(sizes) for _ in range(size)]
    order.shuffle(racks)
    nodes = len(racks) // replicas * replicas
    if not nodes:
        return
    racks = racks[:nodes]
    placement = plan_placement(nodes=nodes, replicas=replicas, racks=racks)
    assert sorted(position for group in placement.groups for position in group) == list(
        range(nodes)
    )
    possible = max(map(racks.count, racks)) <= nodes // replicas
    apart = all(
        len({racks[position] for position in group}) == replicas for group in placement.groups
    )
    assert apart == possible == (not placement.notes)


def lost_with_a_rack(holders, racks):
    """Shards that have every copy in one rack."""
    return sum(len({racks[node] for node in kept}) == 1 for kept in holders)


def fewest_lost_with_a_rack(racks, replicas):
    """The same, at least, by every choice of groups and of the order in which they send."""
    sizes = [replicas] * (len(racks) // replicas - 1)
    starts = [0, *itertools.accumulate(sizes), len(racks)]
    least = len(racks)
    for seats in set(itertools.permutations(racks)):
        groups = [seats[start:end] for start, end in itertools.pairwise(starts)]
        windows = [
            [group[(first + step) % len(group)] for step in range(replicas)]
            for group in groups
            for first in range(len(group))
        ]
        least = min(least, sum(len(set(window)) == 1 for window in windows))
    return least


@given(racks=st.lists(st.sampled_from("aaabc"), min_size=2, max_size=7), replicas=st.integers(2, 4))
@example(racks=list("aaabb"), replicas=2)
@example(racks=list("aaaabbb"), replicas=2)
@example(racks=list("aaaabc"), replicas=3)
@example(racks=list("aaaaabc"), replicas=3)
def test_no_rack_takes_more_shards_along_than_one_has_to(racks, replicas):
    replicas = min(replicas, len(racks))
    holders = plan_placement(nodes=len(racks), replicas=replicas, racks=racks).holders
    assert lost_with_a_rack(holders, racks) == fewest_lost_with_a_rack(racks, replicas)


def test_notes_name_the_rack_whose_loss_loses_shards():
    placement = plan_placement(nodes=6, racks=list("AAAABB"))
    assert not placement.survives({0, 1, 2, 3})
    assert "losing rack 'A' alone loses 2" in placement.notes[1]


def fits_somehow(fits, replicas):
    """Whether any placement fits, by search over all choices."""
    nodes = len(fits)

    def place(owner, left):
        if owner == nodes:
            return True
        others = [node for node in range(nodes) if node != owner and left[node]]
        return any(
            place(owner + 1, tuple(room - (node in chosen) for node, room in enumerate(left)))
            for chosen in itertools.combinations(others, replicas - 1)
        )

    return place(0, tuple(count - 1 for count in fits))


@given(fits=st.lists(st.integers(1, 5), min_size=2, max_size=6), replicas=st.integers(2, 3))
def test_uneven_memory_is_respected_and_used_whenever_it_can_be(fits, replicas):
    if replicas > len(fits):
        return
    settings = {
        "nodes": len(fits),
        "replicas": replicas,
        "memory_bytes": [count * 20 for count in fits],
        "shard_bytes": 10,
    }
    if fits_somehow(tuple(fits), replicas):
        placement = plan_placement(**settings)
        assert all(load <= count for load, count in zip(placement.loads, fits, strict=True))
    else:
        with pytest.raises(CapacityError, match=f"room for {sum(fits)}"):
            plan_placement(**settings)


def test_a_short_node_is_a_guest_of_one_group_and_leaves_few_fatal_sets():
    """Node 7 has room for its own shard only: seven hosts make two groups and a ring of three."""
    placement = plan_placement(nodes=8, memory_bytes=[8] * 7 + [2], shard_bytes=1)
    assert placement.strategy == "uneven"
    assert placement.kept_by(7) == (7,)
    assert placement.holders[:2] == ((0, 1), (1, 0))
    scattered = fill_by_capacity(fits=[4] * 7 + [1], replicas=2)
    fatal = {frozenset(kept) for kept in scattered}
    assert len({frozenset(kept) for kept in placement.holders}) == 6 <= len(fatal)


def test_a_guest_prefers_hosts_outside_its_rack():
    placement = plan_placement(
        nodes=5, memory_bytes=[9, 9, 9, 9, 2], shard_bytes=1, racks=["a", "a", "a", "b", "a"]
    )
    assert placement.holders[4] == (4, 3)


def test_a_node_too_small_for_its_own_shard_is_named():
    with pytest.raises(CapacityError, match="node 1 has 19 B"):
        plan_placement(nodes=2, memory_bytes=[40, 19], shard_bytes=10)


def test_a_standby_in_a_lost_nodes_place_moves_only_the_shards_that_node_kept():
    placement = plan_placement(nodes=7, replicas=3)
    members = [f"node-{i}" for i in range(7)]
    copies = [
        Copy(shard=shard, version=4, node=members[holder])
        for shard, kept in enumerate(placement.holders)
        for holder in kept
        if holder != 5
    ]
    plan = plan_recovery(
        placement=placement,
        members=members,
        copies=copies,
        living={*members, "spare"} - {"node-5"},
        standbys=["spare"],
    )
    assert {move.receiver for move in plan.transfers} == {"spare"}
    assert sorted(move.shard for move in plan.transfers) == sorted(placement.kept_by(5))


def made_by_hand(holders):
    return Placement(nodes=2, replicas=2, strategy="mine", groups=(), holders=holders)


def test_holders_may_be_lists_and_any_librarys_numbers():
    made = made_by_hand(np.array([[0, 1], [1, 0]]))
    assert made == made_by_hand([[0, 1], [1, 0]]) == made_by_hand(((0, 1), (1, 0)))
    assert made.loads == (2, 2)
    assert {type(node) for kept in made.holders for node in kept} == {int}


@pytest.mark.parametrize("holders", [None, [0, 1], [[0.0, 1.0], [1.0, 0.0]], ["01", "10"]])
def test_holders_of_another_form_are_refused_with_an_example(holders):
    with pytest.raises(ConfigError, match=r"as in \(\(0, 1\), \(1, 0\)\), and this is"):
        made_by_hand(holders)
