"""A root agent whose recoveries a function decides: what people hear while it says nothing."""

import pytest

from gemini_lab.log import events
from gemini_lab.recovery.root_state import RootState
from gemini_lab_course.own_root.deciding import Ask, Failed, Fence, Fenced, Start, Told
from gemini_lab_course.own_root.guided import SILENCE_S, GuidedRoot

from .story import Story


def decide(state, event, cluster, *, silent_at=()):
    """Fence, ask everybody, start with the newest version; nothing at some kinds of event."""
    match event:
        case _ if isinstance(event, silent_at):
            return None
        case Failed():
            state["fenced"] = state["told"] = 0
            return Fence()
        case Fenced():
            state["fenced"] += 1
            return Ask() if state["fenced"] == len(cluster.living) else None
        case Told():
            state["told"] += 1
            return Start(cluster.newest) if state["told"] == len(cluster.living) else None


def guided(silent_at=()):
    """A run of four nodes and a standby that has lost a worker."""
    story = Story()
    story.root = GuidedRoot(
        state=RootState(),
        at_s=0.0,
        decide=lambda *asked: decide(*asked, silent_at=silent_at),
    )
    for node in story.copies:
        story.join(node)
    return story.start()


def reasons(story):
    return [said.reason for said in story.events if isinstance(said, events.RecoveryWaiting)]


@pytest.mark.parametrize(
    ("silent_at", "said"),
    [
        (
            (Failed,),
            "your function answered nothing to Failed(worker_exited), and all nodes have answered",
        ),
        (
            (Fenced,),
            "your function answered nothing to Fenced(node-4), and all nodes have answered",
        ),
        (
            (Told,),
            "your function answered nothing to Told(node-4: nothing), and all nodes have answered",
        ),
    ],
    ids=["at the failure", "when all are fenced", "when all have told"],
)
def test_people_are_told_once_of_one_that_says_nothing_more(silent_at, said):
    story = guided(silent_at)
    story.exit(0, 1)
    phase = story.root.state.phase
    story.tick(story.now_s + 1)
    assert not reasons(story)
    for _ in range(3):
        story.tick(story.now_s + SILENCE_S)
    (reason,) = reasons(story)
    assert reason.startswith(said)
    assert story.root.state.phase == phase


def test_nobody_is_told_while_an_agent_has_yet_to_answer():
    story = guided()
    story.deaf = {"node-2"}
    story.exit(0, 1)
    for _ in range(3):
        story.tick(story.now_s + SILENCE_S)
    assert story.root.state.phase == "inventory"
    assert not reasons(story)


def test_nobody_is_told_where_it_goes_on():
    story = guided()
    story.exit(0, 1)
    story.go_on(4)
    for _ in range(3):
        story.tick(story.now_s + SILENCE_S)
    assert story.root.state.phase == "running"
    assert not reasons(story)
