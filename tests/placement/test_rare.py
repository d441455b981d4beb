"""Claims about losses too rare to be met by trying."""

import itertools
import math

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.placement import (
    Domain,
    loss_probability,
    plan_placement,
    rare_loss_probability,
)

RACKS = tuple(f"r{i // 3}" for i in range(12))
ROWS = tuple(f"row{i // 6}" for i in range(12))


def exact(placement, node_chance, domains):
    """Every state of every domain and node, one by one."""
    units = [(name, d.chance) for d in domains for name in sorted(set(d.names))]
    units += [(node, node_chance) for node in range(placement.nodes)]
    total = 0.0
    for state in itertools.product([False, True], repeat=len(units)):
        weight = math.prod(
            c if failed else 1 - c for (_, c), failed in zip(units, state, strict=True)
        )
        down = {name for (name, _), failed in zip(units, state, strict=True) if failed}
        lost = [
            n
            for n in range(placement.nodes)
            if n in down or any(d.names[n] in down for d in domains)
        ]
        total += 0.0 if placement.survives(lost) else weight
    return total


@pytest.mark.parametrize("strategy", ["ring", "random", "auto"])
def test_nested_domains_give_the_chance_of_an_enumeration(strategy):
    """Six nodes in three racks in two rows: 2048 states; chances of 1 to 20 %."""
    placement = plan_placement(nodes=6, replicas=2, strategy=strategy, seed=1)
    domains = [
        Domain(names=("x", "x", "x", "x", "y", "y"), chance=0.01),
        Domain(names=("a", "a", "b", "b", "c", "c"), chance=0.03),
    ]
    found = rare_loss_probability(placement, node_chance=0.2, domains=domains, trials=20_000)
    error = math.sqrt(found.variance)
    assert found.value == pytest.approx(exact(placement, 0.2, domains), abs=4 * error)
    assert error < 0.01 * found.value


@pytest.mark.parametrize("node_chance", [1e-2, 1e-5, 1e-9])
def test_the_relative_error_stays_small_however_rare_the_loss(node_chance):
    racks = tuple(f"r{i % 10}" for i in range(40))
    placement = plan_placement(nodes=40, replicas=3, racks=racks)
    known = loss_probability(
        placement, node_chance=node_chance, racks=racks, rack_chance=node_chance
    )
    found = rare_loss_probability(
        placement,
        node_chance=node_chance,
        domains=[Domain(names=racks, chance=node_chance)],
        trials=3000,
    )
    assert found.value == pytest.approx(known, rel=0.05)
    assert found.low <= known * 1.02
    assert found.high >= known * 0.98
    assert math.sqrt(found.variance) < 0.02 * found.value


def test_a_thousand_machines_need_few_trials_where_plain_ones_would_need_billions():
    racks = tuple(f"r{i // 20}" for i in range(1000))
    placement = plan_placement(nodes=1000, replicas=3, racks=racks)
    found = rare_loss_probability(
        placement, node_chance=1e-4, domains=[Domain(names=racks, chance=1e-3)], trials=500
    )
    assert 0 < found.low < found.value < found.high < found.bound
    plain_trials = found.value * (1 - found.value) / found.variance
    assert plain_trials > 1e6 * found.trials


def covered(placement, node_chance, trials, seeds=100):
    """How many intervals have the truth in them."""
    known = loss_probability(placement, node_chance=node_chance)
    found = [
        rare_loss_probability(placement, node_chance=node_chance, trials=trials, seed=seed)
        for seed in range(seeds)
    ]
    return sum(one.low <= known <= one.high for one in found)


@pytest.mark.parametrize("trials", [2, 3, 10, 100])
@pytest.mark.parametrize("node_chance", [0.3, 0.01])
def test_intervals_hold_the_truth_for_few_trials_as_for_many(trials, node_chance):
    assert covered(plan_placement(nodes=12, replicas=2), node_chance, trials) >= 90


def test_trials_that_all_count_alike_leave_room_for_what_they_missed():
    """Two pairs of 500 fail together once in 200,000 trials."""
    placement = plan_placement(nodes=1000, replicas=2)
    assert covered(placement, 1e-4, 100, seeds=10) == 10
    found = rare_loss_probability(placement, node_chance=1e-4, trials=100)
    assert found.variance == 0
    assert found.low == pytest.approx(found.value * (1 - 0.036), rel=0.001)
    assert found.high == found.value == found.bound


def test_a_chance_that_is_exact_has_no_width():
    """One set of holders: every trial is the loss of it."""
    found = rare_loss_probability(plan_placement(nodes=3, replicas=3), node_chance=0.1, trials=5)
    assert found.low == found.value == found.high == pytest.approx(1e-3)


def test_what_cannot_fail_is_never_lost():
    placement = plan_placement(nodes=8, replicas=2)
    assert rare_loss_probability(placement, node_chance=0.0).value == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node_chance": 1.5}, "1.5"),
        ({"trials": 1}, "`trials` must be from 2 on"),
        ({"domains": [Domain(names=("a",), chance=0.1)]}, r"12 \(got 1\)"),
        (
            {"domains": [Domain(names=RACKS, chance=0.1), Domain(names=ROWS, chance=0.1)]},
            "lies in both 'r0' and 'r1'",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(changes, message):
    placement = plan_placement(nodes=12, replicas=2)
    with pytest.raises(ConfigError, match=message):
        rare_loss_probability(placement, **{"node_chance": 0.1} | changes)
