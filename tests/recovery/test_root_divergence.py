"""What the root agent does when an iteration that is done again is not what it was."""

from gemini_lab.log import events
from gemini_lab.recovery.protocol import RootState
from gemini_lab.recovery.root import RootAgent

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


def test_a_new_root_compares_with_what_the_agents_remember():
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
    for rank, node in enumerate(story.members()):
        story.event(node, done(story, 4, 2.25, rank=rank))
    assert {said.rank for said in story.of(events.Diverged)} == {1, 2, 3}


def test_another_job_has_nothing_to_be_compared_with():
    story = Story().start(iterations=3)
    for rank, node in enumerate(story.members()):
        story.event(node, done(story, 4, 2.5, rank=rank))
        story.finish(rank)
    story.start(iterations=3)
    for rank, node in enumerate(story.members()):
        story.event(node, done(story, 4, 9.0, rank=rank))
    assert story.of(events.Diverged) == []
