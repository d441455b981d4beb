"""The `log` bench measures what it names, at a small size, and its log is a run's."""

from gemini_lab.report.follower import opened
from gemini_lab_bench.benches import long_run
from gemini_lab_bench.benches.long_log import bench


def test_each_step_is_measured_as_often_as_asked():
    rows = {row.name: row for row in bench(2, lines=400, calls=3)}
    for name in ("the first opening", "the next opening", "every bar of 20 s"):
        assert len(rows[name].values) == 2
        assert min(rows[name].values) > 0
    assert rows["memory at most"].values[0] > 0
    assert rows["the first opening"].settings["lines"] == 400


def test_the_log_is_that_of_a_run_that_trains_and_comes_back(tmp_path):
    log = tmp_path / "long" / "events.jsonl"
    long_run.write(log, lines=500, calls=3, lasts=5)
    run = opened(log, folder=tmp_path / "cache").run
    assert run.unread == 0
    assert run.count == 499  # the first line tells how the log is written
    assert run.course.phase == "training"
    assert run.reached.done() >= 11
    assert len(run.spans.outages()) == 2
    assert run.traffic.basis == "collectives"
    assert run.traffic.exposed_bytes > 0
