"""Claims about how a simulated job goes on without the machines that it lost."""

import itertools
import math
from dataclasses import replace

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.simulator import Outage, paper_workload, simulate
from gemini_lab.simulator.peers import odyssey, shrink
from gemini_lab.simulator.policy import Fallback, select

REROUTE = Fallback(name="reroute", restart_s=10.0, rejoin_s=10.0, groups=4)
RESIZE = Fallback(name="resize", restart_s=200.0, rejoin_s=200.0)


def broken(at_s, *positions):
    return Outage(at_s=at_s, kind="hardware", positions=positions)


def test_rerouting_is_as_slow_as_the_place_that_lost_most_and_resizing_as_nodes_are_fewer():
    """16 nodes, four groups of four: 3 and 7 have the same place in theirs, 3 and 6 have not."""
    assert REROUTE.factor({3}, 16) == pytest.approx(4 / 3)
    assert REROUTE.factor({3, 6}, 16) == pytest.approx(4 / 3)
    assert REROUTE.factor({3, 7}, 16) == pytest.approx(2)
    assert REROUTE.factor({3, 7, 11, 15}, 16) == math.inf
    assert RESIZE.factor({3, 7}, 16) == pytest.approx(16 / 14)
    assert RESIZE.factor(set(range(16)), 16) == math.inf


def test_a_short_absence_is_rerouted_a_long_one_resized_and_a_very_short_one_waited_for():
    chosen = {
        wait_s: select((REROUTE, RESIZE), {3}, 16, wait_s=wait_s, restart_s=5.0)
        for wait_s in (10.0, 300.0, 7200.0)
    }
    assert chosen == {10.0: None, 300.0: REROUTE, 7200.0: RESIZE}


@pytest.mark.parametrize("lost", [{0}, {0, 4}, {1, 2, 3}, {0, 4, 8, 12}])
def test_what_is_selected_costs_least_of_all(lost):
    for wait_s, restart_s in itertools.product((1.0, 60.0, 900.0, 9e4), (1.0, 250.0)):
        way = select((REROUTE, RESIZE), lost, 16, wait_s=wait_s, restart_s=restart_s)
        costs = [one.cost_s(lost, 16, for_s=wait_s) for one in (REROUTE, RESIZE)]
        own = wait_s + restart_s if way is None else way.cost_s(lost, 16, for_s=wait_s)
        assert own == pytest.approx(min([*costs, wait_s + restart_s]))


def test_groups_that_nodes_cannot_be_cut_into_are_refused():
    with pytest.raises(ConfigError, match="divides"):
        replace(REROUTE, groups=5).factor({1}, 16)


def test_a_rerouted_job_starts_in_seconds_and_is_slower_until_a_machine_comes():
    """The paper's job in eight groups of two: its iterations take 8/7 until a machine is there."""
    workload = replace(paper_workload(), replacement_s=(600.0, 600.0))
    outcome = simulate(workload, odyssey(workload), [broken(1000.0, 3)], days=0.09)
    [recovery] = outcome.recoveries
    assert recovery.duration_s == pytest.approx(workload.detection_s + 10)
    assert outcome.down_s["rejoin"] == pytest.approx(10)
    assert outcome.overhead_s == pytest.approx((600 - 15 - 10) / 8, rel=0.03)


def test_a_long_absence_is_worth_a_new_division():
    workload = replace(paper_workload(), replacement_s=(9000.0, 9000.0))
    outcome = simulate(workload, odyssey(workload), [broken(1000.0, 3)], days=0.122)
    [recovery] = outcome.recoveries
    assert recovery.duration_s == pytest.approx(workload.detection_s + workload.warm_up_s)
    assert outcome.overhead_s == pytest.approx((9000 - recovery.duration_s) / 16, rel=0.03)


@pytest.mark.parametrize("hours", [0.05, 0.5, 8.0])
def test_selecting_is_never_worse_than_always_resizing(hours):
    workload = replace(paper_workload(), replacement_s=(hours * 3600, hours * 3600))
    outages = [broken(30_000.0 * number, number % 16) for number in range(1, 28)]
    selects, resizes = (
        simulate(workload, policy(workload), outages, days=10) for policy in (odyssey, shrink)
    )
    assert selects.effective_ratio >= resizes.effective_ratio - 1e-3


def test_with_a_standby_nothing_is_selected():
    workload = paper_workload(standbys=1)
    outcome = simulate(workload, odyssey(workload), [broken(1000.0, 3)], days=0.1)
    assert "rejoin" not in outcome.down_s
    assert outcome.recoveries[0].duration_s >= workload.warm_up_s
