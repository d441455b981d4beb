"""A persistent tier that lists and does not read, or lists too little: what was saved stays."""

import pytest

from gemini_lab.log import events
from gemini_lab.recovery.messages import Committed, Persisted, RestoreFailed, StartWorkers
from gemini_lab.recovery.plan import Unclear
from gemini_lab.recovery.progress_at_risk import LONGEST_PAUSE_S
from gemini_lab.recovery.protocol import Requested
from gemini_lab.recovery.requests import GiveUpProgress

from .story import Story

TIER = "memory://runs"


def saved_run() -> Story:
    """A run of six iterations that saved versions 2 and 5."""
    story = Story(nodes=7).start(0, persistent_url=TIER, persist_every_iterations=1)
    for iteration in range(1, 7):
        story.iterate(iteration)
        story.tick(story.now_s)
        if iteration in {3, 5}:
            save(story, story.of(events.PersistStarted)[-1].version)
    assert story.persistent == [2, 5]
    return story


def save(story: Story, version: int) -> None:
    """The version on its way arrives."""
    for node in story.members():
        said = Persisted(epoch=story.epoch, version=version, records=[], lineage=story.lineage)
        story.say(node, said)
    story.say("node-0", Committed(epoch=story.epoch, version=version, size_bytes=4))
    story.persistent.append(version)


def lose_group(story: Story) -> None:
    story.lose("node-0", "node-1")


def refuse(story: Story, version: int, *, is_unread: bool, rank: int = 2) -> None:
    """A worker cannot load its shard of a version from the tier."""
    said = RestoreFailed(
        rank=rank,
        epoch=story.epoch,
        shard=rank,
        version=version,
        holder=None,
        reason="503 Slow Down" if is_unread else "differs from its checksum",
        is_unread=is_unread,
    )
    story.say(story.members()[rank], said)


def starts(story: Story) -> int:
    return len({one.order.epoch for one in story.orders if isinstance(one.order, StartWorkers)})


def wait(story: Story, seconds: float) -> None:
    for _ in range(int(seconds * 4)):
        story.tick(story.now_s + 0.25)


def give_up(story: Story, number: int = 1) -> None:
    story.do(
        story.root.handle(Requested(at_s=story.now_s, number=number, request=GiveUpProgress()))
    )


@pytest.fixture
def story() -> Story:
    story = saved_run()
    lose_group(story)
    assert (story.plan().version, story.plan().tier) == (5, "persistent")
    return story


@pytest.mark.parametrize("is_unread", [True, False])
def test_a_version_that_does_not_load_is_tried_again_ever_later_and_aloud(story, is_unread):
    pauses = []
    for _ in range(14):
        refuse(story, 5, is_unread=is_unread)
        assert story.root.state.phase == "waiting"
        told = story.of(events.RecoveryWaiting)[-1]
        assert "version 5 in the persistent tier did not load" in told.reason
        before, began_s = starts(story), story.now_s
        while starts(story) == before:
            wait(story, 0.25)
        assert story.plan().version == 5
        pauses.append(story.now_s - began_s)
    assert pauses[:3] == sorted(pauses[:3])
    assert LONGEST_PAUSE_S <= pauses[-1] <= LONGEST_PAUSE_S + 31.0
    assert story.root.state.discarded.rejected == ()
    story.go_on()
    assert story.root.state.phase == "running"
    assert story.of(events.RecoveryFinished)[-1].lost_iterations == 1


def test_only_a_persons_word_goes_back_behind_what_was_saved_and_holds_for_that_alone(story):
    refuse(story, 5, is_unread=False)
    give_up(story, 1)
    assert (story.plan().version, story.plan().tier) == (2, "persistent")
    assert story.of(events.VersionRejected)[-1].version == 5
    refuse(story, 2, is_unread=True)  # the word was about 5
    wait(story, 60)
    assert story.plan().version == 2
    refuse(story, 2, is_unread=True)
    give_up(story, 2)
    assert story.root.state.phase == "waiting"
    assert "the start would lose" in story.of(events.RecoveryWaiting)[-1].reason
    wait(story, 600)
    assert story.root.state.phase == "waiting"
    give_up(story, 3)
    assert story.plan().tier == "start"
    story.go_on(1)
    assert story.of(events.RecoveryFinished)[-1].lost_iterations == 6


def test_a_run_that_starts_anew_saves_versions_that_it_had_passed_before(story):
    """Else nothing is saved until training has come as far again, and its end waits for that."""
    for number, version in enumerate((5, 2)):
        refuse(story, version, is_unread=False)
        give_up(story, number + 1)
    give_up(story, 3)
    assert story.plan().tier == "start"
    before = len(story.of(events.PersistStarted))
    story.go_on(1)
    story.iterate(2)
    story.tick(story.now_s)
    saves = story.of(events.PersistStarted)[before:]
    assert saves
    assert max(one.version for one in saves) <= 3


def test_a_run_that_went_back_saves_what_comes_next_and_not_what_it_had_reached(story):
    refuse(story, 5, is_unread=False)
    give_up(story)
    assert story.plan().version == 2
    before = len(story.of(events.PersistStarted))
    story.protect()
    for rank, node in enumerate(story.members()):  # no version of theirs is whole yet
        done = events.Iteration(
            rank=rank, epoch=story.epoch, iteration=3, duration_s=1.0, waited_s=0.0
        )
        story.event(node, done)
    story.tick(story.now_s)
    assert [one.version for one in story.of(events.PersistStarted)[before:]] == [3]


def test_a_word_about_silent_nodes_is_none_about_the_tier():
    story = saved_run()
    story.lose("node-0", "node-1", cause="lease")
    give_up(story)
    assert story.plan().version == 5
    refuse(story, 5, is_unread=False)
    wait(story, 1.0)
    assert story.root.state.phase == "waiting"
    assert story.root.state.discarded.rejected == ()


def test_a_setting_lets_go_after_its_time():
    story = Story(nodes=7).start(
        0, persistent_url=TIER, persist_every_iterations=1, give_up_progress_after_s=60.0
    )
    story.iterate(1)
    story.tick(story.now_s)
    save(story, 2)
    story.iterate(2)
    story.iterate(3)
    lose_group(story)
    story.persistent.insert(0, 1)
    refuse(story, 2, is_unread=True)
    for _ in range(6):
        wait(story, 30)
        if story.plan().version == 2 and story.root.state.phase == "starting":
            refuse(story, 2, is_unread=True)
    assert story.plan().version == 1


@pytest.mark.parametrize("shown", [[2], []])
def test_what_was_saved_and_is_not_listed_is_waited_for(shown):
    story = saved_run()
    saved, story.persistent = story.persistent, shown
    lose_group(story)
    assert story.root.state.phase == "waiting"
    told = story.of(events.RecoveryWaiting)[-1].reason
    assert "version 5 was saved to the persistent tier, which shows" in told
    assert f"shows {2 if shown else 'none'} now" in told
    wait(story, 120)
    assert story.root.state.phase == "waiting"
    story.persistent = saved
    wait(story, 60)
    assert (story.plan().version, story.plan().tier) == (5, "persistent")


def test_another_root_knows_what_was_saved():
    story = saved_run()
    story.persistent = [2]
    story.next_root()
    lose_group(story)
    assert "version 5 was saved" in story.of(events.RecoveryWaiting)[-1].reason


def test_what_was_listed_once_is_waited_for_where_it_was_saved_by_an_earlier_run():
    story = saved_run()
    lose_group(story)
    story.persistent.append(9)  # saved by a root whose word was lost
    refuse(story, 5, is_unread=True)
    wait(story, 60)
    assert story.plan().version == 9
    refuse(story, 9, is_unread=True)
    story.persistent.remove(9)
    wait(story, 60)
    assert story.root.state.phase == "waiting"
    assert "version 9 was saved" in story.of(events.RecoveryWaiting)[-1].reason


def test_a_manifest_that_cannot_be_parsed_is_told_as_it_was_seen_and_waited_for():
    story = saved_run()
    story.persistent = [2]
    story.unclear = [Unclear(version=5, seen="version 5 cannot be read: 12 bytes, b'<html>'")]
    lose_group(story)
    told = story.of(events.RecoveryWaiting)[-1].reason
    assert told.startswith("version 5 cannot be read: 12 bytes, b'<html>'")
    assert "going on from version 2 would lose" in told
    story.persistent, story.unclear = [2, 5], []
    wait(story, 30)
    assert story.plan().version == 5


def test_agents_take_turns_to_look_while_the_run_waits():
    """One of them may see what another does not."""
    story = saved_run()
    story.persistent = [2]
    lose_group(story)
    before = len(story.orders)
    wait(story, 200)
    looked = {one.to for one in story.orders[before:] if getattr(one.order, "persistent_url", None)}
    assert len(looked) > 3


def test_a_machine_that_cannot_read_what_others_read_is_left_for_a_standby(story):
    """Its mount is stale, or its credentials are; the job has not trained since."""
    bad = story.members()[2]
    for _ in range(3):
        if story.root.state.phase == "waiting":
            wait(story, 60)
        for rank in (0, 1):
            story.event(story.members()[rank], story.receipt(rank))
        refuse(story, 5, is_unread=True)
    assert story.of(events.NodeExcluded)[-1].name == bad
    wait(story, 60)
    assert bad not in story.members()
    assert story.plan().version == 5


def test_a_copy_in_memory_is_avoided_alone_and_not_its_version():
    """Two shards have a bad copy each, and a good one: the version is whole."""
    story = Story().start(iterations=4)
    story.exit(0, -9)
    story.fail_restore(0, 4, holder="node-0")
    story.fail_restore(2, 4, holder="node-2")
    assert story.plan().version == 4
    assert not story.of(events.VersionRejected)


def test_a_version_that_does_not_load_from_any_copy_is_gone_past():
    """The copy came whole from the other holder, and failed again on the rank's own node."""
    story = Story().start(iterations=4)
    story.exit(0, -9)
    for _ in range(2):
        story.fail_restore(0, 4, holder="node-0")
    assert story.plan().version == 3
    assert story.of(events.VersionRejected)[-1].version == 4
