"""Each recorded log's report, tables, text, metrics and trace, as they were when looked at last."""

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from told_runs import RUNS

from gemini_lab.lab.progress_bars import describe
from gemini_lab.report.build import report_of
from gemini_lab.report.metrics import metrics_of
from gemini_lab.report.reducer import FOR_DASHBOARD, Keep, RunReducer
from gemini_lab.report.tables import tables_of
from gemini_lab.report.tables.time_breakdown import spent
from gemini_lab.report.text import WIDTH, render, render_spent
from gemini_lab.report.trace import chrome_trace

WHOLE = Keep(bars=100_000, recoveries=None, notes=None, ranks=True)


def reduced(name: str, *, keep: Keep = WHOLE) -> RunReducer:
    run = RunReducer(keep=keep)
    run.extend(RUNS[name])
    return run


@pytest.mark.parametrize("name", RUNS)
def test_a_report_says_what_it_said(name, golden):
    run = reduced(name)
    record = report_of(run).to_json()
    record["iterations"] = [tuple(one.values()) for one in record["iterations"]]
    golden(f"{name}, report.json", record)
    text = f"{render(report_of(run))}\n\n{render_spent(spent(run))}"
    assert max(map(len, text.splitlines())) <= WIDTH
    lines = [line for entry in RUNS[name] if (line := describe(entry))]
    golden(f"{name}.txt", "\n".join([text, "", "While it runs:", *lines, ""]))


@pytest.mark.parametrize("name", RUNS)
def test_views_get_the_tables_that_they_got(name, golden):
    run = reduced(name, keep=FOR_DASHBOARD)
    golden(f"{name}, tables.json", msgspec.to_builtins(tables_of(run)))


@pytest.mark.parametrize("name", ["one loss", "recorded", "simulated"])
def test_a_scrape_reads_the_metrics_that_it_read(name, golden):
    run, registry = reduced(name), CollectorRegistry()
    now_s = run.newest_s
    registry.collect = lambda: metrics_of(run, now_s=now_s)
    golden(f"{name}, metrics.txt", generate_latest(registry).decode())


@pytest.mark.parametrize("name", ["one loss"])
def test_a_trace_has_the_slices_that_it_had(name, golden):
    golden(f"{name}, trace.json", chrome_trace(RUNS[name]))
