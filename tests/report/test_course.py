"""What a run does now, as people are told it."""

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.report.reducers.course import Course


def of_recovery(kind, **more):
    return Entry(at_s=0.0, node="node-0", event=kind(recovery=1, epoch=2, **more))


def step(name):
    return of_recovery(events.RecoveryStep, step=name, start_s=0.0, end_s=1.0)


def test_what_a_run_waits_for_stays_said_while_it_asks_again_and_again():
    course = Course()
    started = of_recovery(
        events.RecoveryStarted, cause="node_lost", lost=(), failed_at_s=0.0, iteration=3
    )
    waiting = of_recovery(
        events.RecoveryWaiting, missing=(), standbys=(), reason="node-1 may come back"
    )
    for entry in (started, step("fence"), step("inventory")):
        course.take(entry)
    assert (course.phase, course.detail) == ("recovering", "inventory done")
    for entry in (waiting, step("reserve"), step("inventory")):
        course.take(entry)
    assert (course.phase, course.detail) == ("waiting for machines", "node-1 may come back")
