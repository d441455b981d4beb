"""Claims about where the time of a simulated run goes."""

import re
from collections import Counter

import pytest

from gemini_lab.display import picture
from gemini_lab.simulator import compare, opt_175b, paper_workload, poisson_failures
from gemini_lab_bench.figures import time_use


@pytest.fixture(scope="module")
def outcomes():
    workload = paper_workload(nodes=100, standbys=1)
    outages = poisson_failures(nodes=100, days=10, rate=opt_175b(), seed=3)
    return compare(workload, outages, days=10)


def test_the_parts_of_each_run_add_up_to_its_length(outcomes):
    totals: Counter[str] = Counter()
    for point in time_use.figure(outcomes, title="ten days").points:
        assert point.origin == "simulation"
        totals[str(point.x)] += point.y
    assert totals == {o.policy.name: pytest.approx(100) for o in outcomes}


def test_the_first_part_is_the_effective_ratio(outcomes):
    points = time_use.figure(outcomes, title="ten days").points
    counts = [p.y for p in points if p.series == "training that counts"]
    assert counts == [pytest.approx(100 * o.effective_ratio) for o in outcomes]


def test_it_is_drawn_with_its_unit_and_without_totals_that_are_all_alike(outcomes):
    pytest.importorskip("matplotlib")
    svg = picture(time_use.figure(outcomes, title="ten days")).svg()
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert any(label.endswith(" %") for label in labels)
    assert "100 %" not in labels


def test_losses_alone_are_what_the_effective_ratio_leaves(outcomes):
    losses: Counter[str] = Counter()
    for point in time_use.figure(outcomes, title="ten days", losses_only=True).points:
        losses[str(point.x)] += point.y or 0.0
    assert losses == {o.policy.name: pytest.approx(100 * (1 - o.effective_ratio)) for o in outcomes}
