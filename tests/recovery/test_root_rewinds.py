"""Stories of rewinds: whatever fails around them, nobody goes on from what was left."""

import math
from dataclasses import replace

import msgspec
import pytest
from made import made

from gemini_lab.log import events
from gemini_lab.recovery.messages import (
    Commit,
    Committed,
    Disown,
    GoBack,
    KeptCopy,
    Persisted,
    SaveFailed,
)
from gemini_lab.recovery.plan import VersionId
from gemini_lab.recovery.protocol import AgentJoined, JobSubmitted, Requested
from gemini_lab.recovery.requests import GiveUpProgress, RewindRun, SaveVersion
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab.recovery.saver import Saver
from gemini_lab.shard.layout import ShardRecord
from gemini_lab.shard.lineage import Lineage

from .story import RUN, Story, job

TIER = {"persistent_url": "memory://runs", "persist_every_s": None}


def went_back(**settings) -> Story:
    """Five iterations; then back to version 4, and iteration 5 is done with another batch."""
    story = Story().start(5, **settings)
    story.go_back(4, from_iteration=5)
    return story


def said(story: Story, iteration: int, loss: float) -> None:
    for rank, node in enumerate(story.members()):
        values = {"loss": loss}
        done = events.Iteration(
            rank=rank,
            epoch=story.epoch,
            iteration=iteration,
            duration_s=1.0,
            waited_s=0.0,
            values=values,
        )
        story.event(node, done)


def test_a_failure_right_after_a_rewind_goes_on_from_where_it_went():
    story = went_back()
    story.lose("node-1")
    plan = story.plan()
    assert (plan.version, plan.tier, plan.lineage) == (4, "memory", Lineage(RUN, 1))
    story.go_on(5)
    (end,) = story.of(events.RecoveryFinished)
    assert (end.version, end.lost_iterations) == (4, 0)


def test_a_failure_after_the_next_version_goes_on_from_that():
    story = went_back()
    story.iterate(5)
    story.exit(2, -9)
    assert (story.plan().version, story.plan().lineage) == (5, Lineage(RUN, 1, 1))


def test_a_left_version_that_a_rank_had_no_time_to_discard_is_not_gone_on_from():
    """Its agent knows, because the event is said before the memory is let go."""
    story = went_back()
    for kept in story.copies.values():
        kept += [KeptCopy(shard, 5, Lineage(RUN, 1)) for shard in {copy.shard for copy in kept}]
    story.exit(0, -9)
    assert story.plan().version == 4


@pytest.mark.parametrize("is_heard", [True, False], ids=["root heard of it", "only agents know"])
def test_a_left_version_in_the_tier_is_not_gone_on_from(is_heard):
    """It is newer by its number than all that memory has."""
    story = Story().start(5, **TIER)
    story.persistent = [3, 5]
    story.go_back(3, from_iteration=5, is_heard=is_heard)
    for node in ("node-2", "node-3"):  # with them all copies of some shards go
        story.lose(node)
    story.join("node-5")
    assert (story.plan().version, story.plan().tier) == (3, "persistent")
    assert story.root.state.discarded.left


def test_one_agent_that_knows_is_enough():
    story = Story().start(5, **TIER)
    story.persistent = [5]
    story.go_back(4, from_iteration=5, is_heard=False)
    for node in ("node-1", "node-2", "node-3"):
        del story.left[node]
    story.exit(1, -9)
    assert (story.plan().version, story.plan().tier) == (4, "memory")


def test_a_new_root_knows_from_the_state_that_the_last_one_stored():
    story = went_back(**TIER)
    story.persistent = [5]
    story.left.clear()
    stored = RootState.from_text(story.states[-1].to_text())
    assert stored.discarded.left == story.root.state.discarded.left
    again = Story(state=stored)
    again.persistent, again.copies = [5], story.copies
    again.root = RootAgent(state=stored, at_s=0.0)
    for number in range(5):
        again.join(f"node-{number}")
    again.do(again.root.take_over(0.0))
    again.exit(1, -9)
    assert again.plan().version == 4


def test_what_was_left_is_not_waited_for():
    """A silent node may have version 5; but that is not what training was at."""
    story = went_back()
    story.lose("node-1", cause="connection")
    assert story.root.state.phase == "starting"
    assert story.of(events.RecoveryWaiting) == []


def test_an_iteration_that_is_done_with_another_batch_has_not_diverged():
    story = Story().start(4)
    said(story, 5, math.nan)
    story.go_back(4, from_iteration=5)
    said(story, 5, 2.5)
    assert story.of(events.Diverged) == []


@pytest.mark.parametrize("is_heard", [True, False], ids=["the same root", "another root"])
def test_a_rewind_that_is_done_again_after_a_failure_has_not_diverged(is_heard):
    """From version 4 the bad batch comes once more, and then the guard rejects it once more."""
    story = Story().start(4)
    said(story, 5, math.nan)
    story.go_back(4, from_iteration=5, is_heard=is_heard)
    said(story, 5, 2.5)
    story.exit(1, -9)
    story.protect()
    said(story, 5, math.nan)
    story.go_back(4, from_iteration=5)
    said(story, 5, 2.5)
    assert story.of(events.Diverged) == []


def test_what_is_done_again_after_it_is_compared_as_ever():
    story = went_back()
    said(story, 5, 2.5)
    story.iterate(5)
    said(story, 6, 2.25)
    story.exit(1, -9)
    assert story.plan().version == 5
    story.protect()
    said(story, 6, 2.125)
    assert [one.iteration for one in story.of(events.Diverged)] == [6] * 4


@pytest.mark.parametrize("is_heard", [True, False], ids=["root heard of it", "connections broke"])
def test_a_version_that_is_being_saved_is_given_up_when_training_goes_back_to_before_it(is_heard):
    story = Story().start(4, **{**TIER, "persist_every_iterations": 5})
    story.tick(story.now_s + 0.1)
    assert [one.version for one in story.of(events.PersistStarted)] == [5]
    story.go_back(3, from_iteration=4, is_heard=is_heard)
    if not is_heard:
        again = AgentJoined(
            at_s=story.now_s,
            node="node-0",
            epoch=story.epoch,
            workers=[0],
            left=tuple(story.left["node-0"]),
        )
        story.do(story.root.handle(again))
    (given_up,) = story.of(events.PersistFailed)
    assert (given_up.version, given_up.reason) == (5, "training went back to before it")


def test_versions_are_saved_again_when_training_has_come_as_far_again():
    saver = Saver(last_s=0.0)
    for rank in range(2):
        saver.note_complete(rank, 9, next_version=10)
    saver.note_rewound(0, 6)
    assert saver.newest_whole(range(2)) == 6
    saver.note_rewound(1, 6)
    assert saver.complete == 6
    saver.note_complete(0, 7, next_version=8)
    assert saver.newest_whole(range(2)) == 6


def save(story: Story, version: int) -> None:
    """All members write the version that the root agent asked for, and one of them its manifest."""
    for node in story.members():
        record = ShardRecord(shard=0, file="shard", size_bytes=1, digest="")
        said = Persisted(
            epoch=story.epoch, version=version, lineage=story.lineage, records=[record]
        )
        story.say(node, said)
    story.say("node-3", Committed(epoch=story.epoch, version=version, size_bytes=10))


def gone_behind(*, is_heard: bool = True) -> Story:
    """Version 4 was saved, and training goes back to version 3."""
    story = Story().start(3, **{**TIER, "persist_every_s": 3600.0})
    story.do(story.root.handle(Requested(at_s=0.0, number=1, request=SaveVersion())))
    story.tick(story.now_s + 0.1)
    story.iterate(4)
    save(story, 4)
    story.persistent = [4]
    story.go_back(3, from_iteration=4, is_heard=is_heard)
    return story


def begun(story: Story) -> list[int]:
    """The versions that were to be saved."""
    return [one.version for one in story.of(events.PersistStarted)]


def told_to_disown(story: Story) -> list[list[VersionId]]:
    return [sent.order.left for sent in story.orders if isinstance(sent.order, Disown)]


LEFT = [VersionId(version=3, lineage=Lineage(RUN, 1))]


def test_where_training_went_back_behind_what_is_saved_the_version_it_went_to_is_saved_at_once():
    """A run that is lost before it makes another one would begin at its start."""
    story = gone_behind()
    assert begun(story) == [4, 3]
    assert told_to_disown(story) == [LEFT]
    save(story, 3)
    (_, commit) = (sent.order for sent in story.orders if isinstance(sent.order, Commit))
    assert commit.meta.left == LEFT
    for iteration in (4, 5):
        story.iterate(iteration)
        story.tick(story.now_s + 0.1)
    assert begun(story) == [4, 3]


def test_where_training_has_passed_it_already_the_next_version_is_saved():
    story = gone_behind()
    passed = SaveFailed(epoch=story.epoch, version=3, reason="training has passed it already")
    story.say("node-1", passed)
    story.tick(story.now_s + 0.1)
    assert begun(story) == [4, 3, 4]


@pytest.mark.parametrize("is_heard", [True, False], ids=["root had heard", "only agents know"])
def test_the_next_root_tells_the_tier_what_was_left_and_saves_what_comes(is_heard):
    """Whoever was to write it may be lost with the last one."""
    story = gone_behind(is_heard=is_heard)
    before = len(told_to_disown(story)), len(begun(story))
    for node, left in story.left.items():
        story.root.living[node] = replace(story.root.living[node], left=tuple(left))
    story.next_root()
    assert told_to_disown(story)[before[0]] == LEFT
    story.iterate(4)
    story.tick(story.now_s + 0.1)
    assert begun(story)[before[1] :] == [5]  # nobody told this root what is whole before


def test_a_node_that_is_lost_right_after_a_rewind_keeps_the_tier_from_nothing():
    story = gone_behind()
    story.lose("node-0")
    assert told_to_disown(story) == [LEFT, LEFT]
    story.protect()
    assert begun(story) == [4, 3, 3]
    save(story, 3)
    story.iterate(4)
    story.tick(story.now_s + 0.1)
    assert begun(story) == [4, 3, 3]


def test_batches_that_a_person_wanted_skipped_do_not_come_again_without_a_word():
    """Where the data stand after it only later versions know."""
    story = Story().start(5)
    story.go_back(4, from_iteration=5, cause="person")
    story.lose("node-1")
    assert story.plan().version == 4
    assert "skipped with the rewind to version 4 come again" in story.of(events.Note)[-1].text
    story.go_on(5)
    before = len(story.of(events.Note))
    story.exit(2, -9)
    assert story.plan().version == 5
    assert len(story.of(events.Note)) == before


def test_a_run_that_resumes_where_nothing_counts_any_more_asks_before_it_begins_anew():
    """What the run before went back to was lost with its machines."""
    story = Story()
    story.disowned = [VersionId(version=7, lineage=Lineage(RUN + 1, 1))]
    order = msgspec.structs.replace(job(**TIER), is_resumed=True)
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=order)))
    (waiting,) = story.of(events.RecoveryWaiting)
    assert "no copy of version 7 is left anywhere" in waiting.reason
    story.do(story.root.handle(Requested(at_s=1.0, number=1, request=GiveUpProgress())))
    assert story.plan().tier == "start"


def test_a_guard_that_has_no_version_to_go_back_to_ends_the_run():
    story = Story().start(3)
    failed = events.RewindFailed(
        rank=2, epoch=story.epoch, iteration=4, cause="guard", reason="nan"
    )
    story.event("node-2", failed)
    (ending,) = story.of(events.RunFailed)
    assert (ending.reason, ending.cause) == ("nan", "not_finite")


def test_a_slow_rank_that_says_late_what_it_had_done_does_not_make_it_count():
    story = Story().start(5)
    members = story.members()
    rewinds = [
        events.Rewound(
            rank=rank,
            epoch=story.epoch,
            iteration=6,
            version=4,
            rewinds=1,
            skips=True,
            cause="script",
            duration_s=0.1,
        )
        for rank in range(4)
    ]
    for rank in (0, 1, 2):
        story.event(members[rank], rewinds[rank])
    late = made(events.VersionComplete, rank=3, epoch=story.epoch, version=6, next_version=7)
    story.event(members[3], late)
    assert story.root.state.reached.newest == 4
    story.event(members[3], rewinds[3])
    assert story.root.state.reached.newest == 4
    assert len(story.root.state.discarded.left) == 1


def test_a_persons_word_goes_to_all_members_once_whoever_is_root():
    story = Story().start(3)
    wanted = Requested(at_s=0.0, number=17, request=RewindRun(steps=2))
    story.do(story.root.handle(wanted))
    told = [sent for sent in story.orders if isinstance(sent.order, GoBack)]
    assert [sent.to for sent in told] == story.members()
    assert {(sent.order.number, sent.order.steps, sent.order.skip) for sent in told} == {
        (1, 2, True)
    }
    again = RootAgent(state=RootState.from_text(story.states[-1].to_text()), at_s=story.now_s)
    again.run.living = story.root.living
    assert again.handle(wanted) == []


def test_what_is_not_under_way_does_not_go_back_later():
    story = Story().start(3)
    story.deaf = set(story.root.living)
    story.exit(1, -9)
    story.do(story.root.handle(Requested(at_s=0.0, number=17, request=RewindRun(steps=2))))
    assert not any(isinstance(sent.order, GoBack) for sent in story.orders)
    assert "ask again then" in story.of(events.Note)[-1].text
