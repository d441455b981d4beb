"""Who is lost, by a lease or by gossip: what must hold of the simulated costs, at any draw."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.simulator import (
    Coordination,
    GossipDesign,
    Pauses,
    RootDesign,
    coordinate,
)
from gemini_lab_bench.figures import coordination as drawn

SIZES = (10, 100, 1000)


def costs(design: str, **options: object) -> list[Coordination]:
    return [each for each in coordinate(SIZES, **options) if each.design == design]


@given(lease_s=st.floats(0.5, 60), seed=st.integers(0, 99))
def test_a_lease_notices_silence_after_three_to_four_quarters_of_it(lease_s, seed):
    root = RootDesign(lease_s=lease_s, look_s=0.0)
    for cost in coordinate((10,), root=root, seed=seed)[:1]:
        assert 0.75 * lease_s <= cost.detect_s.mean - 0.001 <= lease_s


def test_a_root_agents_time_to_detect_does_not_grow_with_the_cluster_and_gossips_does():
    at_root, by_gossip = costs("etcd and root agent"), costs("gossip")
    assert len({round(cost.detect_s.mean, 6) for cost in at_root}) == 1
    # A factor of ten in the nodes is four periods more for a suspect to answer.
    steps = [b.detect_s.mean - a.detect_s.mean for a, b in itertools.pairwise(by_gossip)]
    assert steps == pytest.approx([4.0, 4.0], abs=2.0)


def test_nobody_has_more_to_do_by_gossip_and_the_store_has_more_with_every_node():
    assert {cost.busiest_messages_per_s for cost in costs("gossip")} == {4.0}
    assert [cost.busiest_messages_per_s for cost in costs("etcd and root agent")] == [40, 400, 4000]


def test_by_gossip_every_node_gets_every_inventory_once():
    for cost in costs("gossip", gossip=GossipDesign(inventory_bytes=300)):
        inventories_bytes = 300 * (cost.nodes - 1)
        # One node gets every inventory once; what goes over its own link beside it are lists, an
        # eighth of a byte a node in each exchange, and exchanges are a few a round.
        exchanges = 40 * math.log2(cost.nodes)
        assert inventories_bytes < cost.busiest_bytes
        assert cost.busiest_bytes <= inventories_bytes + exchanges * cost.nodes / 8


@given(mean_s=st.floats(0.2, 5), per_node_hour=st.floats(0.01, 1))
def test_false_accusations_are_the_pauses_that_outlast_a_lease(mean_s, per_node_hour):
    pauses = Pauses(per_node_hour=per_node_hour, mean_s=mean_s)
    root = RootDesign(lease_s=4.0, heartbeats=4)
    (cost, _) = coordinate((50,), root=root, pauses=pauses)
    a_day = 24 * 50 * per_node_hour
    # Between three and four seconds are left of the lease when a pause begins, evenly.
    exact = a_day * mean_s * (math.exp(-3.0 / mean_s) - math.exp(-4.0 / mean_s)) / 1.0
    assert cost.false_per_day == pytest.approx(exact, rel=0.15)


def test_a_suspect_that_has_more_time_to_answer_is_declared_dead_less_often_and_later():
    hasty, patient = (
        coordinate((100,), gossip=GossipDesign(suspicion=suspicion))[1] for suspicion in (1.0, 4.0)
    )
    assert hasty.false_per_day > 10 * patient.false_per_day
    assert hasty.detect_s.mean < patient.detect_s.mean


def test_the_same_seed_gives_the_same_costs():
    assert coordinate((20,), seed=3) == coordinate((20,), seed=3)
    assert coordinate((20,), seed=3) != coordinate((20,), seed=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": ()}, "names no size"),
        ({"nodes": (2,)}, "`nodes` must be from 3 on"),
        ({"nodes": (3.5,)}, "`nodes` must be from 3 on: a whole"),
        ({"losses": 1}, "`losses` must be from 2 on"),
        ({"round_trip_s": -1.0}, "`round_trip_s`"),
        ({"bytes_per_s": math.nan}, "`bytes_per_s`"),
    ],
)
def test_what_cannot_be_simulated_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        coordinate(**{"nodes": (10,), **options})


@pytest.mark.parametrize(
    ("design", "name", "value"),
    [
        (RootDesign, "lease_s", -1.0),
        (RootDesign, "heartbeats", 0),
        (RootDesign, "look_s", math.nan),
        (GossipDesign, "period_s", 0.0),
        (GossipDesign, "fanout", 0),
        (GossipDesign, "suspicion", -1.0),
        (Pauses, "mean_s", 0.0),
        (Pauses, "per_node_hour", math.inf),
    ],
)
def test_a_design_that_cannot_be_is_refused(design, name, value):
    with pytest.raises(ConfigError, match=f"`{name}` must be .*got {value}"):
        design(**{name: value})


def test_the_figure_has_both_designs_at_each_size():
    figure = drawn.figure(coordinate((10, 100)))
    assert len(figure.points) == 8
    assert all(point.origin == "simulation" for point in figure.points)
    assert "4 messages a second" in figure.notes[1]
