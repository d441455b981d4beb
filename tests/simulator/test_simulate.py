"""Claims about simulated runs."""

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.placement import plan_placement
from gemini_lab.recovery.wasted_time import wasted_time_s
from gemini_lab.simulator.outages import FailureRate, Outage, poisson_failures
from gemini_lab.simulator.peers import POLICIES, odyssey, resize, shrink
from gemini_lab.simulator.policy import Policy, Stream, gemini, highfreq, strawman
from gemini_lab.simulator.segments import TrainingSegment
from gemini_lab.simulator.simulate import compare, simulate
from gemini_lab.simulator.workload import paper_workload

DAY_S = 86400.0
PAPER = paper_workload(standbys=2)


def hardware(at_s, *positions):
    return Outage(at_s=at_s, kind="hardware", positions=positions)


def perfect(**changes):
    """A policy that loses nothing and costs nothing, but for `changes`."""
    settings = {"name": "perfect", "source": "", "assumptions": "", "persistent_s": 0.0} | changes
    return Policy(**{"persistent": Stream(every=1, delay_s=0.0)} | settings)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_failures_only_the_policys_own_cost_is_lost(policy):
    made = policy(PAPER)
    outcome = simulate(PAPER, made, (), days=10)
    stalls_s = sum(
        int(outcome.versions / s.every) * s.stall_s for s in (made.memory, made.persistent) if s
    )
    training_s = outcome.versions * (PAPER.iteration_s + made.slowdown_s)
    assert training_s + stalls_s == pytest.approx(outcome.wall_s, abs=150)
    assert outcome.lost_s == 0
    assert not outcome.recoveries


def test_highfreq_loses_about_14_percent_even_without_failures():
    """Section 7.3 has 14.5 % as a share of compute; eight iterations of 62 s and 81 s make 14 %."""
    outcome = simulate(PAPER, highfreq(PAPER), (), days=30)
    assert 1 - outcome.effective_ratio == pytest.approx(81 / (8 * 62 + 81), abs=2e-3)


def test_gemini_recovers_one_lost_node_from_memory_in_the_time_of_fig_14():
    """15 s + 162 s + less than 3 s + 253 s, and 1.5 iterations lost on average."""
    outcome = simulate(PAPER, gemini(PAPER), [hardware(1000.0, 3)], days=1)
    [recovery] = outcome.recoveries
    assert recovery.tier == "memory"
    assert recovery.retrieval_s < 3
    assert recovery.duration_s == pytest.approx(430, abs=3)
    assert 62 <= recovery.lost_s <= 2 * 62
    assert outcome.down_s.get("reserve", 0) == 0


def test_without_a_standby_a_machine_takes_four_to_seven_minutes_more():
    """Fig. 14: 11.2 to 14.2 minutes in all."""
    workload = paper_workload()
    for seed in range(5):
        outcome = simulate(workload, gemini(workload), [hardware(1000.0, 3)], days=1, seed=seed)
        assert 670 <= outcome.recoveries[0].duration_s <= 856
        assert 240 <= outcome.down_s["reserve"] <= 420


@pytest.mark.parametrize(("second", "tier"), [(2, "persistent"), (5, "memory")])
def test_a_second_loss_during_recovery_is_fatal_only_in_the_same_group(second, tier):
    """Positions 2 and 3 keep one another's shards; 5 is in another group."""
    outages = [hardware(12_000.0, 3), hardware(12_100.0, second)]
    outcome = simulate(PAPER, gemini(PAPER), outages, days=1)
    [recovery] = outcome.recoveries
    assert (recovery.failures, recovery.lost_nodes, recovery.tier) == (2, 2, tier)


def test_after_the_replacement_holds_its_shards_the_other_node_may_go():
    outages = [hardware(12_000.0, 3), hardware(13_000.0, 2)]
    outcome = simulate(PAPER, gemini(PAPER), outages, days=1)
    assert [recovery.tier for recovery in outcome.recoveries] == ["memory", "memory"]


def test_a_lost_group_falls_back_to_what_the_strawman_has():
    """Section 6.2, case 2: all nodes load the checkpoint of three hours ago."""
    outages = [hardware(30_000.0, 2, 3)]
    ours = simulate(PAPER, gemini(PAPER), outages, days=1).recoveries[0]
    theirs = simulate(PAPER, strawman(PAPER), outages, days=1).recoveries[0]
    assert ours.tier == theirs.tier == "persistent"
    assert ours.version == theirs.version == 2 * 174


def test_a_software_failure_leaves_every_copy_in_place():
    outage = Outage(at_s=5000.0, kind="software", positions=(3,))
    outcome = simulate(PAPER, gemini(PAPER), [outage], days=1)
    [recovery] = outcome.recoveries
    assert (recovery.tier, recovery.retrieval_s, recovery.lost_nodes) == ("memory", 0, 0)


@pytest.mark.parametrize("spread", [True, False])
def test_a_rack_is_survived_where_the_placement_spreads_over_racks(spread):
    racks = [f"r{i // 4}" for i in range(16)]
    placement = plan_placement(nodes=16, racks=racks if spread else None)
    workload = paper_workload(standbys=4)
    outage = Outage(at_s=30_000.0, kind="rack", positions=(4, 5, 6, 7))
    outcome = simulate(workload, gemini(workload), [outage], days=1, placement=placement)
    assert outcome.recoveries[0].tier == ("memory" if spread else "persistent")


def test_the_same_inputs_give_the_same_outcome():
    workload = paper_workload()
    outages = poisson_failures(
        nodes=16, days=30, rate=FailureRate(per_node_per_day=0.2, software_share=0.3), seed=3
    )
    first = compare(workload, outages, days=30, seed=7)
    assert first == compare(workload, outages, days=30, seed=7)
    assert first != compare(workload, outages, days=30, seed=8)


def test_availability_under_recoveries_that_start_anew_is_exp_of_minus_rate_times_duration():
    """Poisson failures at rate r and recoveries of D that any failure restarts take (e^rD - 1)/r.

    Between them training runs 1/r, so that the share of time that it runs is e^-rD.
    """
    workload = replace(PAPER, iteration_s=0.5, idle_spans_s=(), detection_s=0.0, warm_up_s=3600.0)
    rate, days = FailureRate(per_node_per_day=1.0, software_share=1.0), 100
    shares = []
    for seed in range(10):
        outages = poisson_failures(nodes=16, days=days, rate=rate, seed=seed)
        shares.append(simulate(workload, perfect(), outages, days=days).effective_ratio)
    error = statistics.stdev(shares) / math.sqrt(len(shares))
    expected = math.exp(-16 * 3600 / DAY_S)
    assert statistics.mean(shares) == pytest.approx(expected, abs=4 * error)


def test_a_shrunk_cluster_has_as_many_nodes_as_the_machine_repair_model_says():
    """Each machine is away a share rR/(1 + rR) of the time: N independent up-and-down machines."""
    workload = replace(
        paper_workload(), detection_s=0.0, warm_up_s=0.0, replacement_s=(80_000.0, 92_800.0)
    )
    rate = FailureRate(per_node_per_day=0.25)
    policy = replace(shrink(workload), persistent=None)
    ratios = []
    for seed in range(10):
        outages = poisson_failures(nodes=16, days=200, rate=rate, seed=seed)
        outcome = simulate(workload, policy, outages, days=200, seed=seed)
        ratios.append(outcome.productive_s / (outcome.wall_s - outcome.lost_s))
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    assert statistics.mean(ratios) == pytest.approx(1 / 1.25, abs=4 * error)


@pytest.mark.parametrize("policy", [highfreq, strawman, gemini])
def test_mean_wasted_time_is_the_one_of_eq_1(policy):
    """Failures so rare that they do not meet, at times spread evenly over the cycle."""
    made = policy(PAPER)
    stream = made.memory or made.persistent
    assert stream is not None
    outages = poisson_failures(
        nodes=16, days=3000, rate=FailureRate(per_node_per_day=0.01, software_share=1.0), seed=2
    )
    outcome = simulate(PAPER, made, outages, days=3000)
    cycle_s = stream.every * (PAPER.iteration_s + made.slowdown_s) + stream.stall_s
    expected = wasted_time_s(
        checkpoint_s=stream.stall_s + stream.delay_s,
        interval_s=cycle_s,
        retrieval_s=0.0 if made.memory else made.persistent_s,
    )
    found = [recovery.wasted_s for recovery in outcome.recoveries if recovery.at_s > DAY_S]
    assert len(found) > 300
    error = statistics.stdev(found) / math.sqrt(len(found))
    assert statistics.mean(found) == pytest.approx(expected, abs=3 * error)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rate=st.floats(0.01, 8.0),
    policy=st.sampled_from([one for one in POLICIES if one not in {shrink, odyssey, resize}]),
    standbys=st.integers(0, 2),
)
def test_every_second_is_training_that_counts_or_is_lost_or_is_downtime(
    seed, rate, policy, standbys
):
    workload = paper_workload(standbys=standbys)
    made = policy(workload)
    outages = poisson_failures(
        nodes=16, days=5, seed=seed, rate=FailureRate(per_node_per_day=rate, software_share=0.5)
    )
    outcome = simulate(workload, made, outages, days=5, seed=seed)
    start = TrainingSegment(
        version=0, iteration_s=workload.iteration_s + made.slowdown_s, policy=made
    )
    counts_s = start.reached_s(int(outcome.versions)) if outcome.versions >= 1 else 0.0
    total_s = counts_s + outcome.lost_s + sum(outcome.down_s.values())
    stalls_s = sum(s.stall_s for s in start.streams)
    slack_s = start.iteration_s + stalls_s * (1 + len(outcome.recoveries))
    assert total_s == pytest.approx(outcome.wall_s, abs=slack_s)
    assert sum(recovery.failures for recovery in outcome.recoveries) <= outcome.failures


def test_a_recorded_run_tells_iterations_recoveries_and_their_steps():
    outages = [hardware(5000.0, 3), hardware(40_000.0, 8, 9)]
    outcome = simulate(PAPER, gemini(PAPER), outages, days=1, record=True)
    by_kind = {}
    for entry in outcome.events:
        by_kind.setdefault(entry.kind, []).append(entry.event)
    assert [e.at_s for e in outcome.events] == sorted(e.at_s for e in outcome.events)
    assert [planned.tier for planned in by_kind["recovery_planned"]] == ["memory", "persistent"]
    steps = [step for step in by_kind["recovery_step"] if step.recovery == 1]
    assert [step.step for step in steps] == ["detect", "serialise", "retrieve", "warm_up"]
    for finished, recovery in zip(by_kind["recovery_finished"], outcome.recoveries, strict=True):
        assert finished.duration_s == recovery.duration_s
        assert finished.version == recovery.version
    repeated = sum(finished.lost_iterations for finished in by_kind["recovery_finished"])
    assert len(by_kind["iteration"]) == int(outcome.versions) + repeated
    (started,) = by_kind["run_started"]
    assert started.simulated.policy == "Gemini"
    assert len(by_kind["node_joined"]) == PAPER.nodes + PAPER.standbys + len(
        by_kind["node_requested"]
    )


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(5, 19),
    replicas=st.integers(1, 3),
    strategy=st.sampled_from(["auto", "ring", "random"]),
    shrinks=st.booleans(),
)
def test_planning_the_groups_that_lost_something_is_planning_all(
    seed, nodes, replicas, strategy, shrinks
):
    """A recorded run asks the planner about every position, any other one about few."""
    workload = paper_workload(nodes=nodes, standbys=seed % 3)
    placement = plan_placement(nodes=nodes, replicas=replicas, strategy=strategy, seed=seed)
    racks = [f"r{i // 3}" for i in range(nodes)]
    rate = FailureRate(per_node_per_day=2.0, software_share=0.3)
    outages = poisson_failures(
        nodes=nodes, days=2, rate=rate, seed=seed, racks=racks, rack_per_day=0.5
    )
    policy = replace(gemini(workload, replicas=replicas), shrinks=shrinks)
    told, untold = (
        simulate(workload, policy, outages, days=2, placement=placement, seed=seed, record=record)
        for record in (True, False)
    )
    assert replace(told, events=()) == untold


def test_what_cannot_be_simulated_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match=r"strikes \(16,\), but positions are 0 to 15"):
        simulate(PAPER, gemini(PAPER), [hardware(1.0, 16)], days=1)
    with pytest.raises(ConfigError, match=r"placement of its 16 nodes \(got one of 8\)"):
        simulate(PAPER, gemini(PAPER), (), days=1, placement=plan_placement(nodes=8))
    for days in (0, math.inf, math.nan):
        with pytest.raises(ConfigError, match=f"`days` must be above zero.*got {days}"):
            simulate(PAPER, gemini(PAPER), (), days=days)
    for iterations in (-5, 2.5, math.nan):
        with pytest.raises(ConfigError, match=f"`iterations` must be .*got {iterations}"):
            simulate(PAPER, gemini(PAPER), (), days=1, iterations=iterations)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 2.5}, "`nodes`.*2.5"),
        ({"gpus_per_node": 0.5}, "`gpus_per_node`.*0.5"),
        ({"params": math.inf}, "`params`.*inf"),
        ({"detection_s": math.nan}, "`detection_s`.*nan"),
        ({"warm_up_s": -1.0}, "`warm_up_s`.*-1"),
        ({"idle_spans_s": (math.nan,)}, "nan s in all do not fit"),
        ({"iteration_s": math.inf}, "`iteration_s`.*inf"),
        ({"replacement_s": (1.0, math.inf)}, "`replacement_s`.*inf"),
        ({"replacement_s": (3.0, 1.0)}, "`replacement_s`.*3.0, 1.0"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        replace(PAPER, **changes)


def test_a_machine_that_comes_while_a_shrunk_job_recovers_joins_at_once_afterwards():
    """Lost at 1000 s, replaced 100 s later: in the middle of the recovery, of 268 s."""
    workload = replace(paper_workload(), replacement_s=(100.0, 100.0))
    outcome = simulate(workload, shrink(workload), [hardware(1000.0, 3)], days=1)
    assert outcome.down_s["rejoin"] == workload.warm_up_s
    assert outcome.overhead_s < 1000


def test_a_users_own_policy_is_simulated_like_the_others():
    hourly = Policy(
        name="hourly",
        source="a user",
        assumptions="",
        persistent=Stream(every=58, delay_s=481.0, stall_s=81.0),
        persistent_s=481.0,
    )
    first, second = compare(PAPER, [hardware(40_000.0, 3)], days=1, policies=[hourly, strawman])
    assert first.recoveries[0].lost_s < second.recoveries[0].lost_s


@pytest.mark.parametrize("policy", [gemini, strawman])
def test_the_interval_of_one_history_holds_the_mean_of_many_19_times_in_20(policy):
    workload = paper_workload(standbys=4)
    rate = FailureRate(per_node_per_day=0.1)
    outcomes = [
        simulate(
            workload,
            policy(workload),
            poisson_failures(nodes=workload.nodes, days=20, rate=rate, seed=seed),
            days=20,
            seed=seed,
        )
        for seed in range(200)
    ]
    true = statistics.fmean(outcome.effective_ratio for outcome in outcomes)
    held = sum(true in outcome.effective for outcome in outcomes)
    assert held / len(outcomes) == pytest.approx(0.95, abs=0.05)


def test_one_recovery_gives_no_interval():
    outage = Outage(at_s=5000.0, kind="hardware", positions=(3,))
    workload = paper_workload(standbys=1)
    found = simulate(workload, gemini(workload), [outage], days=1).effective
    assert (found.low, found.high) == (0.0, 1.0)
