"""Numbers that changed after a recovery: in report, status and progress, with the likely cause."""

import pytest

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Diverged
from gemini_lab.report import build_report
from gemini_lab.report.text import render


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


def test_a_report_says_how_much_was_the_same(failing):
    same = [e for e in failing if not (e.kind == "iteration" and e.event.value("loss") == 99.0)]
    for log, said in (
        (same, "no iteration was done again"),
        ([*same[:9], *again(same), *same[9:]], "compared bit by bit: 2 iterations of ranks, none"),
    ):
        text = render(build_report(log))
        assert said in text
        assert "DIVERGED" not in text


def again(log):
    """What both ranks had done of iteration 3 before the failure: the same as afterwards."""
    import msgspec

    redone = [e for e in log if e.kind == "iteration" and e.event.iteration == 3]
    for entry in redone:
        before = msgspec.structs.replace(entry.event, epoch=1)
        yield Entry(at_s=1004.5, node=f"node-{entry.event.rank}", event=before)
