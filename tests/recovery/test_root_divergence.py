"""What the root agent does when an iteration that is done again is not what it was."""

import msgspec
from made import made

from gemini_lab.log import events
from gemini_lab.recovery.log_events import last_done
from gemini_lab.recovery.messages import Inventory, TakeInventory
from gemini_lab.recovery.protocol import AgentJoined
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState

from .story import Story


def done(story: Story, iteration: int, loss: float, *, rank: int = 0) -> events.Iteration:
    return events.Iteration(
        rank=rank,
        epoch=story.epoch,
        iteration=iteration,
        duration_s=1.0,
        waited_s=0.0,
        values={"loss": loss},
    )


def redo(story: Story, *, loss: float) -> Story:
    """Iteration 4 ends on every rank, its version nowhere; all do it again, rank 2 with `loss`."""
    for rank, node in enumerate(story.members()):
        story.event(node, done(story, 4, 2.5, rank=rank))
    story.exit(1, -9)
    story.protect()
    for rank, node in enumerate(story.members()):
        story.event(node, done(story, 4, loss if rank == 2 else 2.5, rank=rank))
    return story


def test_the_same_numbers_again_are_no_news():
    story = redo(Story().start(iterations=3), loss=2.5)
    assert story.root.state.phase == "running"
    assert story.of(events.Diverged) == []


def test_another_loss_is_said_and_training_goes_on():
    story = redo(Story().start(iterations=3), loss=2.25)
    (said,) = story.of(events.Diverged)
    assert (said.rank, said.epoch, said.iteration, said.differs) == (2, story.epoch, 4, "loss")
    assert str(said) == "rank 2, iteration 4: loss 2.25 now, 2.5 before the failure"
    assert story.root.state.phase == "running"


def test_a_run_that_is_told_to_stop_at_a_divergence_ends_with_the_reason():
    story = redo(Story().start(iterations=3, on_divergence="stop"), loss=2.25)
    assert story.root.state.phase == "failed"
    (ending,) = story.of(events.RunFailed)
    assert "rank 2, iteration 4: loss 2.25 now, 2.5 before" in ending.reason
    assert '"on_divergence": "stop"' in ending.reason
    assert len(story.of(events.Diverged)) == 1


def test_iterations_that_nobody_told_while_a_connection_was_broken_are_no_divergence():
    story = Story().start(iterations=3, on_divergence="stop")
    node = story.members()[2]
    # Its worker has done iterations 4 and 5 meanwhile.
    again = AgentJoined(at_s=story.now_s, node=node, epoch=story.epoch, workers=[2])
    story.do(story.root.handle(again))
    for iteration in (6, 7):
        story.event(node, done(story, iteration, 2.5, rank=2))
    assert story.of(events.Diverged) == []
    assert story.root.state.phase == "running"


def succeed() -> Story:
    """The root that heard of iteration 4 is gone; the agents of the others are not."""
    story = Story().start(iterations=3)
    members = story.members()
    for rank in (1, 2, 3):
        story.remembered[members[rank]] = [done(story, 4, 2.5, rank=rank)]
    state: RootState = story.states[-1]
    story.root = RootAgent(state=state, at_s=story.now_s)
    for node in ("node-1", "node-2", "node-3", "node-4"):
        story.join(node)
    story.do(story.root.take_over(story.now_s))
    story.protect()
    return story


def test_a_new_root_compares_with_what_the_agents_remember():
    story = succeed()
    for rank, node in enumerate(story.members()):
        story.event(node, done(story, 4, 2.25, rank=rank))
    assert {said.rank for said in story.of(events.Diverged)} == {1, 2, 3}


def test_a_new_root_tells_what_is_done_again_though_it_saw_none_of_it():
    story = succeed()
    story.iterate(4)
    (told,) = story.of(events.RecoveryFinished)
    assert (told.version, told.lost_iterations) == (3, 1)


def test_what_was_done_in_a_history_that_was_left_is_not_done_again():
    story = Story(nodes=0)
    answers = [
        made(Inventory, epoch=4, iterations=[done(story, 16, 2.5, rank=0)]),
        made(
            Inventory,
            epoch=4,
            iterations=[
                msgspec.structs.replace(done(story, number, 2.5, rank=rank), epoch=3)
                for rank, number in ((1, 9), (1, 10), (2, 9))
            ],
        ),
    ]
    assert last_done(answers) == 9
    assert last_done([]) == 0


def test_another_job_has_nothing_to_be_compared_with():
    story = Story().start(iterations=3)
    for rank, node in enumerate(story.members()):
        story.event(node, done(story, 4, 2.5, rank=rank))
        story.finish(rank)
    story.start(iterations=3)
    for rank, node in enumerate(story.members()):
        story.event(node, done(story, 4, 9.0, rank=rank))
    assert story.of(events.Diverged) == []


def words_asked(story: Story) -> set[int]:
    """Return after which iterations the last inventory asked for workers' words."""
    asked = [one.order for one in story.orders if isinstance(one.order, TakeInventory)]
    return {one.words_after for one in asked if one.epoch == story.epoch}


def test_nodes_say_again_only_what_the_root_agent_may_not_have_heard():
    story = Story().start(iterations=3)
    assert words_asked(story) == {0}
    story.exit(1, -9)
    assert words_asked(story) == {3}
    story.go_on(4)
    story.next_root()  # which has heard nothing, and has all start again
    assert words_asked(story) == {0}
    story.go_on(5)
    story.exit(2, -9)
    assert words_asked(story) == {5}


def test_after_a_connection_broke_its_node_may_have_said_what_was_lost():
    story = Story().start(iterations=3)
    joined = AgentJoined(at_s=story.now_s, node="node-1", epoch=story.epoch, workers=[1])
    story.do(story.root.handle(joined))
    story.exit(1, -9)
    assert words_asked(story) == {0}
