"""What the first command prints at its end."""

from pathlib import Path

from gemini_lab.experiments.quickstart import Result, summary
from gemini_lab.log.file import read_log
from gemini_lab.report import build_report

LOG = Path(__file__).parent.parent / "log" / "schema_1_run.jsonl"


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
