"""Metrics get to real receivers: OTLP over HTTP, TensorBoard's own reader, W&B's own file."""

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from told_runs import ToldRun, with_a_root_loss, with_one_loss
from wandb_file import axes_in, rows_in

from gemini_lab.cli import metrics_command as command
from gemini_lab.cli.exits import Exit
from gemini_lab.errors import ConfigError
from gemini_lab.lab.metric_sinks import RunCollector, Sender, check_place, telling
from gemini_lab.log.file import LOG_FILE, EventLog
from gemini_lab.report.follower import LogFollower
from gemini_lab.report.metrics import snapshot_of


@pytest.fixture
def saved(tmp_path):
    """Writes a told run's log; gives the run's folder."""

    def save(run: ToldRun):
        log = EventLog(tmp_path / "runs" / "told" / LOG_FILE)
        for entry in run.entries:
            log.append(entry)
        log.close()
        return log.path.parent

    return save


class Receiver:
    """Takes OTLP over HTTP as a collector does.

    Attributes:
        requests: What came, decoded, oldest first.
        answers: With which status each is answered; afterwards with 200.
    """

    def __init__(self, answers=()):
        self.requests = []
        self.answers = list(answers)
        self.came = threading.Condition()

    def take(self, path, body):
        proto = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
        assert path == "/v1/metrics"
        request = proto.ExportMetricsServiceRequest.FromString(body)
        with self.came:
            self.requests.append(request)
            self.came.notify_all()
        return self.answers.pop(0) if self.answers else 200

    @contextmanager
    def listen(self):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):  # http.server's word
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(receiver.take(self.path, body))
                self.end_headers()

            def log_message(self, *_):
                pass

        receiver = self
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.fixture
def receiver():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    return Receiver()


def received(request):
    """Every value by name and labels, histograms as Prometheus has them; and units by name."""
    values, units = {}, {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        units[metric.name] = metric.unit
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = sorted(one.value.string_value for one in point.attributes)
            if kind != "histogram":
                values[metric.name, *labels] = point.as_double
                continue
            up_to = 0
            edges = [*map(str, point.explicit_bounds), "+Inf"]
            for edge, count in zip(edges, point.bucket_counts, strict=True):
                up_to += count
                values[f"{metric.name}_bucket", edge] = up_to
            values[f"{metric.name}_count",] = point.count
            values[f"{metric.name}_sum",] = point.sum
            assert not point.HasField("min")
    return values, units


def scraped(folder):
    """The same from the endpoint."""
    registry = CollectorRegistry()
    registry.register(RunCollector(LogFollower.of("told", folder / LOG_FILE)))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (one.name, *sorted(one.labels.values())): one.value
        for family in families
        for one in family.samples
    }


def test_otlp_carries_what_the_endpoint_serves_under_the_same_names(saved, receiver):
    folder = saved(with_one_loss())
    with receiver.listen() as url:
        asked = ["told", "--folder", str(folder.parent), "--to", f"otlp:{url}"]
        assert command.command(asked) == Exit.FINISHED
    (request,) = receiver.requests  # the past has no place in OTLP: the newest is all
    values, units = received(request)
    expected = scraped(folder)
    assert values.keys() == expected.keys()
    assert values == pytest.approx(expected)
    assert units["gemini_lab_step_seconds"] == "s"
    assert units["gemini_lab_replica_bytes_total"] == "By"
    assert units["gemini_lab_nodes"] == ""
    resource = {
        one.key: one.value.string_value for one in request.resource_metrics[0].resource.attributes
    }
    assert resource["service.name"] == "gemini_lab"
    assert resource["service.instance.id"] == "told"


def test_otlp_gets_the_newest_of_a_run_that_goes_on_when_it_is_no_longer_watched(saved, receiver):
    run = ToldRun().protect().train(1, 3)
    folder = saved(run)
    with receiver.listen() as url:
        with telling(Watching(folder), [f"otlp:{url}"]), receiver.came:
            assert receiver.came.wait_for(lambda: receiver.requests, timeout=60)
        values, _ = received(receiver.requests[-1])
    assert values["gemini_lab_iteration",] == 3
    assert values["gemini_lab_phase", "training"] == 1


class Watching:
    """A run whose log is here."""

    name = "told"

    def __init__(self, folder):
        self.folder = folder


def test_a_receiver_that_refuses_is_told_of_once_and_with_its_reason(saved, receiver, capsys):
    receiver.answers = [400] * 9
    folder = saved(with_one_loss())
    with receiver.listen() as url:
        asked = ["told", "--folder", str(folder.parent), "--to", f"otlp:{url}"]
        assert command.command(asked) == Exit.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gemini-lab: metrics do not get to otlp:{url}: ")
    assert "400" in line


def test_a_receiver_that_refused_is_failing_until_it_takes_something(saved, receiver):
    """Else it would be named again each time that it is tried."""
    otlp = pytest.importorskip("gemini_lab.lab.otlp")
    receiver.answers = [400]
    run = LogFollower.of("told", saved(ToldRun().protect().train(1, 3)) / LOG_FILE)
    begun = run.ask(lambda run, now_s: snapshot_of(run, now_s=now_s))
    with receiver.listen() as url:
        sink = otlp.Otlp("told", url)
        for passed_s in (0.0, 1.0):
            with pytest.raises(ConnectionError, match="400"):
                sink.write(replace(begun, at_s=begun.at_s + passed_s))
        sink.write(replace(begun, at_s=begun.at_s + otlp.EVERY_S))
        sink.write(replace(begun, at_s=begun.at_s + otlp.EVERY_S + 1.0))
        sink.close()
    assert len(receiver.requests) == 2


def test_tensorboard_reads_a_curve_for_each_number(saved, tmp_path):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    run = with_a_root_loss()
    folder = saved(run)
    asked = ["told", "--folder", str(folder.parent), "--to", f"tensorboard:{tmp_path / 'tb'}"]
    assert command.command(asked) == Exit.FINISHED
    read = event_accumulator.EventAccumulator(
        str(tmp_path / "tb" / "told"), purge_orphaned_data=False
    ).Reload()
    steps = read.Scalars("gemini_lab/step_seconds")
    assert {one.value for one in steps} <= {1.0, 2.0}
    iterations = [one.step for one in read.Scalars("gemini_lab/iteration")]
    assert iterations[-1] == 26
    assert set(range(1, 27)) <= {*iterations}
    assert iterations.index(6) < iterations.index(24) < len(iterations) - 1
    assert 6 in iterations[iterations.index(24) :]  # what was done again is there again
    final = scraped(folder)
    for name, *labels in (
        ("recoveries_total",),
        ("time_seconds", "training"),
        ("restored_bytes_total", "persistent"),
    ):
        curve = read.Scalars("/".join(["gemini_lab", name, *labels]))
        found = next(
            value
            for (metric, *texts), value in final.items()
            if metric == f"gemini_lab_{name}" and {*labels} <= {*texts}
        )
        assert curve[-1].value == pytest.approx(found)


def test_wandb_logs_a_curve_for_each_number_while_offline(saved, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    folder = saved(with_a_root_loss())
    asked = ["told", "--folder", str(folder.parent), "--to", "wandb:curves"]
    assert command.command(asked) == Exit.FINISHED
    give_up_s = time.monotonic() + 60
    rows = rows_in(tmp_path)
    while rows[-1]["gemini_lab/iteration"] < 26 and time.monotonic() < give_up_s:
        time.sleep(0.1)  # a process of W&B's own writes the file
        rows = rows_in(tmp_path)
    assert axes_in(tmp_path) == {"gemini_lab/*": "gemini_lab/iteration"}
    iterations = [row["gemini_lab/iteration"] for row in rows]
    assert iterations[-1] == 26
    assert 6 in iterations[iterations.index(24) :]  # what was done again is at its own iteration
    assert rows[-1]["gemini_lab/recoveries_total"] == 1
    assert all(row["gemini_lab/time_seconds/training"] >= 0 for row in rows)


@pytest.mark.parametrize(
    ("where", "way_out"),
    [
        ("influx:host", "write otlp"),
        ("tensorboard", "write tensorboard:FOLDER"),
        ("otlp:collector:4318", "such as otlp:http://collector:4318"),
    ],
)
def test_a_place_that_there_is_not_is_refused_with_those_that_there_are(where, way_out):
    with pytest.raises(ConfigError, match=way_out):
        check_place(where)


def test_a_port_that_is_none_is_refused_with_all_that_can_be_written(tmp_path):
    with (
        pytest.raises(ConfigError, match="write PORT, ADDRESS:PORT, otlp"),
        telling(Watching(tmp_path), ["x:y"]),
    ):
        pass


class Failing:
    """A sink whose library raises."""

    def __init__(self):
        self.is_closed = False

    def write(self, _now):
        raise OSError("the disk is full")

    def close(self):
        self.is_closed = True


def test_a_sink_that_fails_harms_neither_the_run_nor_other_sinks(saved, capsys):
    failing = Failing()
    opens = {"wandb": no_key, "tensorboard:tb": lambda: failing}
    told = LogFollower.of("told", saved(with_one_loss()) / LOG_FILE)
    with Sender(told, opens) as sending:
        sending.wait()
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "gemini-lab: metrics do not get to wandb: there is no key",
        "gemini-lab: metrics do not get to tensorboard:tb: the disk is full",
    ]
    assert failing.is_closed
    assert sending.failing == {"wandb", "tensorboard:tb"}


def no_key():
    raise ValueError("there is no key")
