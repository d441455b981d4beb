"""The recovery plan: which version, from where, to whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.placement import Placement, plan_placement
from gemini_lab.recovery.plan import Copy, RecoveryPlan, plan_recovery


def whole(placement: Placement, members: list[str], version: int) -> set[Copy]:
    """Every copy that exists when `version` is whole on all holders."""
    return {
        Copy(shard=shard, version=version, node=members[position])
        for shard, holders in enumerate(placement.holders)
        for position in holders
    }


def names(count: int) -> list[str]:
    return [f"node-{number}" for number in range(count)]


@st.composite
def situations(draw):
    """A placement, two versions in memory, some nodes lost, some standbys."""
    nodes = draw(st.integers(1, 9))
    replicas = draw(st.integers(1, nodes))
    strategy = draw(st.sampled_from(["auto", "ring"]))
    placement = plan_placement(nodes=nodes, replicas=replicas, strategy=strategy)
    members = names(nodes)
    older = whole(placement, members, 6)
    newer = draw(st.sets(st.sampled_from(sorted(whole(placement, members, 7), key=str))))
    lost = set(draw(st.lists(st.sampled_from(members), unique=True, max_size=nodes)))
    standbys = [f"node-{nodes + number}" for number in range(draw(st.integers(0, 3)))]
    return placement, members, older | newer, lost, standbys


@given(situations(), st.sets(st.sampled_from([2, 4])))
def test_the_plan_takes_the_newest_version_that_is_whole_and_makes_every_holder_whole(
    situation, persistent
):
    placement, members, copies, lost, standbys = situation
    living = (set(members) - lost) | set(standbys)
    plan = plan_recovery(
        placement=placement,
        members=members,
        copies=copies,
        living=living,
        standbys=standbys,
        persistent=persistent,
    )
    left = {copy for copy in copies if copy.node in living}
    in_memory = [
        version
        for version in (6, 7)
        if all(
            any(c.shard == s and c.version == version for c in left) for s in range(len(members))
        )
    ]
    expected = max([*in_memory, *persistent], default=None)
    assert plan.version == expected
    assert len(plan.sources) == placement.nodes
    if plan.tier == "memory":
        held = {(c.shard, c.node) for c in left if c.version == plan.version}
        assert all((t.shard, t.sender) in held for t in plan.transfers)
        after = held | {(t.shard, t.receiver) for t in plan.transfers}
        wanted = {
            (shard, plan.members[position])
            for shard, holders in enumerate(placement.holders)
            for position in holders
            if plan.members[position] is not None
        }
        assert wanted <= after
    else:
        assert plan.transfers == ()
        assert {source.tier for source in plan.sources} == {plan.tier}


@given(situations())
def test_living_nodes_keep_their_positions_and_standbys_fill_the_others(situation):
    placement, members, copies, lost, standbys = situation
    living = (set(members) - lost) | set(standbys)
    plan = plan_recovery(
        placement=placement, members=members, copies=copies, living=living, standbys=standbys
    )
    assert [new for new, old in zip(plan.members, members, strict=True) if old not in lost] == [
        old for old in members if old not in lost
    ]
    assert len(plan.missing) == max(0, len(lost) - len(standbys))
    placed = [node for node in plan.members if node is not None]
    assert len(placed) == len(set(placed))


@given(situations())
def test_a_plan_survives_its_way_through_json(situation):
    placement, members, copies, lost, standbys = situation
    living = (set(members) - lost) | set(standbys)
    plan = plan_recovery(
        placement=placement, members=members, copies=copies, living=living, standbys=standbys
    )
    assert RecoveryPlan.from_json(plan.to_json()) == plan


def test_two_lost_neighbours_of_a_ring_lose_a_shard_although_their_group_lives():
    """Paper, section 6.2 tests whole groups; shard by shard is right."""
    placement = plan_placement(nodes=5, replicas=2)  # {0, 1} and the ring {2, 3, 4}
    members = names(5)
    plan = plan_recovery(
        placement=placement,
        members=members,
        copies=whole(placement, members, 9),
        living={"node-0", "node-1", "node-4", "node-5", "node-6"},
        standbys=["node-5", "node-6"],
        persistent={3},
    )
    assert (plan.tier, plan.version) == ("persistent", 3)
    assert "lacks shard 2" in plan.reason


def test_a_lost_group_sends_all_nodes_to_the_persistent_tier_even_those_with_whole_memory():
    placement = plan_placement(nodes=4, replicas=2)
    members = names(4)
    plan = plan_recovery(
        placement=placement,
        members=members,
        copies=whole(placement, members, 9),
        living={"node-2", "node-3", "node-4", "node-5"},
        standbys=["node-4", "node-5"],
        persistent={4, 8},
    )
    assert plan.version == 8
    assert [source.tier for source in plan.sources] == ["persistent"] * 4


@pytest.mark.parametrize("rejected", [(7,), (7, 6)])
def test_a_rejected_version_is_not_chosen_again(rejected):
    placement = plan_placement(nodes=2, replicas=2)
    members = names(2)
    plan = plan_recovery(
        placement=placement,
        members=members,
        copies=whole(placement, members, 7) | whole(placement, members, 6),
        living=set(members),
        rejected=rejected,
    )
    assert plan.version == (6 if rejected == (7,) else None)


def test_ranks_of_one_node_are_sent_by_the_node_that_keeps_them():
    placement = plan_placement(nodes=2, replicas=2)
    copies = [Copy(shard=shard, version=3, node="node-1") for shard in range(4)]
    plan = plan_recovery(
        placement=placement,
        members=names(2),
        copies=copies,
        living={"node-1", "node-2"},
        standbys=["node-2"],
        workers_per_node=2,
    )
    assert plan.members == ("node-2", "node-1")
    assert {(t.shard, t.sender, t.receiver) for t in plan.transfers} == {
        (shard, "node-1", "node-2") for shard in range(4)
    }
