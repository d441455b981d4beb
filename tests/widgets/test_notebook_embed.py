"""What a notebook keeps of a dashboard."""

import pytest

pytest.importorskip("panel", reason="panel is not installed")

from gemini_lab_widgets.dashboard import live_html, saved_html
from gemini_lab_widgets.library import ShownRun

from gemini_lab.log.entry import encode_entry
from gemini_lab.simulator import Outage, paper_workload, simulate
from gemini_lab.simulator.policy import gemini


@pytest.fixture
def follower(tmp_path):
    log = tmp_path / "a-<run>" / "events.jsonl"
    log.parent.mkdir()
    workload = paper_workload(nodes=4, standbys=1)
    outage = Outage(at_s=900.0, positions=(1,), kind="hardware")
    outcome = simulate(workload, gemini(workload), [outage], days=1 / 24, record=True)
    log.write_bytes(b"\n".join(map(encode_entry, outcome.events)) + b"\n")
    found = ShownRun(lambda: log)
    found.pull()
    return found


def test_a_run_is_kept_as_a_picture(follower):
    html = saved_html(follower)
    assert "<svg" in html
    assert "a-&lt;run&gt;" in html
    assert "<run>" not in html


def test_without_a_run_a_line_says_so():
    nothing = ShownRun(lambda: None)
    nothing.pull()
    assert "No run has begun yet" in saved_html(nothing)


def test_a_log_of_which_nothing_can_be_drawn_is_no_error(tmp_path):
    follower = ShownRun(lambda: tmp_path / "gone" / "events.jsonl")
    follower.pull()
    assert "gemini-lab serve gone" in saved_html(follower)


def test_an_address_is_only_text_in_the_script():
    html = live_html("https://hub.example/</script><b>/", "ticket", "")
    assert "<b>" not in html
