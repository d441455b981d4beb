"""Losses that are no numbers: in report, status and progress."""

import json

import pytest

from gemini_lab.lab.progress_bars import describe
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import LossFinite, LossNotFinite
from gemini_lab.report import build_report
from gemini_lab.report.reducer import FOR_DASHBOARD, RunReducer
from gemini_lab.report.tables import tables_of
from gemini_lab.report.text import render

BEGAN = LossNotFinite(rank=1, epoch=1, iteration=3, loss="nan", is_held=True)
ENDED = LossFinite(rank=1, epoch=1, iteration=5)


@pytest.fixture
def broken(steady):
    """The hand-written run without failures, with a loss that is none."""
    return [*steady, Entry(at_s=steady[-1].at_s, node="node-0", event=BEGAN)]


@pytest.fixture
def mended(broken):
    return [*broken, Entry(at_s=broken[-1].at_s, node="node-0", event=ENDED)]


def test_a_report_says_from_where_to_where(steady, broken, mended):
    assert "NOT FINITE" not in render(build_report(steady))
    assert "!! NOT FINITE: rank 1, iteration 3: the loss is nan, to the end" in render(
        build_report(broken)
    )
    assert "the loss is nan, until iteration 5" in render(build_report(mended))


def test_a_report_for_programs_has_it(mended):
    (found,) = json.loads(json.dumps(build_report(mended).to_json()))["not_finite"]
    assert (found["began"]["iteration"], found["ended"]) == (3, 5)


def test_a_dashboard_shows_it_while_it_is_so(broken, mended):
    for log, shown in (
        (broken, ("NOT FINITE: rank 1, iteration 3: the loss is nan",)),
        (mended, ()),
    ):
        run = RunReducer(keep=FOR_DASHBOARD)
        run.extend(log)
        assert tables_of(run).status.diverged == shown


def test_a_root_that_was_just_elected_says_it_again_and_it_counts_once(broken):
    assert len(build_report([*broken, broken[-1]]).not_finite) == 1


def test_progress_says_both(mended):
    assert describe(mended[-2]).startswith("!! NOT FINITE: rank 1, iteration 3: the loss is nan")
    assert "numbers again from iteration 5" in describe(mended[-1])
