"""Claims about how long new machines take to come, as a log tells it."""

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    DrainWaiting,
    LabStarted,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeRequested,
)
from gemini_lab.report.reducers.facts import Arrivals


def lost(name):
    return NodeLost(name=name, cause="connection")


def joined(name):
    return NodeJoined(name=name)


ASKED = NodeRequested(reason="a standby was used")


def waits(*told):
    """What a log of `(at_s, event)` says of a lab of four nodes."""
    names = tuple(f"node-{i}" for i in range(4))
    arrivals = Arrivals()
    for at_s, event in ((0.0, LabStarted(nodes=3, standbys=1, names=names, root=None)), *told):
        arrivals.take(Entry(at_s=at_s, node="node-0", event=event))
    return list(arrivals.waits_s)


def test_a_request_that_is_told_twice_is_one():
    """As where the root agent is lost, and the next one asks when it begins and when it plans."""
    told = (1.0, lost("node-0")), (2.0, ASKED), (3.0, ASKED), (6.0, joined("node-4"))
    assert waits(*told) == [4.0]
    assert waits(*told, (8.0, lost("node-1")), (9.0, ASKED), (10.0, joined("node-5"))) == [4.0, 1.0]


def test_a_node_that_was_only_silent_is_not_replaced():
    told = (1.0, lost("node-1")), (2.0, ASKED), (3.0, joined("node-1"))
    assert waits(*told) == []
    assert waits(*told, (8.0, lost("node-2")), (9.0, ASKED), (10.0, joined("node-4"))) == [1.0]


def test_a_machine_that_is_to_go_is_replaced_before_it_goes():
    told = (1.0, NodeLeaving(name="node-1")), (2.0, ASKED), (4.0, joined("node-4"))
    assert waits(*told, (9.0, lost("node-1")), (9.5, ASKED), (11.0, joined("node-5"))) == [2.0]


def test_one_that_stays_after_all_is_not_replaced():
    stays = DrainWaiting(name="node-1", reason="", is_given_up=True)
    told = (1.0, NodeLeaving(name="node-1")), (2.0, stays), (3.0, ASKED)
    assert waits(*told, (4.0, joined("node-4"))) == []
