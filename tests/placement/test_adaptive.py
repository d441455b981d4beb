"""Claims about how many replicas are proposed."""

import math
import random

import pytest

from gemini_lab.errors import CapacityError, ConfigError
from gemini_lab.placement import propose_placement
from gemini_lab.placement.adaptive import loss_rate_per_day

ASKED = {
    "nodes": 16,
    "failures_per_node_per_day": 0.015,
    "repair_s": 600.0,
    "memory_bytes": 1000,
    "shard_bytes": 10,
}


def joint_outages(rates, repair_days, days, draw):
    """How often all nodes are down together in a simulated history."""
    changes = []
    for node, rate in enumerate(rates):
        now = 0.0
        while now < days:
            now += draw.expovariate(rate)
            changes += [(now, node, True), (now + repair_days, node, False)]
            now += repair_days
    down, count = set(), 0
    for at, node, fails in sorted(changes):
        if at > days:
            break
        if fails:
            down.add(node)
            count += len(down) == len(rates)
        else:
            down.discard(node)
    return count


@pytest.mark.parametrize("rates", [(2.0, 2.0), (1.0, 4.0, 3.0)])
def test_the_rate_of_joint_outages_is_the_one_a_long_history_shows(rates):
    days = 20_000
    expected = days * loss_rate_per_day(
        range(len(rates)), failures_per_day=rates, repair_s=0.1 * 86400
    )
    found = joint_outages(rates, 0.1, days, random.Random(5))
    assert found == pytest.approx(expected, abs=4 * expected**0.5)


def test_a_higher_target_takes_more_replicas():
    proposals = [propose_placement(**ASKED, target=target) for target in (0.0, 0.99, 0.999999)]
    assert [each.placement.replicas for each in proposals] == [1, 2, 3]
    assert all(each.met for each in proposals)


def test_shards_of_unreliable_nodes_deserve_one_more():
    """Two nodes of one group fail often: both their shards get a copy elsewhere, the others not."""
    rates = [0.01] * 16
    rates[4] = rates[5] = 2.0
    proposal = propose_placement(**ASKED | {"failures_per_node_per_day": rates}, target=0.999)
    assert (proposal.placement.replicas, proposal.extra) == (2, (4, 5))
    assert proposal.met
    assert proposal.placement.survives({4, 5})
    assert [trial.extra for trial in proposal.tried if trial.replicas == 2] == [(), (4, 5)]


def test_memory_that_is_short_ends_the_search_with_the_best_that_fits():
    proposal = propose_placement(**ASKED | {"memory_bytes": 40}, target=0.9999999)
    assert proposal.placement.replicas == 2
    assert not proposal.met
    assert not proposal.tried[-1].fits
    assert "m = 2" in proposal.reason
    assert "room for 32" in proposal.reason


def test_every_trial_carries_its_verdict():
    proposal = propose_placement(**ASKED, target=0.999999)
    assert [trial.meets for trial in proposal.tried][-1]
    assert not any(trial.meets for trial in proposal.tried[:-1])
    for trial in proposal.tried:
        assert f"m = {trial.replicas}" in trial.reason


def test_nodes_left_over_are_guests_where_that_is_enough():
    """Of five nodes, three at once lose a shard in 5 of 10 ways; with guests only in 2 of 10."""
    asked = ASKED | {"nodes": 5, "fewest_replicas": 3, "most_replicas": 3}
    proposal = propose_placement(**asked, target=0.9999999999)
    chances = {}
    for trial in proposal.tried:
        chances.setdefault("guests" in trial.reason, trial.loss_probability)
    assert chances[True] == pytest.approx(chances[False] * 2 / 5, rel=1e-3)
    between = 1 - (chances[True] + chances[False]) / 2
    assert propose_placement(**asked, target=between).placement.strategy == "hosted"


def test_more_replicas_than_are_usual_are_where_the_search_begins_and_ends():
    proposal = propose_placement(**ASKED, fewest_replicas=8, target=0.0)
    assert proposal.placement.replicas == 8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": 0}, "`nodes` must be from 1 on"),
        (
            {"failures_per_node_per_day": math.nan},
            "`failures_per_node_per_day` must be .* .got nan",
        ),
        (
            {"failures_per_node_per_day": [0.1] * 15 + [math.nan]},
            "`failures_per_node_per_day` must be .* .got nan",
        ),
        ({"memory_bytes": math.nan}, "`memory_bytes` must be .* .got nan"),
        ({"repair_s": math.nan}, "`repair_s` must be .* .got nan"),
        ({"repair_s": math.inf}, "`repair_s` must be .* .got inf"),
        ({"horizon_days": -1.0}, "`horizon_days` must be .* .got -1.0"),
        ({"target": math.nan}, "target=nan"),
        ({"target": 1.0}, "target=1.0"),
        ({"fewest_replicas": 0}, "`fewest_replicas` must be from 1 on"),
        ({"fewest_replicas": 9, "most_replicas": 2}, "most_replicas=2"),
        (
            {"racks": ["a"] * 16, "racks_per_day": {"a": -1}},
            r"`racks_per_day\['a'\]` must be .* .got -1",
        ),
        ({"racks": ["a"] * 16, "racks_per_day": {"b": 1}}, "'b', in which no node is"),
        ({"racks_per_day": {"a": 1}}, "'a', in which no node is"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong, message):
    with pytest.raises(ConfigError, match=message):
        propose_placement(**ASKED | wrong)


def test_what_cannot_be_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match="-1"):
        propose_placement(**ASKED | {"failures_per_node_per_day": -1.0})
    with pytest.raises(ConfigError, match=r"16 \(got 2\)"):
        propose_placement(**ASKED | {"failures_per_node_per_day": [0.1, 0.2]})
    with pytest.raises(CapacityError, match="own shard"):
        propose_placement(**ASKED | {"memory_bytes": 19})
