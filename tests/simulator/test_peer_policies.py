"""Claims about the ways of protection beside the paper's."""

import random
from dataclasses import replace

import pytest

from gemini_lab.simulator import POLICIES, Outage, paper_workload, simulate
from gemini_lab.simulator.peers import drain, resize, shadow
from gemini_lab.simulator.policy import expected_wasted_s, gemini, gemini_lab

PAPER = paper_workload(standbys=2)


def broken(at_s, *positions, kind="hardware"):
    return Outage(at_s=at_s, kind=kind, positions=positions)


def test_every_policy_names_its_source_and_what_it_takes_for_granted():
    made = [make(PAPER) for make in POLICIES]
    assert len({policy.name for policy in made}) == len(POLICIES)
    assert all(policy.source and policy.assumptions for policy in made)


def test_a_gpu_fault_takes_the_machine_but_not_what_its_memory_holds():
    """Both nodes of a group lose a GPU: their memory gives the version, which crashes would not."""
    lost = simulate(PAPER, gemini(PAPER), [broken(30_000.0, 2, 3)], days=1)
    kept = simulate(PAPER, gemini(PAPER), [broken(30_000.0, 2, 3, kind="gpu")], days=1)
    assert lost.recoveries[0].tier == "persistent"
    assert (kept.recoveries[0].tier, kept.recoveries[0].lost_nodes) == ("memory", 2)
    assert kept.recoveries[0].retrieval_s == pytest.approx(gemini(PAPER).peer_s)


def test_this_system_saves_the_papers_serialisation():
    """162 s of Fig. 14's recovery."""
    outages = [broken(30_000.0, 3)]
    paper = simulate(PAPER, gemini(PAPER), outages, days=1).recoveries[0]
    ours = simulate(PAPER, gemini_lab(PAPER), outages, days=1).recoveries[0]
    assert paper.duration_s - ours.duration_s == pytest.approx(162, abs=1)


def test_without_a_standby_a_resized_job_trains_on_and_waits_for_nobody():
    workload = replace(paper_workload(), replacement_s=(6200.0, 6200.0))
    outages = [broken(1000.0, 3)]
    waits = simulate(workload, gemini_lab(workload), outages, days=1)
    goes_on = simulate(workload, resize(workload), outages, days=1)
    assert waits.down_s["reserve"] == pytest.approx(6200.0)
    assert "reserve" not in goes_on.down_s
    assert goes_on.productive_s > waits.productive_s


def test_an_announced_failure_loses_only_the_running_iteration():
    policy = drain(PAPER, announced=1.0)
    [recovery] = simulate(PAPER, policy, [broken(30_000.0, 2, 3)], days=1).recoveries
    assert recovery.tier == "memory"
    assert recovery.lost_s < PAPER.iteration_s
    assert recovery.duration_s == pytest.approx(PAPER.warm_up_s + policy.peer_s)


def test_a_share_of_the_failures_is_announced():
    workload = replace(PAPER, standbys=16)
    outages = [broken(3000.0 * number, number % 16) for number in range(1, 200)]
    outcome = simulate(workload, drain(workload, announced=0.5), outages, days=7)
    quick = sum(
        r.duration_s < workload.detection_s + workload.warm_up_s for r in outcome.recoveries
    )
    assert quick / len(outcome.recoveries) == pytest.approx(0.5, abs=0.15)


def test_of_announced_failures_the_model_expects_the_running_iteration_as_is_simulated():
    policy = drain(PAPER, announced=0.5)
    draw = random.Random(4)
    outages = [broken(20_000.0 * (n + draw.random()), n % 16) for n in range(1, 400)]
    outcome = simulate(PAPER, policy, outages, days=95)
    assert expected_wasted_s(PAPER, policy) in outcome.wasted
    assert expected_wasted_s(PAPER, policy, replaced=False) == pytest.approx(1.5 * 62.0)


def test_nothing_is_read_where_there_is_no_version_yet():
    """A GPU fails in the first iteration: memory can be read, and holds nothing."""
    outcome = simulate(PAPER, gemini(PAPER), [broken(10.0, 3, kind="gpu")], days=0.1)
    assert [(one.tier, one.retrieval_s) for one in outcome.recoveries] == [("start", 0.0)]


def test_shadow_machines_are_counted():
    assert shadow(PAPER).extra_nodes == 2
    assert shadow(PAPER, shadow_nodes=5).extra_nodes == 5
