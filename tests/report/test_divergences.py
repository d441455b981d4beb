"""Numbers that changed after a recovery: in report, status and progress, with the likely cause."""

import pytest

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Diverged
from gemini_lab.report import build_report


@pytest.fixture
def noticed(failing):
    """The hand-written run, with what its root agent noticed: rank 0's loss was 99 before."""
    event = Diverged(
        rank=0,
        epoch=2,
        iteration=3,
        differs="batch",
        before="ab12",
        after="cd34",
        cause="the position in the data did not come back",
    )
    return [*failing, Entry(at_s=failing[-1].at_s, node="node-0", event=event)]


def test_a_report_finds_in_the_log_what_no_root_was_there_to_notice(failing):
    report = build_report(failing)
    assert [(one.rank, one.iteration, one.differs) for one in report.divergences] == [
        (0, 3, "loss"),
        (1, 3, "loss"),
    ]
    (recovery,) = report.recoveries
    assert recovery.divergences == report.divergences
    assert recovery.compared == 2


def test_what_was_noticed_and_what_is_found_again_is_told_once(noticed):
    told = [(one.rank, one.iteration) for one in build_report(noticed).divergences]
    assert told == [(0, 3), (1, 3)]
