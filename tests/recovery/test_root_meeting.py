"""Ranks meet in `protect`: who does not come is named, and the run is not started for ever."""

from gemini_lab.log import events
from gemini_lab.recovery.protocol import JobSubmitted

from .story import Story, job


def wait(story: Story, seconds: float) -> None:
    """Rank 0 is in `protect`; the others train without."""
    began_s = story.now_s
    story.pulse(0, doing="meeting", still_s=3.0, idle_s=3.0)
    for rank in (1, 2, 3):
        story.pulse(rank, doing="starting", idle_s=3.0, still_s=3.0, waits_in="all_reduce")
    story.tick(began_s + seconds)


def test_they_are_named_in_seconds_and_after_three_starts_the_run_ends_as_the_scripts_doing():
    story = Story()
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=job())))
    wait(story, 18.0)
    (note,) = story.of(events.Note)
    assert "rank 0 has waited in protect" in note.text
    assert "rank 1 (starting, in all_reduce" in note.text
    assert story.of(events.WorkerHung) == []
    for _ in range(3):
        wait(story, 58.0)
    assert {one.rank for one in story.of(events.WorkerHung)} == {1, 2, 3}
    assert story.of(events.NodeExcluded) == []
    (ending,) = story.of(events.RunFailed)
    assert ending.cause == "script"
    assert "call gemini_lab.protect on every rank" in ending.reason


def test_ranks_that_all_wait_before_their_first_step_are_named_in_seconds_and_only_named():
    story = Story()
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=job())))
    for rank in (0, 1, 2, 3):
        place = "all_reduce" if rank else "barrier"
        story.pulse(rank, doing="starting", idle_s=3.0, still_s=3.0, waits_in=place)
    began_s = story.now_s
    story.tick(began_s + 6.0)
    assert story.of(events.Note) == []
    story.tick(began_s + 8.0)
    story.tick(began_s + 100.0)
    (note,) = story.of(events.Note)
    assert "rank 0 starting, in barrier; ranks 1, 2, 3 starting, in all_reduce" in note.text
    assert story.of(events.WorkerHung) == []
