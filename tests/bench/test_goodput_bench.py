"""Claims about which iterations count in the bench of goodput."""

from made import made

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, RecoveryPlanned, RunStarted
from gemini_lab.report.build import report_of
from gemini_lab.report.reducer import FOR_REPORT, RunReducer
from gemini_lab_bench.benches.goodput import counted


def ended(at_s, number, *, epoch=1):
    done = made(Iteration, epoch=epoch, iteration=number, duration_s=1.0)
    return Entry(at_s=at_s, node="node-0", event=done)


def report(*entries):
    run = RunReducer(keep=FOR_REPORT)
    started = RunStarted(name="a", script=None, nodes=1)
    for entry in [Entry(at_s=0.0, node="lab", event=started), *entries]:
        run.take(entry)
    return report_of(run)


def planned(at_s, version):
    plan = made(RecoveryPlanned, epoch=2, version=version, members=("node-0",))
    return Entry(at_s=at_s, node="lab", event=plan)


def test_what_a_failure_took_back_counts_when_it_is_done_again():
    """Three iterations by 3 s; the second and third are lost, and done again by 11 and 12 s."""
    entries = [*(ended(float(n), n) for n in (1, 2, 3)), planned(9.0, 1)]
    entries += [ended(11.0, 2, epoch=2), ended(12.0, 3, epoch=2)]
    assert counted(report(*entries), until_s=10.0) == 1
    assert counted(report(*entries), until_s=11.5) == 2
