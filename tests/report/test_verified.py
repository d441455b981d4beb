"""Machines that computed wrong: in report, status and progress."""

import json

import msgspec
import pytest

from gemini_lab.lab.progress_bars import describe
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import SumsVerified, WrongSums
from gemini_lab.report import build_report
from gemini_lab.report.reducer import FOR_DASHBOARD, RunReducer
from gemini_lab.report.tables import tables_of
from gemini_lab.report.text import render

FOUND = WrongSums(
    rank=0,
    epoch=1,
    iteration=4,
    work="gradient",
    ranks=(1, 2),
    nodes=("node-2",),
    suspects=(),
    replays=2,
    version=2,
    goes_back=True,
    rewinds=0,
)
SAID = "iteration 4, gradients of rank 1, 2: node-2 computed wrong"


@pytest.fixture
def struck(steady):
    """The hand-written run, of which iterations were verified, and then a node was named."""
    at_s = steady[-1].at_s
    clean = [SumsVerified(iteration=n, replays=1, duration_s=0.5) for n in (1, 2)]
    said = [*clean, FOUND, msgspec.structs.replace(FOUND, rank=1)]
    return [*steady, *(Entry(at_s=at_s, node="node-0", event=one) for one in said)]


def test_a_report_says_what_was_verified_and_who_was_named(steady, struck):
    assert "verified" not in render(build_report(steady))
    text = render(build_report(struck))
    assert "2 iterations verified on other machines in 1.0 s, the newest 2" in text
    words = " ".join(word for word in text.split() if word != "!!")  # it begins each of its lines
    assert words.count(f"WRONG SUMS: {SAID}; back to version 2") == 1


def test_a_report_for_programs_has_it(struck):
    found = json.loads(json.dumps(build_report(struck).to_json()))["verified"]
    assert (found["iterations"], found["newest"], found["took_s"]) == (2, 2, 1.0)
    assert [one["nodes"] for one in found["wrong"]] == [["node-2"]]


def test_a_dashboard_shows_it(struck):
    run = RunReducer(keep=FOR_DASHBOARD)
    run.extend(struck)
    tables = tables_of(run)
    assert tables.status.diverged == (f"WRONG SUMS: {SAID}",)


def test_one_rank_says_it_on_the_terminal(struck):
    lines = [line for entry in struck if (line := describe(entry)) and "WRONG" in line]
    assert lines == [f"!! WRONG SUMS: {SAID}; training goes back to version 2"]


def test_where_nobody_can_be_named_the_suspects_are():
    unclear = msgspec.structs.replace(FOUND, nodes=(), suspects=("node-0", "node-1"))
    assert str(unclear).endswith("which of node-0, node-1 computed wrong cannot be told")
