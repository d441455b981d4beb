"""Who sits where: the arithmetic between ranks, positions and nodes, and who keeps what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import CapacityError, ConfigError
from gemini_lab.placement import Exposure, Risk
from gemini_lab.seats import Seats, in_order, listed, node_name
from gemini_lab.settings import Settings


@st.composite
def seats(draw: st.DrawFn) -> Seats:
    nodes = draw(st.integers(1, 9))
    members = [node_name(number) for number in draw(st.permutations(range(nodes + 2)))[:nodes]]
    seated = Seats(nodes=nodes, workers_per_node=draw(st.integers(1, 4)), members=tuple(members))
    return seated.placed(Settings(replicas=draw(st.integers(1, nodes))))


@given(seats())
def test_every_rank_sits_on_the_node_whose_ranks_it_is_among(seated):
    for rank in seated.ranks:
        node = seated.node_of(rank)
        assert rank in seated.ranks_on(node)
        assert seated.ranks_on(node)[seated.local_rank_of(rank)] == rank


@given(seats())
def test_a_shard_is_kept_exactly_by_its_owner_and_the_peers_that_keep_it(seated):
    for shard in seated.ranks:
        keepers = {rank for rank in seated.ranks if shard in seated.kept_shards(rank)}
        assert keepers == {shard, *seated.peers_that_keep(shard)}
        assert len(keepers) == seated.holders.replicas
        assert seated.kept_shards(shard)[0] == shard


@given(seats())
def test_a_replica_number_says_which_of_the_senders_peers_this_is(seated):
    for rank in seated.ranks:
        for shard, number in seated.replica_numbers(rank).items():
            assert seated.peers_that_keep(shard)[number - 1] == rank


@given(seats())
def test_a_holder_keeps_a_shard_in_the_slab_of_the_same_local_rank(seated):
    for shard in seated.ranks:
        for position in seated.holders.holders[seated.position_of(shard)]:
            keeper = seated.rank_on(seated.members[position], keeping=shard)
            assert shard in seated.kept_shards(keeper)


def test_a_standby_that_takes_a_position_runs_its_ranks():
    before = Seats(nodes=2, workers_per_node=2, members=("node-0", "node-1"))
    after = before.seated(("node-0", "node-2"))
    assert list(after.ranks_on("node-2")) == [2, 3]
    assert list(after.ranks_on("node-1")) == []
    assert after.spares(["node-1", "node-0"]) == ["node-1"]


def test_racks_part_the_copies_where_every_positions_rack_is_known():
    racks = {"node-0": "a", "node-1": "a", "node-2": "b", "node-3": "b"}
    members = tuple(racks)
    spread = Seats(nodes=4, members=members, rack_of=racks).placed(Settings())
    for holders in spread.holders.holders:
        assert {racks[members[position]] for position in holders} == {"a", "b"}
    unknown = Seats(nodes=4, members=members, rack_of={"node-0": "a"}).placed(Settings())
    assert unknown.holders.groups == ((0, 1), (2, 3))


def test_what_cannot_be_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match="nodes=0"):
        Seats(nodes=0)
    with pytest.raises(ConfigError, match="ranks go from 0 to 3"):
        Seats(nodes=4, members=("a", "b", "c", "d")).node_of(4)
    with pytest.raises(ConfigError, match="nobody sits on position 1"):
        Seats(nodes=2, members=("a", None)).node_of(1)
    with pytest.raises(ConfigError, match="replicas=3 needs at least 3 nodes"):
        Seats(nodes=2).placed(Settings(replicas=3))


def test_names_are_in_counting_order():
    assert in_order(["node-10", "node-9", "node-1"]) == ["node-1", "node-9", "node-10"]


def test_a_thousand_names_are_told_in_a_line():
    assert listed(["node-1", "node-2"]) == "node-1, node-2"
    assert listed(range(1000), most=3) == "0, 1, 2 and 997 more"


FOUR = tuple(node_name(number) for number in range(4))


def following(**settings) -> Settings:
    return Settings.parse({"replicas": "auto", **settings})


def test_copies_that_follow_the_risk_begin_as_memory_and_what_was_learned_allow():
    """Shards of 10 bytes with two buffers each: node-3 has room for its own alone."""
    settings = following(replica_memory="100 B, node-3: 20 B", survival_target=0.5)
    placed = Seats(nodes=4, members=FOUR).placed(settings, shard_bytes=10)
    assert placed.kept_shards(3) == (3,)
    assert all(len(kept) == 2 for kept in placed.holders.holders)
    seen = Risk(nodes={"node-2": Exposure(failures=9, days=9.0)})
    shaky = Seats(nodes=4, members=FOUR, risk=seen).placed(following(), shard_bytes=10)
    assert len(shaky.holders.holders[2]) == 3


def test_memory_that_a_node_said_counts_where_no_setting_does():
    seen = Risk(memory_bytes={**dict.fromkeys(FOUR, 100), "node-1": 20})
    seated = Seats(nodes=4, members=FOUR, risk=seen)
    assert seated.placed(following(), shard_bytes=10).kept_shards(1) == (1,)
    placed = seated.placed(following(replica_memory="100 B"), shard_bytes=10)
    assert len(placed.kept_shards(1)) == 2


def test_a_node_with_room_for_its_own_small_shard_alone_keeps_that():
    """The stages of a pipeline are of unlike size, and so may be the nodes that have them."""
    settings = following(replica_memory="100 B, node-3: 12 B", survival_target=0.5)
    seats = Seats(nodes=4, members=FOUR)
    placed = seats.placed(settings, shard_bytes=10, node_bytes=[10, 10, 6, 6])
    assert placed.kept_shards(3) == (3,)
    with pytest.raises(CapacityError, match=r"node-3 has 12 B for copies.* need 20 B"):
        seats.placed(settings, shard_bytes=10, node_bytes=[6, 6, 6, 10])


def test_unlike_shards_are_placed_by_their_bytes_and_the_same_next_time():
    seats = Seats(nodes=4, members=FOUR)
    placed = seats.placed(Settings(), shard_bytes=9, node_bytes=[9, 9, 2, 2])
    assert placed.holders.groups == ((0, 2), (1, 3))
    assert placed.placed(Settings()) == placed


def test_a_node_without_room_for_its_own_shard_is_named():
    with pytest.raises(
        CapacityError, match=r"node-2 has 19 B for copies.* need 20 B .2 buffers of 10 B"
    ):
        Seats(nodes=4, members=FOUR).placed(
            following(replica_memory="100 B, node-2: 19 B"), shard_bytes=10
        )
