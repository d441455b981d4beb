"""Runs that go on with another number of nodes, told as stories."""

import pytest

from gemini_lab.log import events
from gemini_lab.recovery.messages import ScriptError, Settle
from gemini_lab.recovery.protocol import NoMachineComes, Requested
from gemini_lab.recovery.requests import ResizeRun

from .story import Story

SHORT = {"when_short": "shrink", "shrink_after_s": 0.0, "grow_pause_s": 10.0}


def resize(story: Story, nodes: int, number: int = 1) -> None:
    wanted = Requested(at_s=story.now_s, number=number, request=ResizeRun(nodes=nodes))
    story.do(story.root.handle(wanted))


def hold_all(story: Story) -> None:
    story.hold(*story.root.state.ranks)


def later(story: Story, after_s: float) -> None:
    story.tick(story.now_s + after_s)


def shrunk(**settings: str | float | None) -> Story:
    """Four nodes train and no standby is left; one dies, and three go on."""
    story = Story(nodes=4).start(iterations=4, **{**SHORT, **settings})
    story.lose("node-1")
    story.go_on()
    return story


def sizes(story: Story) -> list[tuple[int, int]]:
    return [(one.nodes_then, one.nodes) for one in story.of(events.Resized)]


def reasons(story: Story) -> list[str]:
    return [one.reason for one in story.of(events.ResizeWaiting)]


# -- a run that is short of machines --------------------------------------------------------------


def test_fewer_nodes_go_on_from_memory_where_no_machine_is_left():
    story = shrunk()
    assert story.members() == ["node-0", "node-2", "node-3"]
    plan = story.plan()
    assert (plan.version, plan.tier) == (4, "memory")
    assert [cut.holders for cut in plan.cuts] == [
        ("node-0",),
        ("node-0",),
        ("node-2", "node-3"),
        ("node-2", "node-3"),
    ]
    assert story.root.state.seats.holders.nodes == 3
    (done,) = story.of(events.RecoveryFinished)
    assert (done.version, done.lost_iterations) == (4, 0)
    assert sizes(story) == [(4, 3)]
    assert story.of(events.Resized)[0].wanted == 4
    assert story.requests[-1].wanted == 5  # four that train, and a standby


def test_by_default_a_run_that_is_short_waits():
    story = Story(nodes=4).start(iterations=4)
    story.lose("node-1")
    later(story, 1000.0)
    assert story.root.state.phase == "waiting"
    assert story.root.state.seats.nodes == 4


def test_a_machine_that_comes_in_time_is_waited_for():
    story = Story(nodes=4).start(iterations=4, when_short="shrink", shrink_after_s=30.0)
    story.lose("node-1")
    later(story, 1.0)
    (waiting,) = story.of(events.RecoveryWaiting)
    assert "if none comes within 30 s, 3 go on" in waiting.reason
    story.join("node-9")
    assert story.members() == ["node-0", "node-9", "node-2", "node-3"]
    story.go_on()
    assert sizes(story) == []


def test_when_none_came_in_time_fewer_go_on():
    story = Story(nodes=4).start(iterations=4, when_short="shrink", shrink_after_s=30.0)
    story.lose("node-1")
    later(story, 29.0)
    assert story.root.state.phase == "waiting"
    later(story, 1.5)
    story.go_on()
    assert sizes(story) == [(4, 3)]


def test_where_no_machine_can_be_had_nobody_waits_for_one():
    story = Story(nodes=4).start(iterations=4, when_short="shrink", shrink_after_s=30.0)
    story.do(story.root.handle(NoMachineComes(at_s=story.now_s)))  # nobody is short yet
    story.lose("node-1")
    assert story.root.state.phase == "waiting"
    story.do(story.root.handle(NoMachineComes(at_s=story.now_s)))
    story.go_on()
    assert sizes(story) == [(4, 3)]


def test_with_fewer_nodes_than_replicas_the_run_waits():
    story = Story(nodes=4).start(iterations=4, replicas=4, **SHORT)
    story.lose("node-1")
    assert story.root.state.phase == "waiting"
    (waiting,) = story.of(events.RecoveryWaiting)
    assert "fewer cannot go on: replicas=4 needs at least 4 nodes" in waiting.reason


def test_a_placement_that_allows_only_some_sizes_is_given_one_of_them():
    story = Story(nodes=4).start(iterations=4, strategy="group", **SHORT)
    story.lose("node-1")
    story.go_on()
    assert sizes(story) == [(4, 2)]
    assert story.plan().version == 4
    assert story.members() == ["node-0", "node-2"]  # who have all shards between them


def test_what_only_a_node_has_that_is_avoided_is_not_lost_for_a_smaller_run():
    story = Story(nodes=4).start(iterations=4, **SHORT)
    story.drain("node-0")
    story.lose("node-1")
    story.go_on()
    assert story.plan().version == 4
    assert story.members() == ["node-0", "node-2", "node-3"]


def test_old_versions_are_let_go_when_a_new_one_is_whole():
    story = Story(nodes=4).start(iterations=4, **SHORT)
    story.lose("node-1")
    story.protect()
    told = [sent for sent in story.orders if isinstance(sent.order, Settle)]
    assert told == []
    story.iterate(5)
    story.iterate(6)
    told = [sent for sent in story.orders if isinstance(sent.order, Settle)]
    assert [(sent.to, sent.order.ranks) for sent in told] == [
        ("node-0", 3),
        ("node-2", 3),
        ("node-3", 3),
    ]


# -- ranks that differ ----------------------------------------------------------------------------


def unlike(*, nodes: int, model_parallel_size: int, **settings: str | float | None) -> Story:
    story = Story(nodes=nodes)
    story.model_parallel_size = model_parallel_size
    return story.start(iterations=4, **settings)


def test_a_short_run_whose_model_takes_two_ranks_goes_on_with_whole_models():
    story = unlike(nodes=4, model_parallel_size=2, **SHORT)
    story.lose("node-1")
    story.go_on()
    assert sizes(story) == [(4, 2)]
    assert story.members() == ["node-0", "node-2"]  # who have all shards between them
    assert story.plan().version == 4
    later(story, 20.0)
    assert story.told_to_hold() == []  # node-3, which stands by, is no model more
    story.join("node-8")
    later(story, 20.0)
    hold_all(story)
    story.go_on()
    assert sizes(story) == [(4, 2), (2, 4)]


def test_sizes_that_leave_no_whole_model_are_refused_with_those_that_would_do():
    story = unlike(nodes=6, model_parallel_size=2)
    resize(story, 5)
    assert story.told_to_hold() == []
    assert reasons(story)[-1] == (
        "a model takes 2 ranks (tensor or pipeline parallel), and 5 nodes have 5; give it 4 or 6"
    )
    resize(story, 6, number=2)
    hold_all(story)
    story.go_on()
    assert sizes(story) == [(4, 6)]


def test_ranks_of_which_nobody_knows_which_are_data_parallel_stay_as_many():
    story = unlike(nodes=4, model_parallel_size=0, **SHORT)
    story.lose("node-1")
    assert story.root.state.phase == "waiting"
    (waiting,) = story.of(events.RecoveryWaiting)
    assert "fewer cannot go on: its ranks hold different tensors" in waiting.reason


# -- growing again --------------------------------------------------------------------------------


def test_a_machine_that_joins_makes_the_run_as_large_as_it_was_with_nothing_done_again():
    story = shrunk()
    story.iterate(6)
    story.join("node-9")
    assert story.told_to_hold() == []
    assert "grows 10 s after" in reasons(story)[-1]
    later(story, 10.0)
    assert story.told_to_hold() == ["node-0", "node-2", "node-3"]
    hold_all(story)
    assert story.members() == ["node-0", "node-2", "node-3", "node-9"]
    assert len(story.plan().cuts) == 3
    assert story.plan().version == 6
    story.go_on()
    assert sizes(story) == [(4, 3), (3, 4)]
    assert [one.lost_iterations for one in story.of(events.RecoveryFinished)] == [0, 0]
    assert [one.cause for one in story.of(events.RecoveryStarted)] == ["node_lost", "resize"]


def test_a_machine_that_still_imports_is_waited_for():
    story = shrunk()
    story.join("node-9", is_ready=False)
    later(story, 20.0)
    assert story.told_to_hold() == []


def test_a_machine_that_comes_and_goes_makes_the_run_start_again_ever_more_rarely():
    story = shrunk()
    pauses, node = [], 10
    for _ in range(4):
        began_s = story.now_s
        story.join(f"node-{node}")
        before = len(story.told_to_hold())
        while len(story.told_to_hold()) == before:
            later(story, 5.0)
        pauses.append(story.now_s - began_s)
        hold_all(story)
        story.go_on()
        story.lose(f"node-{node}")
        story.go_on()
        node += 1
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 80.0
    assert sizes(story)[-2:] == [(3, 4), (4, 3)]


def test_a_machine_that_dies_while_ranks_stop_for_it_changes_nothing():
    story = shrunk()
    story.join("node-9")
    later(story, 10.0)
    story.lose("node-9")
    hold_all(story)
    story.go_on()
    assert story.members() == ["node-0", "node-2", "node-3"]
    assert sizes(story) == [(4, 3)]
    assert story.plan().cuts == ()


def test_a_failure_of_a_machine_that_trains_uses_the_one_that_came():
    story = shrunk(grow_pause_s=1000.0)
    story.join("node-9")
    story.lose("node-2")
    story.go_on()
    assert story.members() == ["node-0", "node-9", "node-3"]


# -- on purpose -----------------------------------------------------------------------------------


def test_a_person_makes_the_run_smaller_and_larger_and_nothing_is_done_again():
    story = Story(nodes=5).start(iterations=5)
    resize(story, 3)
    assert len(story.told_to_hold()) == 4
    hold_all(story)
    assert story.members() == ["node-0", "node-1", "node-2"]
    story.go_on()
    story.iterate(7)
    resize(story, 5, number=2)
    hold_all(story)
    assert story.members() == ["node-0", "node-1", "node-2", "node-3", "node-4"]
    story.go_on()
    assert sizes(story) == [(4, 3), (3, 5)]
    assert [one.lost_iterations for one in story.of(events.RecoveryFinished)] == [0, 0]
    resize(story, 3, number=1)  # what an earlier root agent heard
    assert len(story.told_to_hold()) == 4 + 3


def test_those_who_stay_have_all_shards_between_them():
    story = Story(nodes=4).start(iterations=5)
    resize(story, 2)
    hold_all(story)
    assert story.members() == ["node-0", "node-2"]
    assert story.plan().version == 5


def test_what_cannot_be_is_said_and_training_goes_on():
    story = Story(nodes=4).start(iterations=5, replicas=2)
    resize(story, 1)
    assert story.told_to_hold() == []
    assert "replicas=2 needs at least 2 nodes" in reasons(story)[-1]
    resize(story, 6, number=2)
    assert reasons(story)[-1] == "2 machines are missing"
    assert story.requests[-1].wanted == 7
    resize(story, 5, number=3)
    assert story.requests[-1].wanted == 6  # a machine less is asked for than before
    resize(story, 6, number=4)
    story.join("node-8")
    story.join("node-9")
    assert len(story.told_to_hold()) == 4


def test_too_few_nodes_for_the_shards_are_refused_before_anything_stops():
    story = Story(nodes=4).start(iterations=5, replicas=1)
    resize(story, 3)
    assert story.told_to_hold() == []
    assert "no 3 nodes have all shards" in reasons(story)[-1]


# -- when it goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["CapacityError", "ConfigError", "AssertionError"])
def test_a_size_that_the_script_refuses_is_left_and_not_tried_again(kind):
    story = Story(nodes=4).start(iterations=5)
    resize(story, 3)
    hold_all(story)
    error = ScriptError(error=kind, text="8 samples do not go round")
    story.exit(1, 1, error=error)
    (refused,) = story.of(events.ResizeRefused)
    assert (refused.nodes, "8 samples" in refused.reason) == (3, True)
    assert story.members() == ["node-0", "node-1", "node-2", "node-3"]
    assert story.plan().cuts == ()
    story.go_on()
    later(story, 1000.0)
    assert len(story.told_to_hold()) == 4
    assert story.of(events.RecoveryFinished)[-1].lost_iterations == 0


def test_what_was_laid_out_for_a_size_that_was_refused_is_let_go():
    story = Story(nodes=4).start(iterations=5)
    resize(story, 3)
    hold_all(story)
    story.exit(1, 1, error=ScriptError(error="ConfigError", text="another global batch"))
    story.go_on()
    told = [sent.order.ranks for sent in story.orders if isinstance(sent.order, Settle)]
    assert set(told) == {4}


def test_a_version_that_is_to_be_cut_anew_is_not_saved_while_machines_are_missing():
    story = Story(nodes=4).start(iterations=5, persistent_url="file:///tier")
    resize(story, 3)
    hold_all(story)
    story.protect()
    story.lose("node-3", "node-1", cause="connection")
    later(story, 1.0)
    assert story.root.state.phase == "waiting"
    assert story.of(events.PersistStarted) == []


def test_a_run_that_is_short_tries_a_smaller_size_where_the_script_refuses_one():
    story = Story(nodes=4).start(iterations=4, **SHORT)
    story.lose("node-1")
    error = ScriptError(error="ConfigError", text="another global batch")
    story.exit(0, 1, error=error)
    story.go_on()
    assert sizes(story) == [(4, 2)]
    assert story.plan().version == 4


def test_a_worker_that_is_killed_amid_a_resize_does_not_speak_against_the_size():
    story = Story(nodes=4).start(iterations=5)
    resize(story, 3)
    hold_all(story)
    story.exit(1, -9)
    assert story.of(events.ResizeRefused) == []
    assert len(story.plan().cuts) == 4
    story.go_on()
    assert sizes(story) == [(4, 3)]


def test_a_node_that_dies_amid_a_resize_is_one_less_and_nothing_is_lost():
    story = Story(nodes=4).start(iterations=5, **SHORT)
    resize(story, 3)
    hold_all(story)
    story.lose("node-2")
    assert story.plan().version == 5
    story.go_on()
    assert story.plan().version == 5
    assert story.of(events.RecoveryFinished)[-1].lost_iterations == 0
    assert "node-2" not in story.members()


def test_a_failure_right_after_a_resize_goes_back_to_the_old_shards():
    """The new ones have no replicas until the next version is whole."""
    story = Story(nodes=5).start(iterations=5)
    resize(story, 3)
    hold_all(story)
    story.protect()
    story.lose("node-1")
    assert story.members() == ["node-0", "node-3", "node-2"]
    assert story.root.state.phase == "starting"
    assert (story.plan().version, len(story.plan().cuts)) == (5, 4)


def test_old_shards_are_kept_until_a_version_of_the_new_ones_is_whole():
    story = Story(nodes=5).start(iterations=5)
    resize(story, 3)
    hold_all(story)
    story.protect()
    for rank, node in enumerate(story.members()):  # its version is on its way
        done = events.Iteration(
            rank=rank, epoch=story.epoch, iteration=6, duration_s=1.0, waited_s=0.0
        )
        story.event(node, done)
    assert story.root.state.phase == "running"
    story.lose("node-1")
    assert story.root.state.phase == "starting"
    assert (story.plan().version, len(story.plan().cuts)) == (5, 4)


def test_a_failure_after_a_version_of_the_new_size_goes_on_from_that():
    story = Story(nodes=5).start(iterations=5)
    resize(story, 3)
    hold_all(story)
    story.go_on()
    story.iterate(7)
    story.lose("node-1")
    assert (story.plan().version, story.plan().cuts) == (7, ())


def test_a_root_agent_that_is_lost_while_ranks_stop_leaves_the_resize_to_the_next():
    story = Story(nodes=5).start(iterations=5)
    resize(story, 3)
    story.hold(0)
    story.next_root()
    assert story.members() == ["node-0", "node-1", "node-2"]
    story.go_on()
    assert sizes(story) == [(4, 3)]


def test_a_root_agent_that_is_lost_amid_a_resize_leaves_it_to_the_next():
    story = Story(nodes=5).start(iterations=5)
    resize(story, 3)
    hold_all(story)
    story.next_root()
    assert len(story.plan().cuts) == 4
    story.go_on()
    assert sizes(story) == [(4, 3)]
    story.iterate(7)
    assert any(isinstance(sent.order, Settle) for sent in story.orders)


def test_a_copy_that_cannot_be_read_is_stepped_over():
    story = Story(nodes=5).start(iterations=5)
    resize(story, 3)
    hold_all(story)
    story.fail_restore(2, 5, holder="node-2")
    assert story.plan().version == 5
    assert (2, ("node-3",)) in [(cut.shard, cut.holders) for cut in story.plan().cuts]
    assert story.of(events.ReplicaRejected)[0].holder == "node-2"


def test_a_drain_comes_before_a_resize_and_both_come_true():
    story = Story(nodes=5).start(iterations=5)
    story.drain("node-1")
    resize(story, 3)
    hold_all(story)
    assert story.members() == ["node-0", "node-4", "node-2", "node-3"]
    story.go_on()
    hold_all(story)
    story.go_on()
    assert story.members() == ["node-0", "node-4", "node-2"]


def test_what_a_root_agent_kept_before_resizing_was_known_is_understood():
    story = Story().start()
    text = story.root.state.to_text()
    assert type(story.root.state).from_text(text) == story.root.state
