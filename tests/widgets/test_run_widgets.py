"""The traffic timeline and the replica map as ipywidgets: what an open one shows of a run's log."""

from types import SimpleNamespace

import pytest

pytest.importorskip("ipywidgets")
pytest.importorskip("anywidget")

from gemini_lab_widgets.run_widgets import RunWidgets
from told_runs import with_a_root_loss

from gemini_lab.log.file import line_of


@pytest.fixture
def run(tmp_path):
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"".join(line_of(one) + b"\n" for one in with_a_root_loss().iterate(3).entries))
    return SimpleNamespace(name="told", log=log)


def sent_by(views):
    """What a browser that is ready is sent of the traffic."""
    sent = []
    views.traffic.send = lambda content, buffers=None: sent.append((content["meta"], buffers))
    views.traffic._handle_custom_msg({"ready": True}, [])
    return sent


def test_a_folded_view_reads_nothing(run):
    views = RunWidgets()
    sent = sent_by(views)
    views.refresh(run)
    assert sent == []
    assert views.replicas.value == ""


def test_open_traffic_is_sent_to_the_browser_and_only_what_is_new_later(run):
    views = RunWidgets()
    sent = sent_by(views)
    views.root.selected_index = 0
    views.refresh(run)
    (meta, buffers), *_ = sent
    assert meta["lanes"][:4] == ["node-0", "node-1", "node-2", "node-3"]
    assert meta["count"] > 0
    assert len(buffers[0]) > 0
    before = len(sent)
    views.refresh(run)
    assert len(sent) == before


def test_the_open_map_draws_each_node_and_who_keeps_its_replica(run):
    views = RunWidgets()
    views.root.selected_index = 1
    views.refresh(run)
    for node in ("node-2 (root)", "node-3", "node-4", "node-5"):
        assert node in views.replicas.value
    assert views.replicas.value.count('class="copy') == 4


def test_another_run_replaces_the_one_before(run, tmp_path):
    views = RunWidgets()
    views.root.selected_index = 1
    views.refresh(run)
    views.refresh(SimpleNamespace(name="new", log=tmp_path / "not there yet.jsonl"))
    assert "node-1" not in views.replicas.value
    views.refresh(None)
    assert "node-1" not in views.replicas.value
