"""Properties of placements that follow the risk."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.placement import Placement, plan_placement, propose_placement
from gemini_lab.placement.dangers import Dangers
from gemini_lab.placement.following import Follower

RATES = st.sampled_from([0.001, 0.01, 0.1, 1.0, 5.0])


@st.composite
def clusters(draw):
    """A placement, what befalls its nodes, and room on each, sometimes too little."""
    nodes = draw(st.integers(2, 9))
    racks = draw(st.none() | st.lists(st.sampled_from("abc"), min_size=nodes, max_size=nodes))
    replicas = draw(st.integers(1, min(4, nodes)))
    dangers = Dangers(
        failures_per_day=tuple(draw(st.lists(RATES, min_size=nodes, max_size=nodes))),
        repair_s=draw(st.sampled_from([10.0, 600.0, 7200.0])),
        racks=racks,
        racks_per_day={} if racks is None else dict.fromkeys("abc", draw(RATES)),
    )
    fits = draw(st.lists(st.integers(1, nodes), min_size=nodes, max_size=nodes))
    follower = Follower(
        target=draw(st.sampled_from([0.0, 0.9, 0.999, 0.999999])),
        horizon_days=30.0,
        fewest_replicas=draw(st.integers(1, 2)),
    )
    return plan_placement(nodes=nodes, replicas=replicas), dangers, fits, follower


@given(clusters())
def test_no_node_keeps_more_than_its_memory_holds(case):
    placement, dangers, fits, follower = case
    change = follower.change(placement, dangers=dangers, fits=fits)
    if change is None:
        assert all(load <= fit for load, fit in zip(placement.loads, fits, strict=True))
        return
    for one in (change.placement, change.between):
        assert all(load <= fit for load, fit in zip(one.loads, fits, strict=True))


@given(clusters())
def test_each_shard_has_its_owner_first_and_enough_copies_where_there_was_room(case):
    placement, dangers, fits, follower = case
    change = follower.change(placement, dangers=dangers, fits=fits)
    if change is None:
        return
    is_full = any(load > fit for load, fit in zip(placement.loads, fits, strict=True))
    for shard, kept in enumerate(change.placement.holders):
        before = placement.holders[shard]
        assert kept[0] == shard
        assert len(set(kept)) == len(kept) <= max(len(before), follower.most_replicas)
        assert is_full or len(kept) >= min(len(before), follower.fewest_replicas)


@given(clusters())
def test_only_copies_that_differ_are_named_and_none_goes_before_the_new_ones_are_whole(case):
    placement, dangers, fits, follower = case
    change = follower.change(placement, dangers=dangers, fits=fits)
    if change is None:
        return
    then = {(s, p) for s, kept in enumerate(placement.holders) for p in kept}
    now = {(s, p) for s, kept in enumerate(change.placement.holders) for p in kept}
    between = {(s, p) for s, kept in enumerate(change.between.holders) for p in kept}
    assert (set(change.added), set(change.dropped)) == (now - then, then - now)
    assert change.added or change.dropped
    assert now <= between <= now | then
    full = {p for p, fit in enumerate(fits) if placement.loads[p] > fit}
    assert all(holder in full for _, holder in then - between)


@given(clusters())
def test_what_was_changed_is_left_as_it_is_while_nothing_else_changes(case):
    """It does not flap: a placement that was just made calls for no other one."""
    placement, dangers, fits, follower = case
    change = follower.change(placement, dangers=dangers, fits=fits)
    for _ in range(3):  # spreading, then mending, may take a step each
        if change is None:
            return
        placement = change.placement
        change = follower.change(placement, dangers=dangers, fits=fits)
    assert change is None


@given(clusters())
def test_a_change_is_made_only_where_it_is_worth_it(case):
    placement, dangers, fits, follower = case
    change = follower.change(placement, dangers=dangers, fits=fits)
    fits_now = all(load <= fit for load, fit in zip(placement.loads, fits, strict=True))
    if change is None or not fits_now or "one rack" in change.reason:
        return
    if change.added:
        assert not follower.is_met(placement, dangers)
        then, now = (dangers.total_per_day(p) for p in (placement, change.placement))
        assert now <= 0.8 * then
    else:
        assert follower.is_met(change.placement, dangers)
        assert change.loss_chance <= 0.15 * (1 - follower.target)


@given(clusters())
def test_the_target_is_reached_where_there_is_memory_for_all_copies(case):
    placement, dangers, _, follower = case
    nodes = placement.nodes
    everything = Placement(
        nodes=nodes,
        replicas=1,
        strategy="ring",
        groups=(),
        holders=tuple(
            tuple((owner + shift) % nodes for shift in range(min(nodes, follower.most_replicas)))
            for owner in range(nodes)
        ),
    )
    room = [nodes] * nodes
    aim = Follower(
        target=follower.target,
        horizon_days=follower.horizon_days,
        most_replicas=nodes,
    )
    if dangers.total_per_day(everything) > 0 and nodes <= follower.most_replicas:
        change = aim.change(placement, dangers=dangers, fits=room)
        final = placement if change is None else change.placement
        assert aim.is_met(final, dangers) or not aim.is_met(everything, dangers)


def test_a_machine_that_fails_often_has_its_shards_kept_once_more_and_no_other_moves():
    placement = plan_placement(nodes=6, replicas=2)
    rates = [0.015] * 6
    follower = Follower(target=0.999, horizon_days=30.0)
    calm = Dangers(failures_per_day=rates, repair_s=600.0)
    assert follower.change(placement, dangers=calm, fits=[6] * 6) is None
    rates[2] = 1.0
    change = follower.change(
        placement, dangers=Dangers(failures_per_day=rates, repair_s=600.0), fits=[6] * 6
    )
    assert change is not None
    assert {shard for shard, _ in change.added} == {2, 3}  # they share their holders
    assert not change.dropped
    assert change.met


def test_a_rate_that_wavers_about_the_target_changes_nothing():
    placement, follower = (
        plan_placement(nodes=4, replicas=2),
        Follower(target=0.999, horizon_days=30),
    )
    rates = [0.015, 0.015, 0.2, 0.015]
    change = follower.change(
        placement, dangers=Dangers(failures_per_day=rates, repair_s=600.0), fits=[4] * 4
    )
    assert change is not None
    for rate in (0.1, 0.2, 0.15, 0.25, 0.12):
        rates[2] = rate
        wavering = Dangers(failures_per_day=rates, repair_s=600.0)
        assert follower.change(change.placement, dangers=wavering, fits=[4] * 4) is None
    rates[2] = 0.001
    calm = Dangers(failures_per_day=rates, repair_s=600.0)
    rates[0] = rates[1] = rates[3] = 0.001
    back = follower.change(change.placement, dangers=calm, fits=[4] * 4)
    assert back is not None
    assert back.dropped
    assert not back.added


def test_a_change_that_mends_one_of_six_pairs_is_not_worth_it_and_one_that_mends_two_is():
    placement = plan_placement(nodes=12, replicas=2)
    dangers = Dangers(failures_per_day=[1.0] * 12, repair_s=600.0)
    follower = Follower(target=0.999, horizon_days=30.0)
    room = [2] * 12
    room[2] = room[4] = 3
    assert follower.change(placement, dangers=dangers, fits=room) is None
    room[0] = room[6] = 3
    change = follower.change(placement, dangers=dangers, fits=room)
    assert change is not None
    assert len(change.added) == 4
    assert not change.met


@pytest.mark.parametrize("per_day", [0.0, 2.0])
def test_the_rate_of_losses_with_racks_is_the_one_a_long_history_shows(per_day):
    """Three nodes in two racks; a node is down while it or its rack is."""
    rates, racks, repair_days, days = (3.0, 4.0, 5.0), "aab", 0.05, 6_000
    dangers = Dangers(
        failures_per_day=rates,
        repair_s=repair_days * 86400,
        racks=list(racks),
        racks_per_day=dict.fromkeys("ab", per_day),
    )
    draw = random.Random(3)
    changes = []
    for part, rate in (*enumerate(rates), *((rack, per_day) for rack in "ab")):
        now = 0.0
        while rate and now < days:
            now += draw.expovariate(rate)
            changes += [(now, str(part), 1), (now + repair_days, str(part), 0)]
            now += repair_days
    down, found, was = dict.fromkeys("012ab", 0), 0, False
    for at, part, is_down in sorted(changes):
        if at > days:
            break
        down[part] = is_down
        is_lost = all(down[str(node)] or down[racks[node]] for node in range(3))
        found += is_lost and not was
        was = is_lost
    expected = days * dangers.loss_rate_per_day(range(3))
    assert found == pytest.approx(expected, abs=4 * expected**0.5)


def test_fewer_than_two_copies_are_proposed_only_where_memory_is_short():
    asked = {
        "nodes": 4,
        "failures_per_node_per_day": 0.0001,
        "repair_s": 1.0,
        "shard_bytes": 1,
        "target": 0.5,
    }
    wide = propose_placement(**asked, memory_bytes=4, fewest_replicas=2)
    short = propose_placement(**asked, memory_bytes=2, fewest_replicas=2)
    assert (wide.placement.replicas, short.placement.replicas) == (2, 1)
    assert "room for" in short.tried[0].reason


def test_a_target_that_is_no_chance_is_refused():
    with pytest.raises(ConfigError, match="target=1"):
        Follower(target=1.0, horizon_days=1.0)
