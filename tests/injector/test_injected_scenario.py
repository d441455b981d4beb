"""Claims about scenarios: written by hand, drawn, saved, and fired one by one."""

import json
import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.injector import (
    FAILURES,
    BitFlip,
    Failure,
    LinkCut,
    NodeFreeze,
    NodeLoss,
    NodesLoss,
    Planned,
    RackLoss,
    RootLoss,
    Scenario,
    StoreFull,
    WorkerCrash,
    WorkerHang,
    WrongSums,
    read_failure,
)
from gemini_lab.injector.scenario import Pace

EVERY_KIND = (
    WorkerCrash("rank-2"),
    WorkerHang("node-1"),
    NodeLoss("node-2"),
    NodeFreeze("node-3"),
    RootLoss(),
    NodesLoss(("node-0", "rank-1")),
    RackLoss("rack-a"),
    LinkCut("root"),
    LinkCut("rank-1", to="node-2"),
    BitFlip("node-1", 3),
    WrongSums("rank-1", "optimizer", lasts=False),
    StoreFull(),
)
places = st.one_of(
    st.builds("node-{}".format, st.integers(0, 99)),
    st.builds("rank-{}".format, st.integers(0, 99)),
    st.just("root"),
)
failures = st.one_of(
    st.builds(WorkerCrash, places),
    st.builds(BitFlip, places, st.none() | st.integers(0, 9)),
    st.builds(
        WrongSums,
        places,
        st.sampled_from(["gradient", "activation", "optimizer"]),
        st.booleans(),
        st.none() | st.integers(0, 9),
    ),
    st.builds(NodesLoss, st.lists(places, min_size=1, max_size=4, unique=True).map(tuple)),
    st.builds(RackLoss, st.from_regex("[a-z0-9 ]{1,5}", fullmatch=True)),
    st.just(StoreFull()),
)
planned = st.one_of(
    st.builds(Planned, failure=failures, iteration=st.integers(0, 100)),
    st.builds(Planned, failure=failures, at_s=st.floats(0, 1e6)),
)
scenarios = st.builds(
    Scenario, seed=st.integers(0, 9), planned=st.lists(planned, max_size=5).map(tuple)
)


def test_every_kind_of_failure_survives_json():
    assert {failure.kind for failure in EVERY_KIND} == set(FAILURES)
    for failure in EVERY_KIND:
        assert Failure.from_json(json.loads(json.dumps(failure.to_json()))) == failure


@given(scenarios)
def test_a_scenario_survives_json(scenario):
    assert Scenario.from_json(json.loads(json.dumps(scenario.to_json()))) == scenario


def test_a_scenario_survives_a_file_that_people_can_read(tmp_path):
    scenario = Scenario(seed=7).lose(node=2, iteration=4).add(RootLoss(), at_s=1.5)
    scenario.save(tmp_path / "scenario.json")

    assert Scenario.load(tmp_path / "scenario.json") == scenario
    assert json.loads((tmp_path / "scenario.json").read_text()) == {
        "seed": 7,
        "failures": [
            {"iteration": 4, "kind": "node_loss", "node": "node-2"},
            {"at_s": 1.5, "kind": "root_loss"},
        ],
    }


def test_the_builders_add_in_order():
    scenario = (
        Scenario(seed=7)
        .crash(rank=1, iteration=3)
        .lose(node="node-2", iteration=4)
        .lose(node=[0, 1], at_s=9.0)
    )

    assert [entry.failure for entry in scenario.planned] == [
        WorkerCrash("rank-1"),
        NodeLoss("node-2"),
        NodesLoss(("node-0", "node-1")),
    ]
    assert str(scenario).splitlines()[1:] == [
        "iteration 4: node loss node-2",
        "9 s: nodes loss node-0 node-1",
    ]


def test_a_failure_comes_once_when_its_moment_has_come():
    scenario = Scenario().lose(node=2, iteration=4).crash(rank=0, at_s=10.0)

    none, scenario = scenario.due(iteration=3, elapsed_s=9.9)
    first, scenario = scenario.due(iteration=5, elapsed_s=9.9)  # iteration 4 was never looked at
    second, scenario = scenario.due(iteration=4, elapsed_s=10.0)  # after a recovery

    assert none == ()
    assert first == (NodeLoss("node-2"),)
    assert second == (WorkerCrash("rank-0"),)
    assert scenario.planned == ()


@given(scenarios, st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1e6))))
def test_every_failure_comes_exactly_once(scenario, looks):
    came = []
    rest = scenario
    for iteration, elapsed_s in [*looks, (100, 1e6)]:
        coming, rest = rest.due(iteration=iteration, elapsed_s=elapsed_s)
        came += coming

    assert sorted(map(str, came)) == sorted(str(entry.failure) for entry in scenario.planned)


def test_a_random_scenario_is_the_same_for_the_same_seed():
    def draw(seed):
        return Scenario.random(
            seed, ranks=4, duration_s=1e4, rate_per_s=0.01, kinds=list(FAILURES), racks=["a", "b"]
        )

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    draw(3).check(nodes=4, ranks=4, racks=["a", "b"])
    assert {entry.failure.kind for entry in draw(3).planned} == set(FAILURES)


def test_random_failures_come_at_the_rate_that_was_asked_for():
    """Poisson: 1,000 expected, so 1,000 +- 5 x 32."""
    by_clock = Scenario.random(1, ranks=8, duration_s=1e5, rate_per_s=0.01)
    by_iteration = Scenario.random(1, ranks=8, iterations=10_000, mean_iterations=10)

    assert 840 < len(by_clock.planned) < 1160
    assert 840 < len(by_iteration.planned) < 1160
    assert all(0 <= entry.iteration < 10_000 for entry in by_iteration.planned)


def test_random_failures_strike_anywhere_within_an_iteration():
    """Eq. (1) takes them as uniform; at iterations' ends every failure would lose the same."""
    drawn = Scenario.random(1, ranks=8, iterations=10_000, mean_iterations=10).planned
    parts = [entry.iteration % 1 for entry in drawn]
    assert 0.46 < fmean(parts) < 0.54
    assert min(parts) < 0.02
    assert max(parts) > 0.98
    scenario = Scenario(planned=drawn)
    assert Scenario.from_json(scenario.to_json()).planned == drawn


def test_a_failure_within_an_iteration_waits_for_its_part():
    pace = Pace()
    scenario = Scenario().crash(rank=0, iteration=2.5)
    pace.end(1, at_s=10.0)
    assert pace.at(99.0) == 1  # no length is known yet
    pace.end(2, at_s=14.0)
    assert not scenario.due(iteration=pace.at(15.9), elapsed_s=0.0)[0]
    assert scenario.due(iteration=pace.at(16.1), elapsed_s=0.0)[0]
    assert 2.99 < pace.at(99.0) < 3  # a long iteration is not over
    pace.end(1, at_s=100.0)  # rolled back
    assert pace.at(102.0) == 1.5


def test_a_scenario_names_only_what_a_lab_has():
    there = {"nodes": 2, "ranks": 2, "racks": ["a"]}
    Scenario().lose(node=1, iteration=1).add(RackLoss("a"), at_s=1).check(**there)
    Scenario().lose(node=99, iteration=1).check(**there)  # a machine that replaced a lost one

    with pytest.raises(ConfigError, match="node-0 to node-1, and later machines count on to 99"):
        Scenario().lose(node=100, iteration=1).check(**there)
    with pytest.raises(ConfigError, match="'rank-2', which is not there; ranks go from 0 to 1"):
        Scenario().crash(rank=2, iteration=1).check(**there)
    with pytest.raises(ConfigError, match="'b', which is not there; racks are a"):
        Scenario().add(RackLoss("b"), iteration=1).check(**there)
    with pytest.raises(ConfigError, match="the lab has no racks"):
        Scenario().add(RackLoss("b"), iteration=1).check(nodes=2, ranks=2)


def drawn(**changes):
    """Failures by iteration."""
    return Scenario.random(1, **{"ranks": 2, "iterations": 10, "mean_iterations": 5.0, **changes})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: NodeLoss("nod-2"), "names no place"),
        (lambda: NodesLoss(()), "different nodes"),
        (lambda: NodesLoss(("node-1", "node-1")), "different nodes"),
        (lambda: BitFlip("node-1", -1), "from 0 on"),
        (lambda: WrongSums("node-1", "loss"), "one of gradient, activation, optimizer"),
        (lambda: Scenario().lose(node=1), "not both"),
        (lambda: Scenario().lose(node=1, iteration=1, at_s=1.0), "not both"),
        (lambda: Scenario().lose(node=1, iteration=-1), "`iteration` must be from 0 on"),
        (lambda: Scenario().lose(node=1, iteration=math.inf), "`iteration` must be from 0 to"),
        (lambda: Scenario().lose(node=1, at_s=math.nan), "`at_s` must be from 0 on"),
        (lambda: drawn(mean_iterations=math.nan), "`mean_iterations`.*nan"),
        (lambda: drawn(iterations=math.inf), "`iterations`.*inf"),
        (lambda: drawn(ranks=2.5), "`ranks`.*2.5"),
        (lambda: Scenario.random(1, ranks=2), "a random scenario needs"),
        (
            lambda: Scenario.random(1, ranks=2, duration_s=1.0, rate_per_s=0.0),
            "above zero",
        ),
        (
            lambda: Scenario.random(1, ranks=2, duration_s=1.0, rate_per_s=1.0, kinds=["fire"]),
            "choose kinds from",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot read a scenario"),
        ("[]", "a list"),
        ('{"fails": []}', "'failures'"),
        ('{"failures": [{"kind": "fire", "iteration": 1}]}', "failure number 0.*'fire'"),
        (
            '{"failures": [{"kind": "node_loss", "iteration": 1}]}',
            "node_loss takes node .got nothing",
        ),
        ('{"failures": [{"kind": "root_loss"}]}', "failure number 0.*say when"),
        ('{"failures": [{"kind": "root_loss", "iteration": "x"}]}', "failure number 0"),
        ('{"failures": [{"kind": "node_loss", "node": 2, "at_s": 1}]}', "failure number 0"),
        ('{"failures": [7]}', "failure number 0"),
    ],
)
def test_a_broken_file_is_refused_with_the_place_of_the_fault(tmp_path, text, says):
    path = tmp_path / "scenario.json"
    path.write_text(text)

    with pytest.raises(ConfigError, match=says):
        Scenario.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read a scenario"):
        Scenario.load(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("node_loss", []), "node_loss needs to be told where; write a node's name like node-2"),
        (("nodes_loss", []), "nodes_loss needs to be told where; write a node's name"),
        (("rack_loss", []), "rack_loss needs to be told where; write the rack's name after it"),
        (("root_loss", ["node-2"]), r"root_loss takes no place \(got 1: node-2\)"),
        (("node_loss", ["node-1", "node-2"]), r"takes one place \(got 2: node-1 node-2\)"),
        (("link_cut", ["root", "node-1", "node-2"]), "link_cut takes two places at most"),
        (("node_loss", ["node-1"], 3), "'shard' does not go with node_loss; leave it out"),
        (("fire", ["node-1"]), "no failure is called 'fire'; choose from worker_crash"),
    ],
)
def test_words_that_make_no_failure_are_refused_in_words(words, says):
    with pytest.raises(ConfigError, match=says):
        read_failure(*words)


def test_words_make_the_failure_that_they_name():
    assert read_failure("nodes_loss", ["node-1", "root"]) == NodesLoss(("node-1", "root"))
    assert read_failure("link_cut", ["node-1", "rank-0"]) == LinkCut("node-1", "rank-0")
    assert read_failure("rack_loss", ["a", "b"]) == RackLoss("a b")
    assert read_failure("bit_flip", ["node-1"], 2) == BitFlip("node-1", 2)
