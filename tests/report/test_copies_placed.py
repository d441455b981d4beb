"""Copies that were placed anew, in the report, the status table and on the terminal."""

from told_runs import ToldRun

from gemini_lab.lab.progress_bars import describe
from gemini_lab.log import events
from gemini_lab.placement import plan_placement
from gemini_lab.report import build_report
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables.recoveries import losses
from gemini_lab.report.tables.status import status
from gemini_lab.report.text import render

REASON = "memory may not suffice (node-2 failed 3 times: 0.11 a day): 0.002 goes to 0.0001"


def told(*, is_short=False):
    run = ToldRun(standbys=0).protect().train(1, 5)
    run.say_root(
        events.ReplicasPlaced,
        placement=plan_placement(nodes=4, replicas=3),
        added=((2, "node-0"), (3, "node-1")),
        dropped=(),
        loss_chance_then=0.002,
        loss_chance=0.0001,
        reason=REASON,
    )
    if is_short:
        run.say_root(events.ReplicasShort, loss_chance=0.1, reason="there is no memory for more")
    return run


def test_the_report_says_which_copies_are_kept_elsewhere_and_why():
    report = build_report(told().entries)
    (change,) = report.copies_placed
    assert change.added == ((2, "node-0"), (3, "node-1"))
    text = " ".join(render(report).split())
    assert f"copies are placed anew (+2): {REASON}" in text
    (record,) = report.to_json()["copies_placed"]
    assert record["reason"] == REASON


def test_the_status_says_what_was_changed_last_and_what_memory_does_not_allow():
    run = RunReducer()
    for entry in told(is_short=True).entries:
        run.take(entry)
    notes = status(run, now_s=100.0, losses=losses(run)).notes
    assert any(REASON in note for note in notes)
    assert "there is no memory for more" in notes


def test_a_terminal_shows_a_line_for_each():
    placed, short = told(is_short=True).entries[-2:]
    assert str(describe(placed)).strip().startswith("copies are placed anew (+2)")
    assert describe(short) == "!! there is no memory for more"
