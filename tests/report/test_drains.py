"""A planned drain in a report: its pause is its own, whatever was killed before it."""

import msgspec

from gemini_lab.log.events import DRAIN, RecoveryStarted
from gemini_lab.report import build_report


def test_a_machine_that_was_killed_before_is_no_cause_of_a_drain(failing):
    (failed,) = build_report(failing).recoveries
    assert failed.injections
    assert failed.steps[0].name == "detect"
    moved = [
        msgspec.structs.replace(said, event=msgspec.structs.replace(said.event, cause=DRAIN))
        if isinstance(said.event, RecoveryStarted)
        else said
        for said in failing
    ]
    (drained,) = build_report(moved).recoveries
    assert drained.cause == DRAIN
    assert drained.failed_at_s > failed.failed_at_s
    assert drained.steps[0].name != "detect"
