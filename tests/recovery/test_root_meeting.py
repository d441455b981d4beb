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


def test_that_no_rank_calls_protect_is_said_soon_and_once_and_not_after_days():
    story = Story()
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=job())))
    began_s = story.now_s
    for after_s in range(0, 400, 20):  # all are at work
        for rank in (0, 1, 2, 3):
            story.pulse(rank, doing="starting", idle_s=0.0, still_s=0.0)
        story.tick(began_s + after_s)
        if after_s == 100:
            assert story.of(events.Note) == []
    (note,) = story.of(events.Note)
    assert "no rank has called gemini_lab.protect within 120 s of its start" in note.text
    assert story.of(events.WorkerHung) == []


def test_who_loads_a_model_for_long_while_another_is_in_protect_is_not_called_unprotected():
    story = Story()
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=job())))
    began_s = story.now_s
    for after_s in range(0, 200, 20):
        story.pulse(0, doing="meeting", still_s=0.0, idle_s=0.0)
        for rank in (1, 2, 3):
            story.pulse(rank, doing="starting", idle_s=0.0, still_s=0.0)
        story.tick(began_s + after_s)
    assert not [note for note in story.of(events.Note) if "no rank has called" in note.text]
