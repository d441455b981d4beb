"""New processes that start before the ranks of a node stop to move, told as stories."""

import pytest

from gemini_lab.log import events
from gemini_lab.recovery.kept_ranks import AHEAD_S
from gemini_lab.recovery.messages import (
    Fence,
    Hold,
    NodeLeaves,
    StartWorkers,
    WorkerEnded,
)
from gemini_lab.recovery.protocol import AgentJoined
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState

from .story import Story, kept_by

RACKS = {f"node-{n}": rack for n, rack in enumerate("aabbab")}


def begin(story: Story, **settings: str | int | bool) -> Story:
    return story.start(iterations=5, keep_processes=True, **settings)


def stopped(story: Story) -> bool:
    """Whether the ranks were told to stop in this epoch."""
    return any(isinstance(s.order, Hold) and s.order.epoch == story.epoch for s in story.orders)


def started_ahead(story: Story) -> list[StartWorkers]:
    sent = [s.order for s in story.orders if isinstance(s.order, StartWorkers)]
    return [order for order in sent if order.joins]


def starts(story: Story) -> list[StartWorkers]:
    """How the ranks were started last."""
    sent = [s.order for s in story.orders if isinstance(s.order, StartWorkers)]
    return [order for order in sent if order.epoch == story.epoch and not order.joins]


def meeting(story: Story) -> str:
    """The node that holds the port in which the ranks met last."""
    return story.root.state.reached.rendezvous.split(":")[0]


def is_ended(story: Story, node: str) -> bool:
    """Whether what was started ahead on a node was ended, within an epoch."""
    last = [s.order for s in story.orders if s.to == node][-1]
    return isinstance(last, Fence) and not last.keeps


def test_ranks_train_on_until_the_new_process_could_join_and_meet_where_it_waits():
    story = begin(Story())
    story.slow = {2}
    met_at = story.root.state.reached.rendezvous
    story.drain("node-2")
    (order,) = started_ahead(story)
    assert (order.joins, kept_by(order)) == (met_at, [0, 1, 3])
    assert order.seats.whole().members == ("node-0", "node-1", "node-4", "node-3")
    assert not stopped(story)
    story.iterate(6)
    story.ready_to_join("node-4", 2)
    assert stopped(story)
    story.hold()
    assert {one.rendezvous for one in starts(story)} == {order.rendezvous}
    assert [kept_by(one) for one in starts(story)] == [[0, 1, 2, 3]] * 4
    story.go_on()
    (done,) = story.of(events.RecoveryFinished)
    assert (done.version, done.lost_iterations) == (6, 0)
    assert [event.name for event in story.of(events.NodeDrained)] == ["node-2"]


def test_a_new_process_that_fails_is_done_without_and_said():
    story = begin(Story())
    story.slow = {2}
    story.drain("node-2")
    story.say("node-4", WorkerEnded(rank=2, epoch=story.epoch, code=1, output="ImportError: x"))
    assert stopped(story)
    assert is_ended(story, "node-4")
    assert any("ImportError: x" in note.text for note in story.of(events.Note))
    assert story.of(events.RecoveryStarted) == []  # nobody who trains has ended
    story.hold()
    assert [kept_by(one) for one in starts(story)] == [[0, 1, 3]] * 4
    assert meeting(story) == "node-4"


@pytest.mark.parametrize(("notice_s", "limit_s"), [(None, AHEAD_S), (60.0, 30.0)])
def test_one_that_does_not_come_is_waited_for_so_long_at_most(notice_s, limit_s):
    story = begin(Story())
    story.slow = {2}
    if notice_s is None:
        story.drain("node-2")
    else:
        story.say("node-2", NodeLeaves(within_s=notice_s))
    story.tick(story.now_s + limit_s - 1)
    assert not stopped(story)
    story.tick(story.now_s + 2)
    assert stopped(story)
    assert is_ended(story, "node-4")


def test_one_that_is_lost_with_its_standby_is_done_without():
    story = begin(Story(nodes=6))
    story.slow = {2}
    story.drain("node-2")
    story.lose("node-4")
    assert stopped(story)
    story.hold()
    assert story.members() == ["node-0", "node-1", "node-5", "node-3"]
    assert [kept_by(one) for one in starts(story)] == [[0, 1, 3]] * 4


def test_a_standby_whose_connection_broke_has_ended_what_was_started_there():
    story = begin(Story())
    story.slow = {2}
    story.drain("node-2")
    story.do(story.root.handle(AgentJoined(at_s=story.now_s, node="node-4", epoch=story.epoch)))
    assert stopped(story)


def test_one_that_ends_while_the_ranks_stop_has_another_start_in_its_place():
    story = begin(Story())
    story.ended = {2}
    story.drain("node-2")
    assert stopped(story)
    story.hold()
    assert [kept_by(one) for one in starts(story)] == [[0, 1, 3]] * 4
    assert meeting(story) == "node-4"


def test_a_failure_meanwhile_ends_it_and_the_move_begins_anew_afterwards():
    story = begin(Story(nodes=6))
    story.slow = {2}
    story.drain("node-2")
    story.ended = {1}
    story.exit(1, -9)
    ended = [s.order for s in story.orders if s.to == "node-4" and isinstance(s.order, Fence)]
    assert not ended[-1].keeps
    assert [kept_by(one) for one in starts(story)] == [[0, 2, 3]] * 4
    story.slow = story.ended = set()
    story.go_on()
    assert len(started_ahead(story)) == 2
    story.hold()
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]


def test_two_nodes_leave_one_after_the_other_each_with_processes_of_its_own():
    story = begin(Story(nodes=6))
    story.slow = {3}
    story.drain("node-3", 1)
    story.drain("node-0", 2)  # asked for later, and first in order
    assert len(started_ahead(story)) == 1
    story.ready_to_join("node-4", 3)
    story.hold()
    assert story.members() == ["node-0", "node-1", "node-2", "node-4"]
    story.go_on()
    assert len(started_ahead(story)) == 2
    story.hold()
    assert story.members() == ["node-5", "node-1", "node-2", "node-4"]


def test_a_new_root_starts_others_for_it_knows_of_none():
    story = begin(Story())
    story.slow = {2}
    story.drain("node-2")
    state, living = RootState.from_text(story.root.state.to_text()), story.root.living
    story.root = RootAgent(state=state, at_s=story.now_s)
    story.root.run.living = {
        node: AgentJoined(
            at_s=story.now_s,
            node=node,
            epoch=story.epoch,
            workers=state.seats.ranks_on(node),
        )
        for node in living
    }
    story.slow = set()
    story.do(story.root.take_over(story.now_s))
    story.join("node-9")
    assert len(started_ahead(story)) == 2
    assert stopped(story)


@pytest.mark.parametrize(
    "setting", [{"keep_processes": False}, {"verify_every": 10}, {"replicate": "gradients"}]
)
def test_where_no_process_would_be_kept_none_starts_ahead(setting):
    story = Story().start(iterations=5, **{"keep_processes": True, **setting})
    story.drain("node-2")
    assert started_ahead(story) == []
    assert stopped(story)


def test_it_starts_where_the_ranks_will_go():
    """In racks: the standby that keeps every shard's copies apart, and not the first."""
    story = Story(nodes=6).start(iterations=5, rack_of=RACKS, keep_processes=True)
    story.drain("node-2")
    story.hold()
    (order,) = started_ahead(story)
    assert order.seats.whole().members == tuple(story.members())
    assert story.members()[2] == "node-5"
    assert [kept_by(one) for one in starts(story)] == [[0, 1, 2, 3]] * 4
