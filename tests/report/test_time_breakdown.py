"""Every second of a run explained: the parts add up, and each is what the log told of it."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from told_runs import ToldRun, with_a_drain, with_one_loss

from gemini_lab.log import events
from gemini_lab.log.file import read_line
from gemini_lab.report import build_report
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables.time_breakdown import TimeShares, paint, spent
from gemini_lab.report.text import render_spent
from gemini_lab.simulator import Outage, paper_workload, simulate
from gemini_lab.simulator.policy import gemini
from gemini_lab_course.recorded import FOLDER

ENDS = ("run_started", "run_finished")


def spent_of(run: ToldRun, *, now_s: float | None = None) -> TimeShares:
    reducer = RunReducer()
    reducer.extend(run.entries)
    return spent(reducer, now_s=now_s)


def parts(table: TimeShares) -> dict[str, float]:
    return {row.part: round(row.seconds, 3) for row in table.rows}


def test_a_run_with_a_loss_is_explained_to_the_second() -> None:
    """Nine iterations of 1 s and the moment before the failure's version; then steps as told."""
    assert parts(spent_of(with_one_loss())) == {
        "training": 12.0,
        "redo": 0.125,
        "detect": 0.5,
        "start": 1.0,
        "retrieve": 2.0,
        "warm_up": 1.5,
        "other": pytest.approx(11 * 0.125, abs=1e-3),
    }


def test_a_run_without_a_version_loses_progress_from_its_first_iteration_on() -> None:
    run = ToldRun().protect()
    run.now_s += 4.0
    run.iterate(1, duration_s=1.0).iterate(2, duration_s=1.0).fail("node-1", known=2)
    table = spent_of(run.plan(None, tier="start").give_up("no luck"))
    assert table.seconds("redo") == pytest.approx(2.0, abs=0.01)
    assert table.seconds("first_start") == pytest.approx(4.0, abs=0.3)


def test_no_recovery_counts_as_progress_that_a_later_failure_lost() -> None:
    """A bug strikes anew in each try; no version comes between, and each try loses its own."""
    run = ToldRun().protect().train(1, 5).iterate(6)
    for _ in range(3):
        run.crash(0, known=6).plan(5).resume(5).protect()
        run.now_s += 0.25
    run.give_up("the same error again")
    lost_s = [each.lost_progress_s for each in build_report(run.entries).recoveries]
    # Up to where it was noticed: an exit tells of itself 0.5 s before.
    assert lost_s == pytest.approx([1.0 + 0.125 + 0.5, 0.25 + 0.5, 0.25 + 0.5])
    assert spent_of(run).seconds("redo") == pytest.approx(sum(lost_s))


def test_an_older_version_loses_what_was_made_since_but_not_the_failures_in_between() -> None:
    """Version 2 is in storage: 3 to 9 go, less a recovery and what its failure had lost."""
    run = ToldRun().protect().train(1, 8).persist(2).iterate(9)
    run.crash(0, known=9).plan(8).resume(8).train(9, 10)
    run.fail("node-0", "node-1", known=10)
    run.plan(2, tier="persistent", members=["node-4", "node-5", "node-2", "node-3"])
    run.resume(2, tier="persistent").protect().train(3, 11).finish(11)
    first, second = build_report(run.entries).recoveries
    assert first.lost_progress_s == pytest.approx(1.0 + 0.125 + 0.5)
    assert second.lost_progress_s == pytest.approx(6 * 1.125 + 2 * 1.125)
    both_s = first.lost_progress_s + second.lost_progress_s
    assert spent_of(run).seconds("redo") == pytest.approx(both_s)


def test_detection_that_a_recovery_tells_as_a_step_is_detection() -> None:
    """As simulated runs do, in which nobody injects anything."""
    workload = paper_workload(nodes=4, standbys=1)
    outage = Outage(at_s=900.0, positions=(1,), kind="hardware")
    told = simulate(workload, gemini(workload), [outage], days=1 / 24, record=True).events
    reducer = RunReducer()
    reducer.extend(told)
    assert spent(reducer).seconds("detect") == pytest.approx(workload.detection_s)


def test_waiting_for_a_version_is_exposed_and_not_training() -> None:
    run = ToldRun().protect()
    for number in range(1, 5):
        run.iterate(number, duration_s=1.0, waited_s=0.25)
    assert parts(spent_of(run.finish(4))) == {"training": 3.0, "exposed": 1.0}


@pytest.mark.parametrize("cause", ["node_lost", events.DRAIN])
def test_what_ends_without_ranks_is_no_failure_that_somebody_has_yet_to_notice(cause: str) -> None:
    """A node that has left and a standby are taken away; nothing is down until node-1 fails."""
    run = with_a_drain()
    run.say(events.Injected(failure="node_loss"), node="node-2")
    run.say(events.Injected(failure="node_loss"), node="node-5")
    run.train(9, 20).fail(*["node-1"][: cause != events.DRAIN], known=20, cause=cause)
    run.plan(20, members=["node-0", "node-6", "node-4", "node-3"]).resume(20, known_lost=0)
    assert spent_of(run).seconds("detect") == (0.5 if cause == "node_lost" else 0.0)
    newest = build_report(run.entries).recoveries[-1]
    assert [one.node for one in newest.injections] == ["node-1"][: cause != events.DRAIN]


def test_waiting_for_machines_grows_while_the_run_waits() -> None:
    run = ToldRun().protect().train(1, 3).fail("node-1", known=3)
    run.say_root(events.RecoveryWaiting, epoch=2, missing=(1,), reason="no machine")
    assert spent_of(run, now_s=run.now_s + 40).seconds("waiting") == pytest.approx(40.0)
    run.now_s += 60
    run.plan(3, members=["node-0", "node-4", "node-2", "node-3"])
    assert spent_of(run).seconds("waiting") == pytest.approx(60.0)


def test_the_first_start_lasts_until_the_first_iteration_begins() -> None:
    run = ToldRun()
    run.now_s += 7
    assert parts(spent_of(run, now_s=run.now_s)) == {"first_start": 7.0}
    assert parts(spent_of(run.protect().iterate(1).finish(1))) == {
        "first_start": 7.0,
        "training": 1.0,
    }


def test_a_run_that_has_not_begun_has_nothing_to_explain() -> None:
    assert spent(RunReducer()) == TimeShares(rows=(), wall_s=0.0)


spans = st.lists(st.tuples(st.floats(-5, 15), st.floats(-5, 15)), max_size=8).map(
    lambda pairs: np.array([sorted(pair) for pair in pairs], np.float64).reshape(-1, 2)
)


@given(st.lists(spans, max_size=4))
def test_no_moment_counts_twice_and_a_later_layer_hides_an_earlier_one(layers) -> None:
    lengths_s = paint(layers, 0.0, 10.0)
    assert sum(lengths_s) <= 10.0 + 1e-9
    if layers:  # the last is hidden by none
        assert lengths_s[-1] == pytest.approx(sum(paint([layers[-1]], 0.0, 10.0)))
    everything = np.array([[-1.0, 11.0]])
    assert sum(paint([everything, *layers], 0.0, 10.0)) == pytest.approx(10.0)
    assert paint([*layers, everything], 0.0, 10.0)[-1] == pytest.approx(10.0)


@pytest.mark.parametrize("name", ["four_failures", "six_failures"])
def test_a_recorded_run_is_explained_within_1_percent(name) -> None:
    """Real logs: the parts add up to the wall time, and nearly nothing is left unexplained."""
    lines = gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes()).splitlines()
    run = RunReducer()
    run.extend(entry for line in lines if (entry := read_line(line)) is not None)
    table = spent(run)
    told = [entry["at_s"] for entry in map(json.loads, lines) if entry["kind"] in ENDS]
    assert table.wall_s == pytest.approx(told[1] - told[0])
    assert sum(row.seconds for row in table.rows) == pytest.approx(table.wall_s)
    assert table.share("other") < 0.01
    text = render_spent(table)
    assert all(row.label in text for row in table.rows)
    everything = TimeShares(wall_s=100.0, rows=(replace(table.rows[0], seconds=100.0),))
    assert max(map(len, render_spent(everything).splitlines())) <= 80
