"""Nodes whose machines are to go, told as stories: their ranks move, and nothing is done again."""

from gemini_lab.log import events
from gemini_lab.recovery.messages import Drained, NodeLeaves, ReadyToStart
from gemini_lab.recovery.protocol import AgentJoined

from .story import Story


def let_go(story: Story) -> list[str]:
    return [sent.to for sent in story.orders if isinstance(sent.order, Drained)]


def test_a_nodes_ranks_move_to_a_standby_when_all_have_stopped_and_nothing_is_done_again():
    story = Story().start(iterations=5)
    story.drain("node-2")
    assert story.told_to_hold() == ["node-0", "node-1", "node-2", "node-3"]
    story.hold(0, 1, 2)
    assert story.root.state.phase == "running"
    story.hold(3)
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]
    assert let_go(story) == []  # until its ranks train elsewhere
    story.go_on()
    (done,) = story.of(events.RecoveryFinished)
    assert (done.version, done.lost_iterations) == (5, 0)
    assert story.of(events.RecoveryStarted)[0].cause == "drain"
    assert let_go(story) == ["node-2"]
    assert [event.name for event in story.of(events.NodeDrained)] == ["node-2"]


def test_an_answer_that_was_lost_with_its_connection_is_asked_for_again():
    story = Story().start(iterations=5)
    story.drain("node-2")
    story.hold(0, 1, 2)
    back = AgentJoined(at_s=story.now_s, node="node-3", epoch=story.epoch, workers=[3])
    story.do(story.root.handle(back))
    assert story.told_to_hold()[4:] == ["node-3"]
    story.hold(3)
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]


def test_a_node_that_left_takes_no_place_again_while_there_is_another():
    story = Story(nodes=6).start()
    story.drain("node-2")
    story.hold(0, 1, 2, 3)
    story.go_on()
    story.lose("node-0")
    assert story.members() == ["node-5", "node-1", "node-4", "node-3"]


def test_where_nothing_else_is_left_a_node_that_is_to_go_is_used_again():
    story = Story().start()
    story.drain("node-2")
    story.hold(0, 1, 2, 3)
    story.go_on()
    story.lose("node-4")
    assert story.members() == ["node-0", "node-1", "node-2", "node-3"]


def test_without_a_standby_the_node_trains_on_until_one_joins():
    story = Story(nodes=4).start()
    story.drain("node-1")
    assert story.told_to_hold() == []
    (waiting,) = story.of(events.DrainWaiting)
    assert (waiting.name, waiting.reason) == ("node-1", "no standby is there to take its place")
    assert story.requests[-1].wanted == 6  # four that train, a standby, and the one that goes
    story.join("node-9")
    assert len(story.told_to_hold()) == 4
    story.hold(0, 1, 2, 3)
    assert story.members() == ["node-0", "node-9", "node-2", "node-3"]


def test_two_nodes_leave_one_after_the_other_as_they_may_keep_each_others_replicas():
    story = Story(nodes=6).start()
    story.drain("node-0", 1)
    story.drain("node-1", 2)
    assert len(story.told_to_hold()) == 4
    story.hold(0, 1, 2, 3)
    assert story.members() == ["node-4", "node-1", "node-2", "node-3"]
    story.go_on()
    assert len(story.told_to_hold()) == 8
    story.hold(0, 1, 2, 3)
    assert story.members() == ["node-4", "node-5", "node-2", "node-3"]
    story.go_on()
    assert let_go(story) == ["node-0", "node-1"]


def test_a_standby_is_let_go_at_once():
    story = Story().start()
    story.drain("node-4")
    assert let_go(story) == ["node-4"]
    assert story.told_to_hold() == []


def test_a_failure_while_ranks_stop_moves_the_node_as_well():
    story = Story(nodes=6).start(iterations=4)
    story.drain("node-2")
    story.hold(0)
    story.lose("node-1")
    assert story.members() == ["node-0", "node-4", "node-5", "node-3"]
    story.go_on()
    assert let_go(story) == ["node-2"]


def test_a_node_with_the_last_copy_stays_until_another_has_it():
    story = Story(nodes=6).start(iterations=4)
    story.drain("node-2")
    story.hold(0)
    story.lose("node-3")  # which kept the replica of node-2's shard
    assert story.members() == ["node-0", "node-1", "node-2", "node-4"]
    assert story.plan().version == 4
    story.go_on()
    assert len(story.told_to_hold()) == 8
    story.hold(0, 1, 2, 3)
    assert story.members() == ["node-0", "node-1", "node-5", "node-4"]


def test_a_move_that_comes_to_nothing_is_not_tried_for_ever():
    story = Story().start(iterations=4)
    story.drain("node-2")
    story.hold(0, 1, 2)
    story.lose("node-4")  # the standby
    story.hold(3)
    story.go_on()
    assert story.members() == ["node-0", "node-1", "node-2", "node-3"]
    assert len(story.told_to_hold()) == 4
    (said,) = story.of(events.DrainWaiting)
    assert said.is_given_up
    assert "could not be done without" in said.reason


def test_a_node_that_dies_before_its_ranks_could_move_is_a_lost_node_and_nothing_else():
    story = Story().start()
    story.drain("node-2")
    story.lose("node-2")
    story.go_on()
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]
    assert story.of(events.NodeDrained) == []
    assert story.root.state.drain.leaving == story.root.state.drain.moved == ()


def test_with_one_replica_nobody_else_has_its_shards_so_it_stays():
    story = Story().start(replicas=1)
    story.drain("node-2")
    assert story.told_to_hold() == []
    assert "one replica" in story.of(events.DrainWaiting)[0].reason


def test_a_new_root_goes_on_with_a_move_and_hears_the_word_for_it_once():
    story = Story().start(iterations=4)
    story.drain("node-2")
    story.hold(0, 1)
    story.next_root()
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]
    story.go_on()
    assert let_go(story) == ["node-2"]
    story.lose("node-2")
    story.join("node-2")  # another machine of that name
    story.drain("node-2", 1)
    assert story.root.state.drain.leaving == story.root.state.drain.moved == ()


def test_an_agent_that_was_told_that_its_machine_goes_asks_by_itself_and_again_of_a_new_root():
    story = Story().start()
    for _ in range(2):
        story.say("node-1", NodeLeaves(within_s=30.0))
    assert len(story.told_to_hold()) == 4
    assert [event.within_s for event in story.of(events.NodeLeaving)] == [30.0]
    story.hold(0, 1, 2, 3)
    story.go_on()
    story.next_root()
    story.say("node-1", NodeLeaves(within_s=20.0))  # it has not heard yet that it may
    story.go_on()
    assert let_go(story) == ["node-1", "node-1"]
    assert len(story.of(events.NodeLeaving)) == 1


def test_ranks_that_do_not_stop_are_named_once():
    story = Story().start()
    story.drain("node-2")
    story.hold(0, 1, 2)
    story.tick(story.now_s + 25.0)
    story.tick(story.now_s + 25.0)
    (note,) = story.of(events.Note)
    assert "rank 3 has not come to the end of its iteration in 25 s" in note.text


def test_at_the_end_of_a_run_nodes_that_were_to_go_are_free():
    story = Story(nodes=4).start()
    story.drain("node-1")
    for rank in range(4):
        story.finish(rank)
    assert story.root.state.phase == "done"
    assert let_go(story) == ["node-1"]


def test_ranks_do_not_stop_for_a_machine_that_still_imports():
    story = Story(nodes=4).start()
    story.drain("node-1")
    story.join("node-9", is_ready=False)
    assert story.told_to_hold() == []
    waits = story.of(events.DrainWaiting)[-1]
    assert (waits.reason, waits.is_given_up) == ("node-9 still imports what workers need", False)
    story.say("node-9", ReadyToStart())
    assert len(story.told_to_hold()) == 4


def test_a_standby_that_is_ready_is_taken_before_one_that_still_imports():
    story = Story(nodes=4)
    story.join("node-4", is_ready=False)
    story.join("node-5")
    story.start()
    story.lose("node-2")
    assert story.members() == ["node-0", "node-1", "node-5", "node-3"]


def test_another_standby_is_asked_for_when_one_has_taken_a_leaving_nodes_place():
    story = Story().start()
    story.drain("node-2")
    story.hold(0, 1, 2, 3)
    story.go_on()
    assert story.requests[-1].wanted == 6  # until node-2 is gone, it counts as one more
    story.lose("node-2")
    assert story.requests[-1].wanted == 5


def test_what_ranks_have_loaded_is_no_news_to_a_root_agent_that_made_no_plan():
    """Agents say it again to each root agent that connects, such as the next one after a drain."""
    story = Story().start(iterations=5)
    story.drain("node-0")
    story.hold(0, 1, 2, 3)
    story.go_on()
    assert story.root.state.phase == "running"
    told = [(story.members()[rank], story.receipt(rank)) for rank in story.root.state.ranks]
    steps = len(story.of(events.RecoveryStep))
    for rank, node in enumerate(story.members()):
        trains = AgentJoined(at_s=9.0, node=node, epoch=story.epoch, workers=[rank])
        story.root.living[node] = trains
    story.next_root()
    for node, receipt in told:
        story.event(node, receipt)
    assert story.root.state.phase == "running"
    assert len(story.of(events.RecoveryStep)) == steps
    story.lose("node-1")
    story.go_on()
    assert story.of(events.RecoveryFinished)[-1].lost_iterations == 0
