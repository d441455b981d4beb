"""Claims about which standby takes which place: none of its own rack's, where another will do."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.log import events
from gemini_lab.placement import plan_placement
from gemini_lab.recovery.seating import fill_positions, in_one_rack

from .story import Story

RACKS = {"node-0": "a", "node-1": "b", "node-2": "a", "node-3": "b", "node-4": "a", "node-5": "b"}


@st.composite
def losses(draw):
    """Nodes in racks, copies spread over these, some nodes lost, and standbys in any racks."""
    nodes = draw(st.integers(2, 7))
    racks = draw(st.lists(st.sampled_from("abc"), min_size=nodes, max_size=nodes))
    replicas = draw(st.integers(2, min(3, nodes)))
    placement = plan_placement(nodes=nodes, replicas=replicas, racks=racks)
    lost = draw(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=2))
    spares = draw(st.lists(st.sampled_from("abc"), min_size=len(lost), max_size=4))
    members = [None if p in lost else f"node-{p}" for p in range(nodes)]
    rack_of = {f"node-{p}": rack for p, rack in enumerate(racks)}
    rack_of |= {f"spare-{number}": rack for number, rack in enumerate(spares)}
    return placement, members, [f"spare-{number}" for number in range(len(spares))], rack_of


@given(losses())
def test_no_other_choice_of_standbys_leaves_fewer_shards_in_one_rack(case):
    placement, members, spares, rack_of = case
    empty = [p for p, node in enumerate(members) if node is None]

    def alone(filled):
        return len(in_one_rack(placement.holders, filled, rack_of))

    filled = fill_positions(
        members=members, spares=spares, copies=[], holders=placement.holders, rack_of=rack_of
    )
    assert sorted(node for node in filled if node in spares) == sorted(set(filled) & set(spares))
    assert None not in filled
    for chosen in permutations(spares, len(empty)):
        other = list(members)
        for position, node in zip(empty, chosen, strict=True):
            other[position] = node
        assert alone(filled) <= alone(other)


def test_two_lost_nodes_of_one_group_do_not_get_two_standbys_of_one_rack():
    """The first two in order are both in rack a, and would keep each other's shards there."""
    racks = {"node-0": "a", "node-1": "b", "x": "a", "y": "a", "z": "b"}
    filled = fill_positions(
        members=[None, None],
        spares=["x", "y", "z"],
        copies=[],
        holders=plan_placement(nodes=2, replicas=2).holders,
        rack_of=racks,
    )
    assert {racks[str(node)] for node in filled} == {"a", "b"}


def test_of_standbys_that_are_as_safe_one_that_is_ready_is_taken():
    holders = plan_placement(nodes=2, replicas=2).holders
    racks = {"node-0": "a", "x": "a", "y": "b", "z": "b"}
    seated = fill_positions(
        members=["node-0", None],
        spares=["x", "y", "z"],
        copies=[],
        holders=holders,
        rack_of=racks,
        late={"y"},
    )
    assert seated == ("node-0", "z")


def test_a_standby_of_another_rack_takes_the_place_although_it_is_not_the_first():
    story = Story(nodes=6).start(rack_of=RACKS)
    kept = story.root.state.seats.holders.holders
    assert not in_one_rack(kept, story.members(), RACKS)
    story.lose("node-1")
    assert story.members()[1] == "node-5"
    assert not in_one_rack(kept, story.members(), RACKS)
    assert not story.of(events.Note)


def test_where_no_standby_keeps_the_racks_apart_the_log_says_which_shards_are_in_one():
    story = Story(nodes=5).start(rack_of=RACKS)
    story.lose("node-1")
    assert story.members()[1] == "node-4"
    (note,) = story.of(events.Note)
    assert "node-0 (rack a), node-4 (rack a)" in note.text
    assert "have a standby in each rack" in note.text
