"""Claims about simulated runs in reports made for real ones."""

import pytest

from gemini_lab.report.build import build_report
from gemini_lab.report.text import render
from gemini_lab.report.trace import chrome_trace
from gemini_lab.simulator import Outage, paper_workload, simulate
from gemini_lab.simulator.peers import POLICIES
from gemini_lab.simulator.policy import gemini

PAPER = paper_workload(standbys=2)
OUTAGES = [
    Outage(at_s=5000.0, kind="hardware", positions=(3,), cause="GPU"),
    Outage(at_s=40_000.0, kind="hardware", positions=(8, 9), cause="switch"),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_report_of_a_simulated_run_says_what_the_outcome_says(policy):
    outcome = simulate(PAPER, policy(PAPER), OUTAGES, days=1, record=True)
    report = build_report(outcome.events)
    assert report.simulated
    assert len(report.iterations) == int(outcome.versions)
    assert [r.version for r in report.recoveries] == [r.version for r in outcome.recoveries]
    assert [r.duration_s for r in report.recoveries] == pytest.approx(
        [r.duration_s for r in outcome.recoveries]
    )


def test_the_reports_lost_progress_is_the_outcomes():
    outcome = simulate(PAPER, gemini(PAPER), OUTAGES[:1], days=1, record=True)
    report = build_report(outcome.events)
    assert report.recoveries[0].wasted_s == pytest.approx(outcome.recoveries[0].wasted_s)
    assert report.wasted is not None
    assert report.wasted.interval_s == pytest.approx(62)


def test_text_and_trace_can_be_made_of_it():
    outcome = simulate(PAPER, gemini(PAPER), OUTAGES, days=1, record=True)
    assert "simulated" in render(build_report(outcome.events)).lower()
    assert len(chrome_trace(outcome.events)["traceEvents"]) > 1000
