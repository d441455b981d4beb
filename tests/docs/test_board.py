"""The Grafana board draws something of a real scrape: each of its queries, asked of Prometheus."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from told_runs import with_a_root_loss

from gemini_lab.lab.metric_sinks import serve_metrics
from gemini_lab.report.follower import LogFollower

BOARD = Path(__file__).parents[2] / "docs" / "examples" / "grafana.json"
GIVE_UP_S = 60.0
VARIABLES = {"$job": "board", "$instance": ".*", "$__rate_interval": "1m"}


@contextmanager
def prometheus(folder, target):
    """A server that scrapes `target` every second; gives its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    jobs = [{"job_name": "board", "static_configs": [{"targets": [target]}]}]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # YAML has JSON in it
    program = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with subprocess.Popen(program, stderr=subprocess.DEVNULL) as server:
        try:
            yield f"http://{address}"
        finally:
            server.terminate()


def ask(url, query):
    """The series that a query finds now; none while nobody answers."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    try:
        where = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(where, timeout=10) as answer:
            return json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{query}: {error.read().decode()}") from error
    except OSError:
        return []


@pytest.mark.long  # it waits for scrapes; and few machines have a Prometheus
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus on the PATH")
def test_every_query_of_the_board_finds_something(tmp_path):
    run = LogFollower.of("told")
    for entry in with_a_root_loss().iterate(26, losses=True).entries:
        run.take(entry)
    panels = json.loads(BOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    with (
        serve_metrics(run, port=0) as port,
        prometheus(tmp_path, f"127.0.0.1:{port}") as url,
    ):
        give_up_s = time.monotonic() + GIVE_UP_S
        left = queries  # a rate needs two scrapes
        while left and time.monotonic() < give_up_s:
            left = [query for query in left if not ask(url, query)]
            time.sleep(0.5)
    assert len(queries) > 20
    assert left == []


def lost(written, read, at="board"):
    """What of `written` is not in `read`; what is more there are defaults."""
    if isinstance(written, dict):
        for name, value in written.items():
            yield from lost(value, read[name], f"{at}.{name}") if name in read else [f"{at}.{name}"]
    elif isinstance(written, list):
        yield from [] if len(written) == len(read) else [at]
        for number, (one, other) in enumerate(zip(written, read, strict=False)):
            yield from lost(one, other, f"{at}[{number}]")
    elif written != read:
        yield f"{at}: {written!r}, {read!r}"


def test_grafanas_own_schema_has_a_place_for_every_field_of_the_board():
    """Panels' options, their fields and Prometheus's queries are read into Grafana's own types."""
    cog = "grafana_foundation_sdk.cog"
    plugins = pytest.importorskip(f"{cog}.plugins", reason="grafana-foundation-sdk is not here")
    plugins.register_default_plugins()
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip(f"{cog}.encoder").JSONEncoder()
    written = json.loads(BOARD.read_text())
    board = dashboard.Dashboard.from_json(written)
    assert [*lost(written, json.loads(encoder.encode(board)))] == []
    kinds = {type(panel.options).__module__.rpartition(".")[2] for panel in board.panels}
    assert kinds == {"stat", "timeseries"}
    targets = [target for panel in board.panels for target in panel.targets]
    assert {type(target).__module__.rpartition(".")[2] for target in targets} == {"prometheus"}
