"""A planned drain in a report: its pause is its own, and how the node leaves is seen."""

import msgspec
from told_runs import ToldRun, with_a_drain

from gemini_lab.log import events
from gemini_lab.log.events import DRAIN, RecoveryStarted
from gemini_lab.report import build_report
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables import tables_of
from gemini_lab.report.tables.status import leaving_of


def status_of(run: ToldRun):
    reducer = RunReducer(name="one")
    reducer.extend(run.entries)
    return tables_of(reducer).status


def states(run: ToldRun) -> dict[str, tuple[str, str | None]]:
    return {node.name: (node.health, node.leaving) for node in status_of(run).nodes}


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


def test_a_node_that_is_to_go_trains_on_and_says_what_it_waits_for():
    run = ToldRun().protect().train(1, 2)
    run.say_root(events.NodeLeaving, name="node-2")
    assert states(run)["node-2"] == ("training", "")
    assert leaving_of(status_of(run).nodes) == ["node-2 is to leave: its ranks are about to move"]
    run.say_root(events.DrainWaiting, name="node-2", reason="no standby is there")
    assert states(run)["node-2"] == ("training", "no standby is there")
    assert states(run)["node-1"] == ("training", None)


def test_a_node_whose_ranks_moved_is_drained_and_then_left_and_was_not_lost():
    run = with_a_drain()
    run.say_root(events.NodeJoined, name="node-2")  # another root agent meets its agent
    assert states(run)["node-2"] == ("drained", None)
    run.say_root(events.NodeLost, name="node-2", cause="connection")
    assert states(run)["node-2"] == ("left", None)
    assert status_of(run).lost_nodes == 0
    run.say_root(events.NodeJoined, name="node-2")  # another machine of that name
    assert states(run)["node-2"] == ("standby", None)


def test_a_move_that_came_to_nothing_leaves_the_node_as_it_was():
    run = ToldRun().protect().train(1, 2)
    run.say_root(events.NodeLeaving, name="node-2")
    run.say_root(events.DrainWaiting, name="node-2", reason="ask once more", is_given_up=True)
    assert states(run)["node-2"] == ("training", None)


def test_a_drained_node_without_which_nothing_goes_has_ranks_again():
    run = with_a_drain().fail("node-4", known=8)
    run.plan(8, members=["node-0", "node-1", "node-2", "node-3"]).resume(8)
    assert states(run)["node-2"] == ("training", None)
    assert status_of(run).lost_nodes == 1
