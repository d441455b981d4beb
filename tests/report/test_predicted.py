"""Claims about runs beside their predictions, on recorded logs of two real runs of one job.

Two nodes with three standbys on one machine of two busy cores trained a tiny GPT for 34 and for 27
iterations, and lost workers and nodes by a scenario each. Chunks, collectives and remarks are left
out of the logs.
"""

import gzip
import json
from dataclasses import replace

import pytest
from told_runs import ToldRun

from gemini_lab.cli.main import main
from gemini_lab.errors import ConfigError
from gemini_lab.injector import Scenario
from gemini_lab.log import events
from gemini_lab.report import load_measured, measure, predict
from gemini_lab.report.predicted import failures_of, lines
from gemini_lab.report.reducer import FOR_REPORT, RunReducer
from gemini_lab.simulator import (
    Outage,
    Workload,
    outages_of,
    paper_workload,
    replay,
    simulate,
)
from gemini_lab.simulator.policy import gemini
from gemini_lab_course.recorded import FOLDER

PLAYED = Scenario.load(FOLDER / "four_failures.json")  # by which `four_failures` was played
ITERATIONS = 27


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of each recorded run, by name."""
    below = tmp_path_factory.mktemp("runs")
    folders = {}
    for packed in FOLDER.glob("*.jsonl.gz"):
        folder = below / packed.name.removesuffix(".jsonl.gz")
        folder.mkdir()
        (folder / "events.jsonl").write_bytes(gzip.decompress(packed.read_bytes()))
        folders[folder.name] = folder
    return folders


@pytest.fixture(scope="module")
def reduced(runs):
    return {name: RunReducer.load(runs[name], keep=FOR_REPORT) for name in runs}


def test_a_log_tells_its_job_and_the_times_of_each_kind_of_failure(runs):
    measured = load_measured(runs["six_failures"])
    assert (measured.nodes, measured.standbys, measured.replicas) == (2, 3, 2)
    assert measured.checkpoint_bytes == 2 * 4026624
    times = measured.times
    assert {kind: len(steps) for kind, steps in times.recoveries.items()} == {
        "worker_crash": 3,
        "node_loss": 3,
    }
    assert times.replacement is not None
    assert times.replacement.samples_s == pytest.approx((2.81, 4.78, 5.22), abs=0.01)
    assert times.spread("start").mean_s > 10 * times.spread("retrieve").mean_s
    assert times.version.mean_s < times.iteration.mean_s


def test_failures_strike_in_a_simulation_where_they_struck_in_the_run(reduced):
    outages = failures_of(reduced["four_failures"])
    played = outages_of(PLAYED, Workload.from_log(measure(reduced["six_failures"])))
    assert [outage.failure for outage in outages] == [outage.failure for outage in played]
    for outage, planned in zip(outages, played, strict=True):
        assert planned.iteration <= outage.iteration < planned.iteration + 0.1


def test_a_scenario_simulated_with_another_runs_times_takes_what_it_took(reduced):
    """Total time within 5 %, each phase within what was predicted for 95 % of runs."""
    workload = Workload.from_log(measure(reduced["six_failures"]))
    played = replay(workload, outages_of(PLAYED, workload), iterations=ITERATIONS)
    found = predict(reduced["four_failures"], learned=reduced["six_failures"])
    assert played.total.mean == pytest.approx(found.total.measured_s, rel=0.05)
    assert abs(found.error) < 0.05
    outside = [row.label for row in found.rows if row.is_inside is False]
    assert not outside
    assert sum(row.measured_s for row in found.rows) == pytest.approx(found.total.measured_s)


@pytest.mark.parametrize("name", ["six_failures", "four_failures"])
def test_the_model_alone_errs_by_less_than_2_percent(reduced, name):
    """With a run's own times put in, what is left is the model's error."""
    found = predict(reduced[name])
    assert abs(found.error) < 0.02
    assert found.effective.mean == pytest.approx(found.measured_effective, abs=0.02)
    assert found.effective.low <= found.effective.mean <= found.effective.high
    assert list(lines(found))[-1].endswith("this very run: its times are put in")
    other = next(row for row in found.rows if row.label == "other")
    assert abs(other.measured_s) < 0.01 * found.total.measured_s


def test_a_failure_before_the_first_iteration_is_no_part_of_what_came_after():
    """It delayed the start: its recovery's 4.5 s are none of those that six iterations took."""
    told = ToldRun(nodes=2, standbys=1).protect().fail("node-1", known=0).step("fence", 1.0)
    told.plan(None, tier="start", members=["node-0", "node-2"]).step("start", 3.0)
    told.step("warm_up", 1.0)
    told.now_s -= 1.0
    told.iterate(1)
    told.say_root(events.RecoveryFinished, epoch=2, iteration=1, duration_s=5.5)
    run = RunReducer(keep=FOR_REPORT)
    run.extend(told.complete(1).train(2, 6).finish(6).entries)
    found = predict(run)
    assert failures_of(run) == ()
    assert found.total.predicted.mean == pytest.approx(6.0)
    parts = {row.label: pytest.approx(row.measured_s) for row in found.rows if row.measured_s}
    assert parts == {"training": 6.0, "other": 5 * 0.125}


def test_of_a_run_that_resumed_only_what_it_trained_itself_is_simulated(runs, tmp_path, reduced):
    """The same log, as if 100 iterations had been done before it."""
    lines = []
    for text in (runs["four_failures"] / "events.jsonl").read_text().splitlines():
        entry = json.loads(text)
        for name in {"iteration", "version", "next_version"} & entry.keys():
            entry[name] = 100 + (entry[name] or 0)
        lines.append(json.dumps(entry))
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    resumed = RunReducer.load(tmp_path, keep=FOR_REPORT)
    assert failures_of(resumed) == failures_of(reduced["four_failures"])
    assert predict(resumed).total == predict(reduced["four_failures"]).total


def test_the_command_prints_simulated_beside_measured(runs, capsys):
    learned = str(runs["six_failures"])
    assert main(["report", str(runs["four_failures"]), "--predict", learned]) == 0
    text = capsys.readouterr().out
    assert "Simulated and measured" in text
    assert "times from the log of six_failures" in text
    assert "effective training time ratio" in text
    assert "this very run" not in text


def test_a_prediction_says_what_its_log_does_not(reduced):
    found = predict(reduced["four_failures"])
    assert not found.assumed
    told = "\n".join(lines(replace(found, assumed=("a machine takes 240 s",))))
    assert "assumed: a machine takes 240 s" in told


def test_a_run_of_another_job_is_not_learned_from(reduced):
    workload = paper_workload(standbys=1)
    outage = Outage(at_s=5000.0, kind="hardware", positions=(3,))
    told = simulate(workload, gemini(workload), [outage], days=0.2, record=True)
    other = RunReducer(keep=FOR_REPORT)
    other.extend(told.events)
    with pytest.raises(ConfigError, match="of 16 nodes with 2 replicas, but four_failures has 2"):
        predict(reduced["four_failures"], learned=other)


def test_a_log_without_iterations_teaches_nothing(tmp_path, runs):
    text = (runs["six_failures"] / "events.jsonl").read_text()
    (tmp_path / "events.jsonl").write_text("\n".join(text.splitlines()[:8]) + "\n")
    with pytest.raises(ConfigError, match="no iterations with checkpoints"):
        load_measured(tmp_path)
