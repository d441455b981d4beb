"""Claims about machines that are slow or compute wrong, beside small calculations of their own."""

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.simulator import Ailments, Outage, paper_workload, read_trace, simulate
from gemini_lab.simulator.policy import Policy, Stream

DAY_S = 86_400.0
WORK = replace(
    paper_workload(standbys=2), iteration_s=60.0, idle_spans_s=(), detection_s=15.0, warm_up_s=100.0
)


def policy(**changes):
    """Every version in memory at once, and nothing that costs anything, but for `changes`."""
    given = {"name": "ours", "source": "", "assumptions": "", "persistent_s": 0.0, "replicas": 2}
    return Policy(
        **{**given, "persistent": None, "memory": Stream(every=1, delay_s=0.0), **changes}
    )


def slow(at_s, *, factor, lasts_s, position=3):
    return Outage(
        at_s=at_s, kind="straggler", positions=(position,), factor=factor, lasts_s=lasts_s
    )


def wrong(at_s, *, found_s=None, position=3):
    return Outage(at_s=at_s, kind="wrong_sums", positions=(position,), lasts_s=found_s)


def walked(stragglers, *, until_s, every, stall_s, slowdown_s):
    """When each version is computed, found by walking from one change of the pace to the next."""
    changes = sorted({o.at_s for o in stragglers} | {o.at_s + o.lasts_s for o in stragglers})
    now_s, version, ends_s = 0.0, 0, []
    while True:
        left = 1.0
        while left > 1e-12:
            factor = max(
                (o.factor for o in stragglers if o.at_s <= now_s < o.at_s + o.lasts_s), default=1.0
            )
            pace_s = factor * WORK.iteration_s + slowdown_s
            next_s = min((c for c in changes if c > now_s), default=math.inf)
            if now_s + left * pace_s <= next_s:
                now_s, left = now_s + left * pace_s, 0.0
            else:
                left, now_s = left - (next_s - now_s) / pace_s, next_s
        version += 1
        if now_s > until_s:
            return ends_s
        ends_s.append(now_s)
        now_s += stall_s if version % every == 0 else 0.0


straggler = st.builds(
    slow,
    st.floats(0.0, 9000.0),
    factor=st.floats(1.05, 6.0),
    lasts_s=st.floats(1.0, 4000.0),
    position=st.integers(0, 15),
)


@settings(max_examples=150, deadline=None)
@given(
    stragglers=st.lists(straggler, max_size=5, unique_by=lambda o: o.positions),
    crash_s=st.floats(500.0, 9999.0),
    every=st.integers(1, 5),
    stall_s=st.floats(0.0, 90.0),
    delay_s=st.floats(0.0, 200.0),
    slowdown_s=st.floats(0.0, 5.0),
)
def test_a_pace_that_changes_amid_iterations_is_what_walking_through_them_gives(
    *, stragglers, crash_s, every, stall_s, delay_s, slowdown_s
):
    stream = Stream(every=every, delay_s=delay_s, stall_s=stall_s)
    crash = Outage(at_s=crash_s, kind="software", positions=(1,))
    outcome = simulate(
        WORK, policy(memory=stream, slowdown_s=slowdown_s), [*stragglers, crash], days=1
    )
    ends_s = walked(
        stragglers, until_s=crash_s, every=every, stall_s=stall_s, slowdown_s=slowdown_s
    )
    whole = [
        version
        for version, end_s in enumerate(ends_s, start=1)
        if version % every == 0 and end_s + stall_s + delay_s <= crash_s
    ]
    expected = max(whole, default=0)
    [recovery] = outcome.recoveries
    if all(
        abs(ends_s[v - 1] + stall_s + delay_s - crash_s) > 1e-6 for v in range(1, len(ends_s) + 1)
    ):
        assert recovery.version == expected
        reached_s = ends_s[expected - 1] if expected else 0.0
        assert recovery.lost_s == pytest.approx(crash_s - reached_s, abs=1e-6)


def test_all_wait_for_a_machine_that_is_slow_as_long_as_it_is():
    """1000 s at 60 s an iteration, 3000 s at 150, the rest of 9640 s at 60 again."""
    outcome = simulate(
        WORK, policy(), [slow(1000.0, factor=2.5, lasts_s=3000.0)], days=9640 / DAY_S
    )
    assert outcome.versions == pytest.approx(1000 / 60 + 3000 / 150 + 5640 / 60)
    assert (outcome.failures, outcome.recoveries, outcome.lost_s) == (1, (), 0.0)


def test_two_slow_machines_cost_what_the_slower_one_does():
    both = [
        slow(0.0, factor=2.0, lasts_s=None, position=1),
        slow(0.0, factor=3.0, lasts_s=1800.0, position=2),
    ]
    outcome = simulate(WORK, policy(), both, days=3600 / DAY_S)
    assert outcome.versions == pytest.approx(1800 / 180 + 1800 / 120)


def test_a_run_that_ends_by_iterations_takes_what_a_slow_machine_adds():
    outcome = simulate(
        WORK, policy(), [slow(300.0, factor=2.0, lasts_s=240.0)], days=1, iterations=10
    )
    assert outcome.wall_s == pytest.approx(10 * 60 + 240 / 2)


def test_a_slow_machine_that_is_lost_slows_no_longer():
    loss = Outage(at_s=1200.0, kind="hardware", positions=(3,))
    outcome = simulate(WORK, policy(), [slow(0.0, factor=2.0, lasts_s=None), loss], days=1)
    training_s = DAY_S - sum(outcome.down_s.values())
    assert outcome.versions == pytest.approx(1200 / 120 + (training_s - 1200) / 60)


def test_a_slow_machine_is_exchanged_after_its_time_and_costs_the_running_iteration():
    """Slow at 1000 s, out at 1600: 16 2/3 and 5 iterations are done, 2/3 of one is lost."""
    outcome = simulate(
        WORK, policy(drains_slow_s=600.0), [slow(1000.0, factor=2.0, lasts_s=None)], days=1
    )
    [recovery] = outcome.recoveries
    assert (recovery.version, recovery.lost_nodes, recovery.tier) == (21, 1, "memory")
    assert recovery.lost_s == pytest.approx(2 / 3 * 120)
    assert outcome.down_s["detect"] == 0


def test_one_that_is_fast_again_in_time_is_kept():
    outcome = simulate(
        WORK, policy(drains_slow_s=600.0), [slow(1000.0, factor=2.0, lasts_s=599.0)], days=1
    )
    assert outcome.recoveries == ()


def test_random_stragglers_slow_a_job_as_an_endless_queue_says():
    """How many are slow is Poisson with mean N r T: none of them for e^-NrT of the time."""
    ailments = Ailments(stragglers_per_node_per_day=0.2, factor=2.0, slow_s=6 * 3600.0)
    work = replace(paper_workload(nodes=16), iteration_s=30.0, idle_spans_s=())
    ratios = [
        simulate(work, policy(), ailments.outages(nodes=16, days=400, seed=s), days=400).versions
        * 30
        / (400 * DAY_S)
        for s in range(8)
    ]
    idle = math.exp(-16 * 0.2 / 4)
    expected = idle + (1 - idle) / 2
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    assert statistics.mean(ratios) == pytest.approx(expected, abs=4 * error + 0.004)


# -- wrong sums ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(at_s=st.floats(1.0, 20_000.0), every=st.integers(1, 40))
def test_verification_takes_a_machine_out_and_goes_back_to_what_was_verified(at_s, every):
    """Counted version by version: which is the first bad one, which verification sees it."""
    bad = next(v for v in range(1, 1000) if 60.0 * v > at_s + 1e-9)
    seen = next(v for v in range(bad, 1000) if v % every == 0)
    sound = max(v for v in range(bad) if v % every == 0)
    outcome = simulate(WORK, policy(verify_every=every), [wrong(at_s)], days=1)
    [recovery] = outcome.recoveries
    assert recovery.at_s == pytest.approx(60.0 * seen)
    assert (recovery.version, recovery.lost_nodes) == (sound, 1)
    assert recovery.lost_s == pytest.approx(60.0 * (seen - sound))
    assert outcome.down_s["detect"] == 0
    assert outcome.versions == pytest.approx(
        (DAY_S - sum(outcome.down_s.values()) - recovery.lost_s) / 60
    )


def test_verification_trusts_no_version_of_the_store_that_is_newer_than_what_was_verified():
    """It finds in iteration 12 that sums are wrong, not since when: 10 is sound, 8 is verified."""
    ours = policy(verify_every=4, persistent=Stream(every=10, delay_s=0.0))
    [found] = simulate(WORK, ours, [wrong(10.5 * 60)], days=0.1).recoveries
    assert (found.at_s, found.version, found.tier) == (12 * 60, 8, "memory")
    ours = replace(ours, persistent=Stream(every=4, delay_s=0.0), memory=None)
    [found] = simulate(WORK, ours, [wrong(10.5 * 60)], days=0.1).recoveries
    assert (found.version, found.tier) == (8, "persistent")


def test_what_only_people_find_goes_back_to_the_store():
    """Wrong from version 101 on, found at 16,000 s: 50 and 100 are sound, 150 to 250 are not."""
    store = Stream(every=50, delay_s=30.0)
    outcome = simulate(WORK, policy(persistent=store), [wrong(6010.0, found_s=9990.0)], days=1)
    [recovery] = outcome.recoveries
    assert (recovery.at_s, recovery.tier, recovery.version) == (16_000.0, "persistent", 100)
    assert recovery.lost_s == pytest.approx(16_000 - 100 * 60)


def test_without_a_sound_version_training_begins_anew():
    outcome = simulate(WORK, policy(), [wrong(6010.0, found_s=1000.0)], days=1)
    [recovery] = outcome.recoveries
    assert (recovery.tier, recovery.version) == ("start", 0)
    assert recovery.lost_s == pytest.approx(7010.0)


def test_what_nobody_finds_does_not_count():
    outcome = simulate(WORK, policy(), [wrong(6010.0)], days=0.5)
    assert outcome.versions == 100
    assert outcome.lost_s == pytest.approx(DAY_S / 2 - 6000)


def test_verification_does_not_find_what_a_machine_spoilt_that_has_gone():
    """Wrong from version 101 on; lost, amid 103, before 110 is verified; people find it later."""
    loss = Outage(at_s=6150.0, kind="hardware", positions=(3,))
    store = Stream(every=50, delay_s=30.0)
    outcome = simulate(
        WORK,
        policy(verify_every=10, persistent=store),
        [wrong(6010.0, found_s=10_000.0), loss],
        days=1,
    )
    first, second = outcome.recoveries
    assert (first.version, first.lost_nodes) == (102, 1)
    assert (second.at_s, second.version, second.lost_nodes) == (16_010.0, 100, 0)


def test_a_fall_back_to_before_it_ends_the_matter_with_the_machine():
    """Positions 2 and 3 keep one another's shards: both lost, only the store's 100 is left."""
    loss = Outage(at_s=6150.0, kind="hardware", positions=(2, 3))
    store = Stream(every=50, delay_s=30.0)
    outcome = simulate(
        WORK, policy(persistent=store), [wrong(6010.0, found_s=10_000.0), loss], days=1
    )
    [recovery] = outcome.recoveries
    assert (recovery.tier, recovery.version) == ("persistent", 100)


def test_a_machine_that_is_still_there_spoils_what_is_done_again():
    """A crash takes training back to 102, which is bad as well: 110 is verified, 100 was sound."""
    crash = Outage(at_s=6150.0, kind="software", positions=(5,))
    store = Stream(every=50, delay_s=30.0)
    outcome = simulate(
        WORK, policy(verify_every=10, persistent=store), [wrong(6010.0), crash], days=1
    )
    first, second = outcome.recoveries
    assert (first.version, second.version, second.lost_nodes) == (102, 100, 1)


def test_what_is_done_again_on_it_is_bad_from_its_first_version_on():
    """Wrong from 150 on; a lost group takes training back to 100, so 101 is bad already."""
    loss = Outage(at_s=9100.0, kind="hardware", positions=(4, 5))
    outcome = simulate(
        WORK, policy(persistent=Stream(every=100, delay_s=30.0)), [wrong(8950.0), loss], days=1
    )
    assert [recovery.version for recovery in outcome.recoveries] == [100]
    assert outcome.versions == 100


def test_machines_that_become_slow_or_wrong_during_a_recovery_are_so_after_it():
    """From 1000 to 1115 s training stands still; 20 is the first verified iteration after 16."""
    crash = Outage(at_s=1000.0, kind="software", positions=(5,))
    ailing = [slow(1050.0, factor=2.0, lasts_s=None), wrong(1060.0, position=4)]
    outcome = simulate(WORK, policy(verify_every=20), [crash, *ailing], days=1)
    first, second = outcome.recoveries
    assert first.duration_s == 115
    assert (second.at_s, second.version) == (pytest.approx(1115 + 4 * 120), 16)


@pytest.mark.parametrize(
    "changes",
    [
        {"slow_s": 0.0},
        {"slow_s": -1.0},
        {"factor": 0.5},
        {"factor": math.nan},
        {"found_s": math.inf},
        {"wrong_per_node_per_day": math.nan},
    ],
)
def test_ailments_that_cannot_be_are_refused(changes):
    [name] = changes
    with pytest.raises(ConfigError, match=f"`{name}` must be above|`{name}` must be from"):
        Ailments(**changes)
    with pytest.raises(ConfigError, match="`nodes` must be from 1 on"):
        Ailments().outages(nodes=0, days=3)


def test_ailments_come_as_often_as_was_asked_and_repeat():
    ailments = Ailments(
        stragglers_per_node_per_day=0.05, wrong_per_node_per_day=0.02, slow_s=None, found_s=None
    )
    history = ailments.outages(nodes=100, days=200, seed=3)
    assert sum(o.kind == "straggler" for o in history) == pytest.approx(1000, abs=4 * 1000**0.5)
    assert sum(o.kind == "wrong_sums" for o in history) == pytest.approx(400, abs=4 * 400**0.5)
    assert {o.lasts_s for o in history} == {None}
    assert history == ailments.outages(nodes=100, days=200, seed=3)
    assert history != ailments.outages(nodes=100, days=200, seed=4)


def test_a_trace_may_have_both(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("time,node,kind,factor,lasts\n30,1,straggler,2.5,600\n90,2,wrong_sums,,\n")
    first, second = read_trace(path, nodes=4)
    assert (first.kind, first.factor, first.lasts_s) == ("straggler", 2.5, 600)
    assert (second.kind, second.factor, second.lasts_s) == ("wrong_sums", 1.0, None)
    path.write_text("time,node,kind,factor\n30,1,straggler,0.5\n")
    with pytest.raises(ConfigError, match=r"line 2: a straggler.*factor=0\.5"):
        read_trace(path, nodes=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "straggler"}, "factor=1.0"),
        ({"kind": "hardware", "factor": 2.0}, "got a hardware with factor=2.0"),
        ({"kind": "straggler", "factor": 2.0, "lasts_s": 0.0}, "more than 0 s"),
        ({"kind": "wrong_sums", "positions": (1, 2)}, r"one machine \(got positions \(1, 2\)\)"),
    ],
)
def test_an_ailment_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Outage(**{"at_s": 0.0, "positions": (1,), **changes})
