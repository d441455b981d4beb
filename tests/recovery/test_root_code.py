"""What the root agent knows of the code that workers execute, whatever words come late or never."""

import pytest

from gemini_lab.log import events
from gemini_lab.recovery.messages import ExecutedAs, StartWorkers

from .story import Story


def see(story: Story, digest: str) -> None:
    files = {"train.py": digest}
    seen = events.CodeSeen(rank=0, epoch=story.epoch, files=files)
    story.code[story.members()[0]] = {"train.py": (story.epoch, digest)}
    story.event(story.members()[0], seen)


def told(story: Story) -> dict[str, str]:
    """What the newest start is compared with."""
    return next(s.order for s in reversed(story.orders) if isinstance(s.order, StartWorkers)).code


def test_an_edit_that_is_made_undone_and_made_again_is_each_time_another_code():
    story = Story().start(iterations=3)
    for digest in ("a", "b", "a", "b"):
        see(story, digest)
        story.exit(1, -9)
        assert told(story) == {"train.py": digest}
        story.go_on(4)


@pytest.mark.parametrize(
    ("remembered", "expected"),
    [({"train.py": (2, "b")}, "b"), ({"train.py": (0, "z")}, "a"), ({}, "a")],
)
def test_a_word_that_was_lost_with_its_connection_comes_with_the_nodes_inventory(
    remembered: dict[str, ExecutedAs], expected: str
) -> None:
    """Else the file's return to what it was would be no news, though its edit was told."""
    story = Story().start(iterations=3)
    see(story, "a")
    story.exit(1, -9)
    assert story.epoch == 2
    story.protect()
    story.code[story.members()[0]] = remembered
    story.exit(1, -9)
    assert told(story) == {"train.py": expected}


def test_processes_that_start_ahead_are_told_what_the_others_execute():
    story = Story().start(iterations=5, keep_processes=True)
    see(story, "a")
    story.slow = {2}
    story.drain("node-2")
    starts = [sent.order for sent in story.orders if isinstance(sent.order, StartWorkers)]
    (ahead,) = [order for order in starts if order.joins]
    assert ahead.code == {"train.py": "a"}
