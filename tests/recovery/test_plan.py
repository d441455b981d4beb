"""The recovery plan: which version, from where, to whom."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gemini_lab.placement import Placement, plan_placement
from gemini_lab.recovery.plan import Copy, RecoveryPlan, Source, Stored, VersionId, plan_recovery
from gemini_lab.shard.lineage import Lineage


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
        persistent=[Stored(version=version) for version in persistent],
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


@given(situations())
def test_the_parts_of_a_plan_are_the_plan(situation):
    """Whoever sends and whoever gets a copy have it in their parts, in one order; nobody else."""
    placement, members, copies, lost, standbys = situation
    living = (set(members) - lost) | set(standbys)
    plan = plan_recovery(
        placement=placement, members=members, copies=copies, living=living, standbys=standbys
    )
    parts = plan.parts()
    assert parts.keys() == {node for node in plan.members if node is not None}
    for node, part in parts.items():
        assert (part.version, part.tier, part.lineage) == (plan.version, plan.tier, plan.lineage)
        own = [t for t in plan.transfers if node in {t.sender, t.receiver}]
        assert list(part.transfers) == own


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
        persistent=[Stored(version=3)],
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
        persistent=[Stored(version=4), Stored(version=8)],
    )
    assert plan.version == 8
    assert [source.tier for source in plan.sources] == ["persistent"] * 4


@pytest.mark.parametrize("rejected", [(7,), (7, 6)])
def test_a_stored_version_that_was_rejected_is_not_chosen_again_and_a_copy_of_it_is(rejected):
    placement = plan_placement(nodes=2, replicas=2)
    members = names(2)

    def plan(copies):
        return plan_recovery(
            placement=placement,
            members=members,
            copies=copies,
            living=set(members),
            persistent=[Stored(version=version) for version in (6, 7)],
            rejected=[VersionId(version=version) for version in rejected],
        )

    assert plan(()).version == (6 if rejected == (7,) else None)
    assert (plan(whole(placement, members, 7)).tier, plan(()).tier == "start") == (
        "memory",
        rejected != (7,),
    )


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


OLD, NEW = Lineage(run=1, epoch=1), Lineage(run=1, epoch=2)


def made(copies: set[Copy], lineage: Lineage) -> set[Copy]:
    """The same copies, of another history."""
    return {replace(copy, lineage=lineage) for copy in copies}


def test_copies_of_two_histories_never_make_one_version():
    """A node that was silent comes back with version 16 of a line that the others have left."""
    placement, members = plan_placement(nodes=4, replicas=2), names(4)
    left = {c for c in made(whole(placement, members, 16), OLD) if c.node == "node-1"}
    line = made(whole(placement, members, 16), NEW) | made(whole(placement, members, 15), NEW)
    here = {c for c in line if c.node not in {"node-0", "node-1"} or c.version == 15}
    plan = plan_recovery(
        placement=placement, members=members, copies=left | here, living=set(members)
    )
    assert (plan.version, plan.lineage) == (15, NEW)


def test_of_two_histories_of_one_version_the_later_is_taken():
    placement, members = plan_placement(nodes=2, replicas=2), names(2)
    both = made(whole(placement, members, 7), OLD) | made(whole(placement, members, 7), NEW)
    plan = plan_recovery(placement=placement, members=members, copies=both, living=set(members))
    assert (plan.version, plan.lineage) == (7, NEW)


def test_a_node_that_comes_back_gets_the_position_that_its_memory_fits():
    placement, members = plan_placement(nodes=4, replicas=2), names(4)
    copies = whole(placement, members, 5)
    plan = plan_recovery(
        placement=placement,
        members=["node-0", None, "node-2", None],
        copies=copies,
        living={"node-0", "node-2", "node-3", "node-9"},
        standbys=["node-9", "node-3"],
    )
    assert plan.members == ("node-0", "node-9", "node-2", "node-3")
    assert plan.sources[3] == Source(shard=3, tier="local", holder="node-3")


def test_a_standby_with_the_only_copy_takes_the_place_of_a_living_member():
    """A standby runs no workers, so it cannot send what it holds: it has to be seated."""
    placement, members = plan_placement(nodes=4, replicas=2), names(4)
    copies = {c for c in whole(placement, members, 5) if c.shard != 0}
    on_a_standby = {Copy(shard=0, version=5, node="node-7")}
    plan = plan_recovery(
        placement=placement,
        members=members,
        copies=copies | on_a_standby,
        living={*members, "node-7"},
        standbys=["node-7"],
    )
    assert (plan.tier, plan.version) == ("memory", 5)
    assert plan.members in {("node-7", *members[1:]), ("node-0", "node-7", *members[2:])}


def test_nodes_that_were_replaced_come_back_with_what_the_others_have_gone_past():
    """One of each pair fell silent at version 6; their successors' pair was lost at 8."""
    placement = plan_placement(nodes=4, replicas=2)
    silent, then = (
        ["node-0", "node-1", "node-2", "node-3"],
        ["node-4", "node-1", "node-2", "node-5"],
    )
    copies = {c for c in whole(placement, silent, 6) if c.node in {"node-0", "node-3"}}
    plan = plan_recovery(
        placement=placement,
        members=then,
        copies=copies | whole(placement, then, 8),
        living={"node-0", "node-2", "node-3", "node-5", "node-6"},  # node-4 and node-1 are lost
        standbys=["node-6", "node-0", "node-3"],
        persistent=[Stored(version=2)],
    )
    assert (plan.tier, plan.version) == ("memory", 6)
    assert {"node-0", "node-3"} <= {*plan.members}


@given(situations(), st.randoms(use_true_random=False), st.integers(0, 6))
def test_what_lives_anywhere_of_a_version_is_never_passed_over(situation, rng, stored):
    """Members of before hold a whole version together, as standbys beside newer members."""
    placement, members, copies, lost, _ = situation
    back = [node for node in members if node not in lost]
    assume(placement.survives([members.index(node) for node in lost]))
    successors = [f"new-{number}" for number in range(len(members))]
    rng.shuffle(back)
    plan = plan_recovery(
        placement=placement,
        members=successors,
        copies={c for c in copies if c.version == 6},
        living={*back, *rng.sample(successors, rng.randint(0, len(successors)))},
        standbys=back,
        persistent=[Stored(version=stored)],
    )
    assert plan.version == 6


def test_a_standby_is_chosen_that_keeps_replicas_on_different_racks():
    placement, members = plan_placement(nodes=4, replicas=2), names(4)
    racks = {"node-0": "a", "node-1": "b", "node-2": "a", "node-3": "b", "x": "a", "y": "b"}
    plan = plan_recovery(
        placement=placement,
        members=members,
        copies=whole(placement, members, 5),
        living={"node-0", "node-2", "node-3", "x", "y"},
        standbys=["x", "y"],
        rack_of=racks,
    )
    assert plan.members[1] == "y"


@given(situations(), st.randoms(use_true_random=False))
def test_who_comes_back_gets_the_position_on_which_its_memory_counts(situation, rng):
    """All members are gone; those who suffice come back, in any order, among empty machines."""
    placement, members, _, lost, _ = situation
    assume(placement.survives([members.index(node) for node in lost]))
    spares = [node if node not in lost else f"empty-{node}" for node in members]
    rng.shuffle(spares)
    plan = plan_recovery(
        placement=placement,
        members=[f"gone-{number}" for number in range(len(members))],
        copies=whole(placement, members, 6),
        living=spares,
        standbys=spares,
    )
    assert (plan.version, plan.tier) == (6, "memory")
