"""The `control` bench: what it refuses, what it counts, and what must not grow with the agents."""

import argparse

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab_bench.benches.control import _growth, add_options, bench, measure
from gemini_lab_bench.rows import Row
from gemini_lab_bench.world.world import WorldShape


@pytest.mark.parametrize("agents", ["10,many", "2", "10,,100", "20000"])
def test_sizes_that_cannot_be_measured_are_refused(agents: str) -> None:
    with pytest.raises(ConfigError, match=r"--agents .* give numbers from 3 to 10000"):
        bench(2, agents=agents, workers_per_node=1, parts=False)


def test_a_quantity_that_two_sizes_tell_grows_with_a_power() -> None:
    rows = [Row("etcd", (n / 100,), settings={"agents": n}) for n in (10, 100, 1000)]
    (found,) = _growth([*rows[:2], Row("etcd", (), why_not="the time was over")])
    assert found.name == "etcd: grows with the agents to the power"
    assert found.value == pytest.approx(1.0)
    assert [*_growth(rows[:1])] == []


def test_real_agents_start_train_and_lose_a_node_and_the_root_agent() -> None:
    cost = measure(0, WorldShape(nodes=4, standbys=2, has_tier=False))
    for use in (cost.start, cost.iterations, cost.node_lost, cost.root_lost):
        assert use.root_s > 0
        assert use.to_root["words_said"] > 0
    for use in (cost.start, cost.node_lost, cost.root_lost):
        assert use.from_root["start_workers"] > 0
        assert use.to_root["inventory"] > 0
    assert not cost.iterations.from_root  # while training goes on, the root agent only listens


def test_nobody_is_told_more_because_there_are_more_nodes() -> None:
    """Else a thousand nodes that each hear of a thousand are what breaks first."""
    few, many = (
        measure(0, WorldShape(nodes=nodes, standbys=2, has_tier=False)) for nodes in (12, 48)
    )
    for phase in ("iterations", "node_lost", "root_lost"):
        before, after = getattr(few, phase), getattr(many, phase)
        for way in ("to_root", "from_root"):
            assert getattr(after, way).total() / 48 <= 1.25 * getattr(before, way).total() / 12
        assert after.messages[True] / 48 <= 1.1 * before.messages[True] / 12
    assert many.state_bytes < 1.25 * few.state_bytes


def test_it_prints_a_table_of_each_size() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    rows = bench(1, **vars(parser.parse_args(["--agents", "3,4", "--parts"])))
    assert {row.settings.get("agents") for row in rows if row.settings} == {3, 4}
    assert any(row.name.startswith("start: start_workers") for row in rows)
