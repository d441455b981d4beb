"""Claims about failures that are not all alike."""

import math
import statistics
from itertools import pairwise

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.simulator import REPEAT_OFFENDERS, FailureLaw, FailureRate, failures_by_law

RATE = FailureRate(per_node_per_day=0.05)
DAY_S = 86_400.0


@pytest.mark.parametrize(
    "law",
    [
        FailureLaw(rate=RATE),
        FailureLaw(rate=RATE, shape=0.7),
        FailureLaw(rate=RATE, shape=3.0),
        FailureLaw(rate=RATE, offenders=REPEAT_OFFENDERS),
        FailureLaw(rate=RATE, burst_size=3.0),
    ],
    ids=["exponential", "infant", "ageing", "offenders", "bursts"],
)
def test_every_law_has_the_mean_number_of_failures_of_its_rate(law):
    """200 nodes, 100 days, 0.05 a day: 1000; a geometric burst of mean 3 varies five times more."""
    counts = [len(failures_by_law(law, nodes=200, days=100, seed=seed)) for seed in range(6)]
    spread = math.sqrt(1000 * (2 * law.burst_size - 1) * max(1.0, law.shape**-2) / len(counts))
    assert statistics.mean(counts) == pytest.approx(1000, abs=4 * spread)


@pytest.mark.parametrize(
    ("law", "nodes", "days"),
    [
        (FailureLaw(rate=RATE, shape=0.3), 200, 20),
        (FailureLaw(rate=RATE, shape=20.0), 200, 20),
        (FailureLaw(rate=RATE, burst_size=10.0), 4, 1000),
    ],
    ids=["clumps", "clockwork", "bursts larger than the cluster"],
)
def test_no_law_has_more_or_fewer_failures_than_its_rate(law, nodes, days):
    """200 failures in each of 40 histories; what they vary by is measured."""
    counts = [len(failures_by_law(law, nodes=nodes, days=days, seed=seed)) for seed in range(40)]
    error = statistics.stdev(counts) / math.sqrt(len(counts))
    assert statistics.mean(counts) == pytest.approx(200, abs=4 * error)
    assert error < 20  # or the mean says nothing


@pytest.mark.parametrize("shape", [0.5, 20.0])
def test_a_history_begins_anywhere_in_each_machines_life(shape):
    """As many failures in its first days as in its last, and no peaks in between."""
    law = FailureLaw(rate=RATE, shape=shape)
    days = [0] * 8
    for seed in range(30):
        for outage in failures_by_law(law, nodes=100, days=40, seed=seed):
            days[int(outage.at_s / DAY_S / 5)] += 1
    variance = 5 if shape < 1 else 1  # of a count, for one failure makes the next likelier
    assert days == [pytest.approx(750, abs=5 * math.sqrt(750 * variance)) for _ in days]


def test_offenders_cause_their_share_with_bursts_too():
    """Half of all failures, on 3 of 63 nodes; and no node twice in a burst."""
    rate = FailureRate(per_node_per_day=0.05)
    law = FailureLaw(rate=rate, offenders=REPEAT_OFFENDERS, burst_size=5.0, burst_s=1.0)
    by_offenders = failures = 0
    for seed in range(30):
        rates = law.rates_per_day(63, seed=seed)
        history = failures_by_law(law, nodes=63, days=60, seed=seed)
        by_offenders += sum(rates[one.positions[0]] == max(rates) for one in history)
        failures += len(history)
        for earlier, later in pairwise(history):
            assert later.at_s - earlier.at_s > 1 or earlier.positions != later.positions
    assert by_offenders / failures == pytest.approx(0.5, abs=0.05)
    assert failures == pytest.approx(30 * 63 * 60 * 0.05, rel=0.12)


def test_three_of_63_nodes_cause_half_of_the_failures():
    law = FailureLaw(rate=FailureRate(per_node_per_day=0.2), offenders=REPEAT_OFFENDERS)
    history = failures_by_law(law, nodes=63, days=200, seed=4)
    struck = [outage.positions[0] for outage in history]
    worst = sorted((struck.count(node) for node in range(63)), reverse=True)
    assert sum(worst[:3]) / len(struck) == pytest.approx(0.5, abs=0.05)
    assert worst[3] < worst[2] / 3


@pytest.mark.parametrize("shape", [0.7, 1.0, 2.5])
def test_times_between_a_nodes_failures_vary_as_weibull_says(shape):
    law = FailureLaw(rate=FailureRate(per_node_per_day=1.0), shape=shape)
    history = failures_by_law(law, nodes=1, days=4000, seed=3)
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(history)]
    mean = math.gamma(1 + 1 / shape)
    variation = math.sqrt(math.gamma(1 + 2 / shape) - mean**2) / mean
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.12)


def test_a_burst_strikes_neighbours_within_its_time():
    law = FailureLaw(rate=FailureRate(per_node_per_day=1e-3), burst_size=4.0, burst_s=60.0)
    history = failures_by_law(law, nodes=1000, days=60, seed=1)
    after = {
        later.positions[0] - earlier.positions[0]
        for earlier, later in pairwise(history)
        if later.at_s - earlier.at_s < 60
    }
    assert {1, 2} <= after
    assert all(abs(step) < 40 for step in after)


def test_each_node_may_have_a_rate_of_its_own():
    law = FailureLaw(rate=RATE)
    history = failures_by_law(law, nodes=3, days=300, rates_per_day=[0.0, 1.0, 0.0], seed=2)
    assert {outage.positions for outage in history} == {(1,)}
    assert len(history) == pytest.approx(300, abs=4 * 300**0.5)
    assert history == failures_by_law(law, nodes=3, days=300, rates_per_day=[0, 1.0, 0], seed=2)


def test_the_share_of_gpu_faults_is_the_one_that_was_asked_for():
    rate = FailureRate(per_node_per_day=0.5, software_share=0.2, gpu_share=0.6)
    history = failures_by_law(FailureLaw(rate=rate), nodes=100, days=40, seed=9)
    kinds = [outage.kind for outage in history]
    assert kinds.count("gpu") / len(kinds) == pytest.approx(0.6, abs=0.05)
    assert kinds.count("software") / len(kinds) == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": 0.0}, "shape=0.0"),
        ({"shape": 0.2}, r"0\.3 and 20.*shape=0.2"),
        ({"shape": math.nan}, "shape=nan"),
        ({"burst_size": 0.5}, "`burst_size` must be from 1 on"),
        ({"burst_size": math.inf}, "`burst_size` must be"),
        ({"burst_s": math.inf}, "`burst_s` must be"),
        ({"offenders": (0.0, 0.5)}, r"offenders.*\(0.0, 0.5\)"),
        ({"offenders": (0.5,)}, r"offenders.*\(0.5,\)"),
    ],
)
def test_a_law_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        FailureLaw(rate=RATE, **changes)


def test_rates_need_one_entry_a_node():
    law = FailureLaw(rate=RATE)
    with pytest.raises(ConfigError, match="nodes=3, 2 rates"):
        failures_by_law(law, nodes=3, days=1, rates_per_day=[0.1, 0.1])
    with pytest.raises(ConfigError, match="one rate from 0"):
        failures_by_law(law, nodes=2, days=1, rates_per_day=[0.1, math.nan])
    with pytest.raises(ConfigError, match="`days` must be"):
        failures_by_law(law, nodes=2, days=math.inf)
