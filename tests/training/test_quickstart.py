"""What the first command refuses at once, and what it prints at its end."""

import json
from pathlib import Path

import pytest

from gemini_lab.cli.exits import Exit
from gemini_lab.cli.main import main
from gemini_lab.log.file import read_log
from gemini_lab.report import build_report
from gemini_lab.training.quickstart import Result, summary

LOG = Path(__file__).parent.parent / "log" / "run.jsonl"


def test_the_end_shows_recoveries_step_by_step_losses_side_by_side_and_the_verdict():
    report = build_report(read_log(LOG), name="with-failures")
    assert report.recoveries
    text = summary(
        Result(undisturbed=report, disturbed=report, comparison=report.losses_match(report))
    )
    assert "retrieve" in text
    assert "never failed" in text
    assert text.endswith("none differs")
    assert "RunReport(" not in text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--nodes 0", "at least one node"),
        ("--nodes 1", "replicas=2 needs at least 2 nodes"),
        ("--iterations 3", "leave no room for three failures; give at least 4"),
        ("--size huge", "no model size is called 'huge'; choose from tiny, small, 300m, 1b"),
        ("--corpus nothing", "no text is at nothing; give --corpus a file"),
        ("--scenario far.json", "names 'node-999', which is not there"),
    ],
)
def test_what_cannot_be_is_refused_before_a_node_starts(asked, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    failure = {"kind": "node_loss", "node": "node-999", "iteration": 2}
    Path("far.json").write_text(json.dumps({"failures": [failure]}))
    assert main(["quickstart", "--nodes", "2", "--size", "tiny", *asked.split()]) == Exit.REFUSED
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["far.json"]
