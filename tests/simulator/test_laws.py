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
        ({"burst_size": 0.5}, "burst_size=0.5"),
        ({"offenders": (0.0, 0.5)}, r"offenders.*\(0.0, 0.5\)"),
    ],
)
def test_a_law_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        FailureLaw(rate=RATE, **changes)


def test_rates_need_one_entry_a_node():
    with pytest.raises(ConfigError, match="nodes=3, 2 rates"):
        failures_by_law(FailureLaw(rate=RATE), nodes=3, days=1, rates_per_day=[0.1, 0.1])
