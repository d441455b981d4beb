"""Seats in few words: they come back as they were, whatever they are, and few stay few."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import MessageError
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.recovery.root_state import RootState, Setup
from gemini_lab.recovery.told_seats import (
    ToldPlacement,
    ToldSeats,
    items_of,
    runs_of,
    told_ranks,
    whole_ranks,
)
from gemini_lab.seats import Seats, node_name

NAMES = st.none() | st.integers(0, 30).map(node_name) | st.text(max_size=3) | st.just("node-007")


def told(seats: Seats) -> bytes:
    return msgspec.json.encode(ToldSeats.of(seats))


def back(line: bytes) -> Seats:
    return msgspec.json.decode(line, type=ToldSeats).whole()


@given(st.lists(st.integers(0, 3), max_size=60))
def test_any_list_comes_back_from_its_runs(items):
    assert items_of(runs_of(items), most=60) == items


@given(st.lists(NAMES, min_size=1, max_size=12), st.dictionaries(NAMES.map(str), st.text()))
def test_any_seats_come_back(members, rack_of):
    seats = Seats(nodes=len(members), members=tuple(members), rack_of=rack_of, workers_per_node=2)
    assert back(told(seats)) == seats
    assert [*back(told(seats)).rack_of] == [*rack_of]


@given(st.data(), st.integers(1, 12))
def test_any_placement_comes_back(data, nodes):
    others = [
        data.draw(st.lists(st.integers(0, nodes - 1).filter(lambda p, s=s: p != s), unique=True))
        for s in range(nodes)
    ]
    placement = Placement(
        nodes=nodes,
        replicas=1,
        strategy="following",
        groups=(),
        holders=tuple((s, *kept) for s, kept in enumerate(others)),
        notes=("said",),
    )
    assert ToldPlacement.of(placement).whole(nodes) == placement


@pytest.mark.parametrize("strategy", ["auto", "hosted"])
def test_a_thousand_seats_are_told_in_a_few_hundred_bytes(strategy):
    """In full they take 26 kB, to each of a thousand nodes."""
    placement = plan_placement(nodes=1001, replicas=2, strategy=strategy)
    members = [node_name(number) for number in range(1001)]
    members[500] = node_name(1003)  # a standby
    seats = Seats(nodes=1001, members=tuple(members), placement=placement)
    assert back(told(seats)) == seats
    assert len(told(seats)) < 512
    assert len(msgspec.json.encode(seats)) > 25_000
    state = RootState(setup=Setup(placed=seats))
    assert RootState.from_text(state.to_text()) == state
    assert len(state.to_text()) < 4096


def test_more_seats_than_there_are_nodes_are_refused_before_they_are_made():
    line = told(Seats(nodes=3, members=("node-0", "node-1", "node-2")))
    with pytest.raises(MessageError, match="has 9,007,199,254,740,992 entries, and may have 3"):
        back(line.replace(b"[[1,[0]],[2,[1]]]", b"[[%d,[1]]]" % 2**53))
    with pytest.raises(MessageError, match="may have 3"):  # nothing, so often, would never end
        back(line.replace(b"[[1,[0]],[2,[1]]]", b"[[%d,[]]]" % 2**53))


def test_racks_of_other_nodes_than_were_told_are_refused():
    seats = Seats(nodes=1, members=("node-0",), rack_of={"node-0": "a", "node-1": "b"})
    with pytest.raises(MessageError, match="2 nodes come with 1 racks"):
        back(msgspec.json.encode(msgspec.structs.replace(ToldSeats.of(seats), racks=[(1, ["a"])])))


@given(st.sets(st.integers(0, 40)))
def test_ranks_come_back_from_their_rows(ranks):
    assert whole_ranks(told_ranks(sorted(ranks)), range(41)) == sorted(ranks)


def test_ranks_that_there_are_not_are_left_out():
    assert whole_ranks([(2, 2**53)], range(4)) == [2, 3]
