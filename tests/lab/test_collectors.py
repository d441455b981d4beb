"""Metrics on their way through programs of others: a collector of OpenTelemetry's, and a database.

Rotel, a collector (`pip install rotel`), and VictoriaMetrics, which takes OTLP and answers
Prometheus's queries, are looked for where they may be; what is not there is skipped.
"""

import importlib.util
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from told_runs import with_one_loss

from gemini_lab.cli import metrics_command as command
from gemini_lab.cli.exits import Exit
from gemini_lab.lab.metric_sinks import text_of
from gemini_lab.log.file import LOG_FILE, EventLog
from gemini_lab.report.follower import LogFollower

pytestmark = pytest.mark.long
parser = pytest.importorskip("prometheus_client.parser")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
GIVE_UP_S = 60.0
DATABASE = shutil.which("victoria-metrics")


def rotel():
    """The collector's program, which its package brings along."""
    spec = importlib.util.find_spec("rotel")
    places = spec.submodule_search_locations if spec else None
    return next(iter(Path(place) / "rotel-agent" for place in places or ()), None)


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def program(address, *words):
    """One that listens on `address`, until the block ends."""
    with subprocess.Popen(
        [*map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        host, port = address.split(":")
        give_up_s = time.monotonic() + GIVE_UP_S
        try:
            while True:
                try:
                    socket.create_connection((host, int(port)), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None, words
                    assert time.monotonic() < give_up_s, words
                    time.sleep(0.1)
            yield
        finally:
            process.terminate()


@pytest.fixture
def database(tmp_path):
    """Its address; skips without it."""
    if DATABASE is None:
        pytest.skip("there is no victoria-metrics on the PATH (a Debian package of that name)")
    address = free_address()
    folder = tmp_path / "database"
    with program(address, DATABASE, f"-storageDataPath={folder}", f"-httpListenAddr={address}"):
        yield address


@pytest.fixture
def told(tmp_path):
    """The folder of a run that lost a node."""
    log = EventLog(tmp_path / "runs" / "told" / LOG_FILE)
    for entry in with_one_loss(start_s=time.time() - 60).entries:
        log.append(entry)
    log.close()
    return log.path.parent


def name_of(name, labels):
    """A series, with the edge of a bucket as a number, and without what a database adds."""
    kept = {
        label: f"{float(value):g}" if label == "le" else value
        for label, value in labels.items()
        if value and label != "__name__" and "." not in label  # such as service.name
    }
    return name, *sorted(kept.items())


def asked(address):
    """The newest value of each of our series."""
    query = urllib.parse.urlencode({"query": '{__name__=~"gemini_lab_.*"}[10m]'})
    with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    return {
        name_of(one["metric"]["__name__"], one["metric"]): float(one["values"][-1][1])
        for one in found
    }


def served(folder):
    """The same as text that Prometheus would scrape."""
    families = parser.text_string_to_metric_families(
        text_of(LogFollower.of("told", folder / LOG_FILE))
    )
    return {
        name_of(one.name, one.labels): one.value for family in families for one in family.samples
    }


def sent(folder, url):
    words = ["told", "--folder", str(folder.parent), "--to", f"otlp:{url}"]
    assert command.command(words) == Exit.FINISHED


def require_all(address, folder):
    """Every value that is served is found in the database, once that has taken it in."""
    expected = served(folder)
    assert len(expected) > 80
    give_up_s = time.monotonic() + GIVE_UP_S
    while (found := asked(address)).keys() != expected.keys():
        assert time.monotonic() < give_up_s, found.keys() ^ expected.keys()
        time.sleep(0.2)
    assert found == pytest.approx(expected)


def test_a_database_that_takes_otlp_answers_with_every_value_that_is_served(told, database):
    sent(told, f"http://{database}/opentelemetry/v1/metrics")
    require_all(database, told)


def test_a_collector_hands_on_every_value_that_is_served(told, database):
    if (collector := rotel()) is None:
        pytest.skip("rotel is not installed; run: pip install rotel")
    http, grpc = free_address(), free_address()
    handed_to = [
        f"--otlp-exporter-{kind}-endpoint=http://{database}/opentelemetry/v1/{kind}"
        for kind in ("metrics", "traces", "logs")
    ]
    listen = [f"--otlp-http-endpoint={http}", f"--otlp-grpc-endpoint={grpc}"]
    exports = ["--exporter=otlp", "--otlp-exporter-protocol=http", *handed_to]
    with program(http, collector, "start", *listen, *exports):
        sent(told, f"http://{http}")
        require_all(database, told)
