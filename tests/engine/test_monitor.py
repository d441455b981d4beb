"""DeepSpeed's own monitors get what protection costs, beside DeepSpeed's numbers."""

import csv
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from made import made
from prometheus_client.core import GaugeMetricFamily
from told_runs import with_one_loss
from wandb_file import rows_in

from gemini_lab.engine.iteration_log import MonitorFeed, with_monitor
from gemini_lab.log import events
from gemini_lab.report.metrics import Scalars, metrics_of
from gemini_lab.report.reducer import FOR_METRICS, RunReducer


class Monitor:
    """Remembers what is written."""

    enabled = True

    def __init__(self):
        self.written = []

    def write_events(self, told):
        self.written += told


def iteration(number, **values):
    return made(events.Iteration, iteration=number, duration_s=2.0, waited_s=0.5, values=values)


def whole(version):
    return made(
        events.VersionComplete,
        version=version,
        sent_bytes=8,
        local_s=0.1,
        duration_s=0.3,
        next_version=version + 1,
    )


def test_an_iteration_is_written_once_with_the_version_that_became_whole_in_it():
    monitor = Monitor()
    feed = MonitorFeed(monitor, samples=lambda: 64)
    feed.take(whole(1))
    assert monitor.written == []  # it may be said on a thread that is not training's
    feed.take(iteration(2, loss=3.5))
    assert monitor.written == [
        ("gemini_lab/version", 1, 64),
        ("gemini_lab/checkpoint_seconds", 0.3, 64),
        ("gemini_lab/iteration", 2, 64),
        ("gemini_lab/step_seconds", 2.0, 64),
        ("gemini_lab/checkpoint_wait_seconds", 0.5, 64),
        ("gemini_lab/logged/loss", 3.5, 64),
    ]


def test_what_a_script_logs_after_its_step_is_written_alone():
    monitor = Monitor()
    feed = MonitorFeed(monitor, samples=lambda: 64)
    feed.take(iteration(2))
    del monitor.written[:]
    feed.take(iteration(2, accuracy=0.9))
    assert monitor.written == [("gemini_lab/logged/accuracy", 0.9, 64)]


@pytest.mark.parametrize(
    "engine",
    [
        SimpleNamespace(global_rank=0),
        SimpleNamespace(global_rank=1, monitor=SimpleNamespace(enabled=True)),
        SimpleNamespace(global_rank=0, monitor=SimpleNamespace(enabled=False)),
    ],
)
def test_an_engine_without_a_monitor_and_other_ranks_are_left_alone(engine):
    assert with_monitor(engine, print) is print


def test_names_are_those_of_the_whole_run():
    monitor = Monitor()
    feed = MonitorFeed(monitor, samples=lambda: 0)
    feed.take(whole(1))
    feed.take(iteration(2, loss=3.5))
    run = RunReducer(keep=FOR_METRICS)
    run.extend(with_one_loss().entries)
    of_run = Scalars().of([*metrics_of(run, now_s=0.0), logged()])
    assert {name for name, _, _ in monitor.written} <= of_run.keys()


def logged():
    family = GaugeMetricFamily("gemini_lab_logged", "", labels=["name"])
    family.add_metric(["loss"], 3.5)
    return family


SCRIPT = """
import json, sys
from types import SimpleNamespace
import deepspeed
from deepspeed.monitor.config import get_monitor_config
from deepspeed.monitor.monitor import MonitorMaster
from gemini_lab.engine.iteration_log import with_monitor
from gemini_lab.engine.private_names import avoid_shared_memory_collectives
from gemini_lab.log import events

folder, config = sys.argv[1:]
avoid_shared_memory_collectives()
deepspeed.init_distributed("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
monitor = MonitorMaster(get_monitor_config(json.loads(config)))
engine = SimpleNamespace(global_rank=0, global_samples=0, monitor=monitor)
said = []
emit = with_monitor(engine, said.append)
for number in (1, 2, 3):
    engine.global_samples += 8
    monitor.write_events([("Train/Samples/lr", 0.1, engine.global_samples)])
    emit(events.Iteration(iteration=number, duration_s=number / 4, waited_s=0.0, values={}))
assert len(said) == 3
"""


@pytest.mark.long  # the feed's calls are tested above; this imports and starts all three
def test_deepspeeds_own_classes_take_it(tmp_path):
    """TensorBoard, W&B (offline) and CSV, as a configuration of DeepSpeed names them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("wandb")
    place = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    config = {
        "tensorboard": place,
        "csv_monitor": place,
        "wandb": {"enabled": True, "project": "curves"},
    }
    variables = {"DS_ACCELERATOR": "cpu", "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
    told = [sys.executable, "-c", SCRIPT, str(tmp_path), json.dumps(config)]
    done = subprocess.run(
        told, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = [(8, 0.25), (16, 0.5), (24, 0.75)]
    read = accumulator.EventAccumulator(str(tmp_path / "job")).Reload()
    curve = read.Scalars("gemini_lab/step_seconds")
    assert [(one.step, one.value) for one in curve] == expected
    rows = list(csv.reader((tmp_path / "job" / "gemini_lab_step_seconds.csv").open()))
    assert [(int(step), float(value)) for step, value in rows[1:]] == expected
    rows = [row for row in rows_in(tmp_path) if "gemini_lab/step_seconds" in row]
    assert [(row["_step"], row["gemini_lab/step_seconds"]) for row in rows] == expected
    assert all(row["Train/Samples/lr"] == 0.1 for row in rows)
