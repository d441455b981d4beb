"""Claims about `plan`."""

import math
from dataclasses import replace

import pytest

from gemini_lab.errors import CapacityError, ConfigError
from gemini_lab.simulator import POLICIES, Price, plan

ASKED = {
    "params": "70B",
    "nodes": 64,
    "network": "400 Gbit/s",
    "store": "20 Gbit/s",
    "failures_per_node_per_day": 0.015,
}


@pytest.fixture(scope="module")
def answer():
    return plan(**ASKED)


def test_sizes_and_times_follow_from_what_was_given(answer):
    """12 bytes a parameter, 64 shards, two replicas in two buffers, 60 % of 400 Gbit/s."""
    assert answer.workload.checkpoint_bytes == 840 * 10**9
    assert answer.workload.shard_bytes == 840 * 10**9 / 64
    assert answer.memory_needed_bytes == 4 * answer.workload.shard_bytes
    assert answer.checkpoint_s == pytest.approx(840e9 / 64 / 30e9)
    assert answer.checkpoint_s < answer.workload.idle_s
    assert answer.schedule.delay_s == pytest.approx(0, abs=1e-6)
    assert answer.recovery_probability[1] == 1
    assert answer.recovery_probability[2] == pytest.approx(1 - 1 / 63)


def test_every_policy_gets_a_forecast_and_simulation_agrees_with_eq_1(answer):
    assert len(answer.forecasts) == len(POLICIES)
    for forecast in answer.forecasts:
        if not forecast.policy.shrinks:
            assert forecast.simulated_wasted.mean == pytest.approx(forecast.wasted_s, rel=0.15)
    ratio = {f.policy.name: f.effective.mean for f in answer.forecasts}
    assert ratio["Gemini"] > ratio["HighFreq"] > ratio["Strawman"]


def test_costs_count_the_machines_that_wait_and_those_that_only_checkpoint(answer):
    """64 nodes, one standby, and eight shadow machines where Checkmate wants them."""
    by_name = {forecast.policy.name: forecast for forecast in answer.forecasts}
    assert by_name["Gemini"].bill.idle_share == pytest.approx(1 / 65)
    assert by_name["Checkmate"].bill.idle_share == pytest.approx(9 / 73)
    cost = by_name["Checkmate"].cost_per_hour
    assert cost.mean == pytest.approx(73 / 64 / by_name["Checkmate"].effective.mean)
    assert cost.low < cost.mean < cost.high
    shown, half = {row[0]: row[-1] for row in answer.rows()}["Checkmate"].split(" ± ")
    assert float(shown) == pytest.approx(cost.mean, rel=1e-3)
    assert float(half) == pytest.approx(cost.half_width, rel=0.5)


def test_a_cost_without_an_end_has_no_interval(answer):
    nothing = replace(
        answer.forecasts[0], outcomes=(replace(answer.forecasts[0].outcome, productive_s=0.0),)
    )
    assert replace(answer, forecasts=(nothing,)).rows()[0][-1] == "inf"
    paid = plan(**ASKED, price=Price(node=10.0, extra=1.0))
    checkmate = next(f for f in paid.forecasts if f.policy.name == "Checkmate")
    assert checkmate.bill.cost == pytest.approx(24 * paid.days * (65 * 10 + 8 * 1))


def test_the_tornado_puts_failures_and_warm_up_first_and_the_store_last(answer):
    """Gemini's failures cost detection, warm-up and an iteration and a half; not the store."""
    found = answer.sensitivity(histories=2)
    assert [one.name for one in found[:2]] == ["failures", "warm-up"]
    by_name = {one.name: one for one in found}
    assert by_name["failures"].halved.mean > 0 > by_name["failures"].doubled.mean
    assert by_name["store"].swing < by_name["detection"].swing < by_name["warm-up"].swing


def test_the_planners_own_m_meets_the_target(answer):
    assert answer.proposal.met
    assert answer.proposal.placement.replicas == 2
    assert plan(**ASKED, target=0.9999999).proposal.placement.replicas == 3


def test_every_number_that_was_not_given_is_named(answer):
    text = str(answer)
    assert "give `iteration_s`" in text
    assert "give `idle_s`" in text
    for forecast in answer.forecasts:
        assert forecast.policy.assumptions in text
    given = str(plan(**ASKED, iteration_s=30.0, idle_s=3.0))
    assert "give `iteration_s`" not in given
    assert "give `idle_s`" not in given


def test_every_row_of_the_table_keeps_its_columns(answer):
    table = str(answer).split("\n\n")[1].splitlines()
    assert len(table) == 1 + len(POLICIES)
    assert {len(row) for row in table} == {100}


def test_a_slow_network_shows_in_the_iteration():
    slow = plan(**ASKED | {"network": "5 Gbit/s"}, iteration_s=30.0, idle_s=3.0)
    assert slow.checkpoint_s > slow.workload.idle_s
    assert slow.schedule.delay_s > 0
    assert dict(slow.facts())["it lengthens its iteration"] != "no"


def test_where_replicas_cost_too_much_they_are_sent_more_rarely():
    asked = ASKED | {"network": "5 Gbit/s", "iteration_s": 30.0, "idle_s": 3.0}
    always, rarely = plan(**asked, max_overhead=None), plan(**asked, max_overhead=0.05)
    assert always.schedule.every_iterations == 1
    assert rarely.schedule.every_iterations > 1
    assert rarely.schedule.mean_iteration_s <= 30.0 * 1.05
    ratios = [
        next(f.effective.mean for f in each.forecasts if f.policy.name == "Gemini")
        for each in (always, rarely)
    ]
    assert ratios[0] < ratios[1]


def test_one_replica_saves_no_lost_node():
    answer = plan(**ASKED | {"replicas": 1})
    gemini = next(f for f in answer.forecasts if f.policy.name == "Gemini")
    assert answer.recovery_probability[1] == 0
    assert "memory" not in gemini.outcome.by_tier
    assert gemini.outcome.wasted_s == pytest.approx(gemini.wasted_s, rel=0.15)


def test_a_single_node_can_be_asked_about():
    assert plan(**ASKED | {"nodes": 1, "params": "1B", "replicas": 1}).workload.nodes == 1


def test_no_failures_waste_nothing():
    answer = plan(**ASKED | {"failures_per_node_per_day": 0.0})
    assert all(each.outcome.failures == 0 for each in answer.forecasts)
    assert all(each.simulated_wasted is None for each in answer.forecasts)
    assert {row[2] for row in answer.rows()} == {"no recovery"}
    assert "0.0 ± 0.0" not in str(answer)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"memory": "40 GB"}, CapacityError, "2 replicas need 48.9 GiB"),
        ({"replicas": 65}, ConfigError, r"replicas=65 needs at least 65 nodes \(got 64\)"),
        ({"network": "0 Gbit/s"}, ConfigError, "above zero"),
        ({"store": 0}, ConfigError, "above zero"),
        ({"failures_per_node_per_day": -0.1}, ConfigError, "-0.1"),
        ({"params": "big"}, ConfigError, "'big'"),
        ({"params": -1.0}, ConfigError, "-1"),
        ({"iteration_s": 3.0, "idle_s": 4.0}, ConfigError, "do not fit"),
        ({"gpus_per_node": 0}, ConfigError, "gpus_per_node"),
        ({"standbys": -1}, ConfigError, "`standbys` must be from 0 on.*got -1"),
        ({"standbys": 1.5}, ConfigError, "`standbys` must be from 0 on: a whole"),
        ({"failures_per_node_per_day": math.nan}, ConfigError, "`failures_per_node_per_day`.*nan"),
        ({"failures_per_node_per_day": math.inf}, ConfigError, "`failures_per_node_per_day`.*inf"),
        ({"failures_per_node_per_day": 1e6}, ConfigError, "24 at most"),
        ({"idle_s": math.nan}, ConfigError, "`idle_s`.*nan"),
        ({"iteration_s": math.inf}, ConfigError, "`iteration_s`.*inf"),
        ({"params": math.nan}, ConfigError, "`params`.*nan"),
        ({"params": None}, ConfigError, "`params`.*None"),
        ({"memory": math.nan}, ConfigError, "nan"),
        ({"store": math.inf}, ConfigError, "finite"),
        ({"nodes": "16"}, ConfigError, "`nodes`.*'16'"),
        ({"nodes": 2.5}, ConfigError, "`nodes`.*2.5"),
        ({"replicas": 1.5}, ConfigError, "`replicas`.*1.5"),
    ],
)
def test_the_impossible_is_refused_with_the_numbers(changes, error, message):
    with pytest.raises(error, match=message):
        plan(**ASKED | changes)


def test_a_notebook_gets_tables_with_heads_and_code_as_code(answer):
    shown = answer._repr_html_()
    assert '<th scope="col">cost</th>' in shown
    assert "<code>iteration_s</code>" in shown
    assert "paid node-hours" in shown
    assert "`" not in shown
