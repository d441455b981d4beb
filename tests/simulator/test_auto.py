"""Claims about copies that follow the risk where few machines cause most of the failures."""

import random
from dataclasses import replace

import pytest

from gemini_lab.placement import plan_placement
from gemini_lab.simulator import FailureRate, paper_workload, poisson_failures, simulate
from gemini_lab.simulator.peers import gemini_lab_auto
from gemini_lab.simulator.policy import gemini_lab
from gemini_lab.simulator.training import Training

DAYS = 60.0
WORKLOAD = replace(paper_workload(standbys=0), nodes=32, replacement_s=(7200.0, 14400.0))
OFFENDERS = 4
FAILURES_PER_DAY = 0.15 * WORKLOAD.nodes


def repeat_offenders(seed):
    """An eighth of the nodes, anywhere, causes four fifths of the failures."""
    places = random.Random(seed).sample(range(WORKLOAD.nodes), WORKLOAD.nodes)
    found = []
    for share, nodes in ((0.8, places[:OFFENDERS]), (0.2, places[OFFENDERS:])):
        rate = FailureRate(per_node_per_day=share * FAILURES_PER_DAY / len(nodes))
        drawn = poisson_failures(
            nodes=len(nodes), days=DAYS, rate=rate, seed=2 * seed + (share < 0.5)
        )
        found += [replace(one, positions=(nodes[one.positions[0]],)) for one in drawn]
    return sorted(found, key=lambda outage: outage.at_s)


def went_through(policy, outages):
    """How often memory did not suffice, and the copies of a shard in the mean at the end."""
    first = plan_placement(nodes=WORKLOAD.nodes, replicas=policy.replicas)
    training = Training(WORKLOAD, policy, first, seed=1, recorder=None, iterations=None)
    outcome = training.outcome(outages, longest_s=DAYS * 86400)
    losses = sum(one.tier == "persistent" for one in outcome.recoveries)
    return losses, sum(training.run.cluster.placement.loads) / WORKLOAD.nodes


def test_under_repeat_offenders_copies_on_the_risk_lose_less_than_two_and_are_below_three():
    """Machines come after hours."""
    counted = {"two": 0, "auto": 0}
    for seed in range(3):
        outages = repeat_offenders(seed)
        counted["two"] += went_through(gemini_lab(WORKLOAD), outages)[0]
        lost, copies = went_through(gemini_lab_auto(WORKLOAD, target=0.9), outages)
        counted["auto"] += lost
        assert 2 < copies < 3
    assert counted["auto"] <= counted["two"] / 3


def test_where_nothing_fails_nothing_is_placed_anew():
    lost, copies = went_through(gemini_lab_auto(WORKLOAD), [])
    assert (lost, copies) == (0, 2.0)


def test_no_node_keeps_more_than_it_has_room_for():
    outages = repeat_offenders(1)
    policy = gemini_lab_auto(WORKLOAD, target=0.999999, fits=3)
    first = plan_placement(nodes=WORKLOAD.nodes, replicas=2)
    training = Training(WORKLOAD, policy, first, seed=1, recorder=None, iterations=None)
    training.outcome(outages, longest_s=DAYS * 86400)
    assert max(training.run.cluster.placement.loads) == 3


def test_the_same_history_gives_the_same_outcome_again():
    outages = repeat_offenders(2)
    policy = gemini_lab_auto(WORKLOAD, target=0.9)
    once, again = (simulate(WORKLOAD, policy, outages, days=DAYS) for _ in range(2))
    assert once.recoveries == again.recoveries
    assert once.lost_s == pytest.approx(again.lost_s)
