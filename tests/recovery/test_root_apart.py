"""What the root agent does when a rank comes to an end while others train on."""

import pytest

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.node.listener import WorkerHistory
from gemini_lab.recovery.messages import EndReached, EventSaid, ScriptError, ScriptFinished

from .story import RUN, Story

PEER = ScriptError(error="RuntimeError", text="Connection closed by peer [127.0.0.1]:4510")


def over(story: Story, rank: int, what: str, *, iteration: int = 3) -> None:
    said = EndReached(rank=rank, epoch=story.epoch, iteration=iteration, what=what)  # type: ignore[arg-type]
    story.say(story.members()[rank], said)


def begin(story: Story, *ranks: int, iteration: int = 4) -> None:
    """Ranks begin an iteration, and wait in it for one that does not come."""
    for rank in ranks:
        inputs = events.Inputs(batch="", random={}, learning_rate=None)
        begun = events.IterationBegun(
            rank=rank, epoch=story.epoch, iteration=iteration, inputs=inputs
        )
        story.event(story.members()[rank], begun)
        story.pulse(rank, doing="step", still_s=4.0, idle_s=4.0, where="train.py:9 in <module>")


def leave(story: Story, rank: int, *, iteration: int = 3) -> None:
    """A rank leaves its loop and ends its script."""
    over(story, rank, "loop", iteration=iteration)
    over(story, rank, "script", iteration=iteration)
    story.finish(rank)


def fall_apart(story: Story) -> None:
    leave(story, 1)
    begin(story, 0, 2, 3)
    story.tick(story.now_s + 1.0)


def test_a_rank_that_ends_too_early_is_named_at_once_with_its_iteration_and_those_of_others():
    story = Story().start(iterations=3)
    fall_apart(story)
    (said,) = story.of(events.RanksApart)
    assert (said.rank, said.iteration) == (1, 3)
    assert said.seen.startswith("rank 1 on node-1 has ended its script after iteration 3, while ")
    assert "rank 0 is in iteration 4 (in a step, at train.py:9 in <module>)" in said.seen
    assert story.of(events.RecoveryStarted)[-1].cause == "ranks_apart"
    assert "worker_hung" not in story.kinds()


@pytest.mark.parametrize("who", ["the same root agent", "the next one"])
def test_a_rank_that_ended_while_the_root_agent_heard_nothing_is_named_all_the_same(who):
    """Its agent says it again, and of the others which iteration they have begun."""
    story = Story().start(iterations=3)
    if who == "the next one":
        story.next_root()
    members = story.members()
    loop, script = (
        EndReached(rank=1, epoch=story.epoch, iteration=3, what=w) for w in ("loop", "script")
    )
    inputs = events.Inputs(batch="", random={}, learning_rate=None)
    for rank, node in enumerate(members):
        agent = WorkerHistory()
        agent.begin(RUN)
        if rank == 1:
            for said in (loop, script, ScriptFinished(rank=1, epoch=story.epoch)):
                agent.end(said)
        else:
            begun = events.IterationBegun(rank=rank, epoch=story.epoch, iteration=4, inputs=inputs)
            agent.take(Entry(at_s=story.now_s, node=node, event=begun))
        for word in agent.decisive(story.epoch):
            story.say(node, EventSaid(entry=word) if isinstance(word, Entry) else word)
        if rank != 1:
            story.pulse(rank, doing="step", still_s=4.0, idle_s=4.0)
    story.tick(story.now_s + 1.0)
    (told,) = story.of(events.RanksApart)
    assert told.seen.startswith("rank 1 on node-1 has ended its script after iteration 3, while ")
    assert "rank 0 is in iteration 4" in told.seen
    assert "worker_hung" not in story.kinds()


def test_where_it_comes_again_after_the_same_iteration_the_run_ends_as_the_scripts_doing():
    story = Story().start(iterations=3)
    fall_apart(story)
    story.protect()
    assert story.root.state.phase != "failed"
    fall_apart(story)
    (ending,) = story.of(events.RunFailed)
    assert ending.cause == "script"
    assert "rank 1 on node-1 has ended its script after iteration 3" in ending.reason
    assert "have every rank do the same number of iterations" in ending.reason


def test_one_that_ends_early_once_for_a_moments_reason_costs_a_start_and_no_more():
    story = Story().start(iterations=3)
    fall_apart(story)
    story.go_on()
    story.iterate(*range(5, 9))
    assert story.root.state.phase == "running"
    assert len(story.of(events.RanksApart)) == 1


def test_at_the_ordinary_end_a_rank_may_take_as_long_as_it_likes():
    """Rank 0 tries its model out after its loop, in the mode of training, and uploads it then."""
    story = Story().start(iterations=3)
    for rank in range(4):
        over(story, rank, "loop")
    for rank in range(1, 4):
        over(story, rank, "script")
        story.finish(rank)
    begin(story, 0)
    for _ in range(20):
        story.tick(story.now_s + 1.0)
    assert story.of(events.RanksApart) == []
    assert story.root.state.phase == "running"


def test_where_all_break_off_their_loop_a_rank_may_take_its_time_too():
    story = Story().start(iterations=3)
    for rank in range(4):
        over(story, rank, "break")
    for rank in range(1, 4):
        leave(story, rank)
    begin(story, 0)
    for _ in range(20):
        story.tick(story.now_s + 1.0)
    assert story.of(events.RanksApart) == []


def test_a_loop_that_an_error_breaks_off_is_told_by_that_error():
    """Its peer's own error, that it lost it, comes first."""
    story = Story().start(iterations=3)
    over(story, 1, "break")
    begin(story, 0)
    story.exit(0, 1, error=PEER)
    assert story.of(events.RanksApart) == []


def test_a_rank_that_is_behind_in_the_last_iteration_is_waited_for():
    story = Story().start(iterations=3)
    for rank in range(1, 4):
        over(story, rank, "loop", iteration=4)
        over(story, rank, "script", iteration=4)
        story.finish(rank)
    begin(story, 0)
    for _ in range(20):
        story.tick(story.now_s + 1.0)
    assert story.of(events.RanksApart) == []


def test_who_computes_still_is_not_judged_before_it_stands():
    story = Story().start(iterations=3)
    leave(story, 1)
    for rank in (0, 2, 3):
        inputs = events.Inputs(batch="", random={}, learning_rate=None)
        begun = events.IterationBegun(rank=rank, epoch=story.epoch, iteration=4, inputs=inputs)
        story.event(story.members()[rank], begun)
    story.tick(story.now_s + 20.0)
    assert story.of(events.RanksApart) == []


def test_a_loop_that_says_nothing_of_itself_is_judged_as_late_as_a_hang_but_by_its_cause():
    story = Story().start(iterations=3)
    over(story, 1, "script")
    story.finish(1)
    begin(story, 0, 2, 3)
    story.tick(story.now_s + 5.0)
    assert story.of(events.RanksApart) == []
    story.tick(story.now_s + 40.0)
    (said,) = story.of(events.RanksApart)
    assert "rank 1 on node-1 has ended its script" in said.seen


@pytest.mark.parametrize("what", ["loop", "script"])
def test_a_rank_that_loses_a_peer_which_ended_is_not_to_blame(what):
    story = Story().start(iterations=3)
    over(story, 1, "loop")
    over(story, 1, what)
    begin(story, 0)
    story.exit(0, 1, error=PEER)
    (said,) = story.of(events.RanksApart)
    assert said.rank == 1
    assert story.of(events.RecoveryStarted)[-1].cause == "ranks_apart"


def test_a_process_that_ends_well_before_its_script_does_is_named_at_once_and_ends_the_run_soon():
    story = Story().start(iterations=3)
    story.exit(1, 0)
    (said,) = story.of(events.RanksApart)
    assert said.seen.startswith("rank 1 on node-1 has ended its process after iteration 3, while ")
    story.protect()
    story.exit(1, 0)
    assert "has ended its process" in story.of(events.RunFailed)[0].reason


def test_data_of_unequal_length_end_the_run_at_once_where_an_epoch_ends_together():
    story = Story().start(iterations=3)
    over(story, 1, "epoch")
    begin(story, 0, 2, 3)
    story.tick(story.now_s + 1.0)
    (ending,) = story.of(events.RunFailed)
    assert "rank 1 on node-1 has come to the end of its epoch after iteration 3" in ending.reason
    assert "as many batches for each" in ending.reason


def test_a_rank_that_begins_its_next_pass_at_its_own_time_is_well():
    story = Story().start(iterations=3)
    over(story, 1, "data")
    begin(story, 0, 1, 2, 3)
    story.iterate(4)
    story.tick(story.now_s + 5.0)
    assert story.of(events.RanksApart) == []


def test_sums_of_different_sizes_that_end_a_process_are_told_by_what_led_there():
    """Gloo aborts the process whose buffer is too small for what another one adds up."""
    story = Story().start(iterations=3)
    over(story, 1, "data")
    begin(story, 0)
    story.exit(1, -6)
    (said,) = story.of(events.RanksApart)
    assert said.seen.startswith(
        "rank 1 on node-1 has no batch left after iteration 3, while rank 0"
    )


def test_a_node_that_is_lost_as_a_pass_ends_is_taken_for_what_it_is():
    story = Story().start(iterations=3)
    over(story, 1, "data")
    begin(story, 0)
    story.exit(0, 1, error=PEER)
    assert story.of(events.RanksApart) == []
    assert story.of(events.RecoveryStarted)[-1].cause == "worker_exited"


def test_a_script_that_ends_before_protect_on_one_rank_is_told_as_soon_as_others_wait_there():
    story = Story().start(iterations=0)
    story.exit(2, -9)  # a start in which nobody has come to `protect` yet
    over(story, 1, "script", iteration=0)
    story.finish(1)
    for rank in (0, 2, 3):
        story.pulse(rank, doing="meeting", still_s=4.0, idle_s=4.0)
    story.tick(story.now_s + 1.0)
    hung = story.of(events.WorkerHung)
    assert [one.rank for one in hung] == [0, 2, 3]
    assert "the script of rank 1 has ended without calling it" in hung[0].seen


def test_ranks_that_wait_before_protect_for_one_whose_script_has_ended_are_told_of_it():
    story = Story().start(iterations=0)
    story.exit(2, -9)
    story.finish(1)
    for rank in (0, 2, 3):
        story.pulse(rank, doing="starting", still_s=70.0, idle_s=70.0, where="train.py:5 in make")
    story.tick(story.now_s + 1.0)
    (said,) = story.of(events.RanksApart)
    assert "rank 1 on node-1 has ended its script before any iteration" in said.seen
    assert any("rank 1 at the script's end" in note.text for note in story.of(events.Note))


def test_a_root_that_was_just_elected_takes_no_ordinary_end_for_an_early_one():
    story = Story().start(iterations=3)
    for rank in range(4):
        over(story, rank, "loop")
    story.next_root()
    for rank in range(1, 4):
        story.finish(rank)
    begin(story, 0)
    for wait_s in (10.0, 40.0):  # the second is as long as for a hang
        story.tick(story.now_s + wait_s)
    assert story.of(events.RanksApart) == []
