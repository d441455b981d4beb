"""Ranks that are slower than the others, told as stories: named once, and moved if asked for."""

from gemini_lab.log import events

from .story import Story


def train(story, slow=(), *, iterations=20):
    """All ranks train on; these work three times as long."""
    story.work_s = {rank: 0.9 if rank in slow else 0.3 for rank in range(4)}
    held = len(story.told_to_hold())
    begin = story.root.state.reached.iteration + 1
    for iteration in range(begin, begin + iterations):
        if len(story.told_to_hold()) == held:
            story.iterate(iteration)


def test_a_slow_rank_is_named_once_with_its_node_and_trains_on():
    story = Story().start(iterations=5)
    train(story, {2}, iterations=40)
    (slow,) = story.of(events.RankSlow)
    assert str(slow) == (
        "rank 2 on node-2 is slow: it works for 0.9 s of an iteration of 1 s, the others for "
        "0.3 s, in 13 of the last 16 iterations"
    )
    assert story.told_to_hold() == []
    train(story, iterations=20)
    assert [one.is_over for one in story.of(events.RankSlow)] == [False, True]


def test_its_ranks_move_to_a_standby_if_the_settings_say_so():
    story = Story().start(5, on_slow="drain")
    train(story, {2})
    assert story.told_to_hold() == ["node-0", "node-1", "node-2", "node-3"]
    story.hold(0, 1, 2, 3)
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]
    story.go_on()
    assert [event.name for event in story.of(events.NodeDrained)] == ["node-2"]
    train(story, {2}, iterations=40)  # so that it is not the machine
    assert [one.name for one in story.of(events.RankSlow)] == ["node-2", "node-4"]
    assert story.root.state.phase == "running"
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]


def test_what_workers_of_older_builds_do_not_tell_names_nobody():
    story = Story().start(iterations=40)
    assert story.of(events.RankSlow) == []
