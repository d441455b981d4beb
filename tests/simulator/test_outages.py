"""Claims about simulated failures."""

import math

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.simulator.outages import (
    LLAMA_3_COUNTS,
    FailureRate,
    Outage,
    llama_3,
    opt_175b,
    poisson_failures,
    read_trace,
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at_s": math.nan}, "`at_s`.*nan"),
        ({"at_s": -5}, "`at_s`.*-5"),
        ({"kind": "fire"}, "'fire'"),
        ({"positions": ()}, r"positions \(\)"),
        ({"iteration": math.inf}, "`iteration`.*inf"),
        ({"kind": "wrong_sums"}, "'wrong_sums'"),
    ],
)
def test_a_failure_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Outage(**{"at_s": 1.0, "kind": "hardware", "positions": (1,), **changes})


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1])
def test_a_rate_that_cannot_be_is_refused(value):
    with pytest.raises(ConfigError, match=f"`per_node_per_day`.*{value}"):
        FailureRate(per_node_per_day=value)
    with pytest.raises(ConfigError, match=f"software_share={value}"):
        FailureRate(per_node_per_day=1.0, software_share=value)
    with pytest.raises(ConfigError, match=f"`days`.*{value}"):
        poisson_failures(nodes=4, days=value, rate=opt_175b())


def test_llama_3s_interruptions_add_up_to_419():
    assert sum(count for _, count, _ in LLAMA_3_COUNTS) == 419
    assert llama_3().per_node_per_day == pytest.approx(419 / 54 / 2048)


def test_opt_175b_loses_about_1_5_percent_of_its_machines_a_day():
    """Section 2.1."""
    assert opt_175b().per_node_per_day == pytest.approx(0.015, abs=3e-4)


def test_a_history_has_as_many_failures_as_its_rate_says_and_repeats():
    rate = FailureRate(per_node_per_day=0.5, software_share=0.25)
    history = poisson_failures(nodes=100, days=40, rate=rate, seed=1)
    assert len(history) == pytest.approx(2000, abs=4 * 2000**0.5)
    software = sum(outage.kind == "software" for outage in history)
    assert software == pytest.approx(500, abs=4 * 500**0.5)
    assert history == poisson_failures(nodes=100, days=40, rate=rate, seed=1)
    assert [outage.at_s for outage in history] == sorted(outage.at_s for outage in history)


def test_a_rack_fails_with_all_its_nodes():
    racks = ["a", "a", "b", "b", "b"]
    history = poisson_failures(
        nodes=5, days=50, rate=FailureRate(per_node_per_day=0), racks=racks, rack_per_day=0.2
    )
    assert {outage.positions for outage in history} == {(0, 1), (2, 3, 4)}
    with pytest.raises(ConfigError, match="`racks`"):
        poisson_failures(nodes=5, days=1, rate=opt_175b(), rack_per_day=0.1)


def test_causes_come_as_often_as_they_were_counted():
    history = poisson_failures(nodes=16_384, days=54, rate=llama_3(), seed=5)
    gpu = sum(outage.cause == "GPU" for outage in history) / len(history)
    assert gpu == pytest.approx(148 / 419, abs=0.035)


def test_a_trace_is_read_in_order_of_time(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("time,node,kind,cause\n90,2,software,bug\n30,1,rack,switch\n")
    first, second = read_trace(path, nodes=4, racks=["a", "b", "b", "a"])
    assert (first.at_s, first.kind, first.positions, first.cause) == (30, "rack", (1, 2), "switch")
    assert (second.at_s, second.kind, second.positions, second.cause) == (
        90,
        "software",
        (2,),
        "bug",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,node\n1,2\n", r"lacks the column\(s\) \['kind'\]"),
        ("time,node,kind\nsoon,2,software\n", "line 2: time and node"),
        ("time,node,kind\n1,4,software\n", "nodes are 0 to 3"),
        ("time,node,kind\nnan,1,software\n", "time nan"),
        ("time,node,kind\n1,1,fire\n", "'fire'"),
        ("time,node,kind\n1,1,rack\n", "`racks` is not given"),
    ],
)
def test_a_trace_that_cannot_be_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_trace(path, nodes=4)
