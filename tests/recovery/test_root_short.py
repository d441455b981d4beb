"""While machines are missing, what memory holds is saved: fewer can go on from it."""

from gemini_lab.log import events
from gemini_lab.recovery.messages import Commit, Committed, Persist, Persisted, SaveFailed
from gemini_lab.recovery.protocol import Requested
from gemini_lab.recovery.requests import SaveVersion
from gemini_lab.shard.layout import ShardRecord
from tests.recovery.story import Story

URL = "file:///tier"


def short_of_a_machine(**settings):
    """Four nodes train; one dies, and no standby is left."""
    story = Story(nodes=4).start(persistent_url=URL, **settings)
    story.lose("node-1")
    story.tick(story.now_s + 1)
    assert story.root.state.phase == "waiting"
    return story


def ordered(story, kind):
    return [sent for sent in story.orders if isinstance(sent.order, kind)]


def write(story):
    """All that were asked write their shards, and one of them the manifest."""
    for sent in ordered(story, Persist)[-3:]:
        order = sent.order
        records = [ShardRecord(shard=s, file="x", size_bytes=1, digest="") for s in order.shards]
        said = Persisted(
            epoch=order.epoch, version=order.version, lineage=order.lineage, records=records
        )
        story.say(sent.to, said)
    commit = ordered(story, Commit)[-1]
    done = Committed(epoch=commit.order.epoch, version=commit.order.version, size_bytes=4)
    story.say(commit.to, done)
    return commit.order


def test_who_keeps_a_replica_of_a_lost_owners_shard_writes_it():
    story = short_of_a_machine()
    written = {sent.to: sent.order.shards for sent in ordered(story, Persist)}
    assert written == {"node-0": [0, 1], "node-2": [2], "node-3": [3]}
    assert {sent.order.version for sent in ordered(story, Persist)} == {3}
    commit = write(story)
    assert [record.shard for record in commit.records] == [0, 1, 2, 3]
    (finished,) = story.of(events.PersistFinished)
    assert (finished.version, finished.url) == (3, URL)


def test_once_is_enough_but_a_notice_saves_again():
    story = short_of_a_machine()
    write(story)
    for _ in range(3):
        story.tick(story.now_s + 1)
    assert len(story.of(events.PersistStarted)) == 1
    story.do(story.root.handle(Requested(at_s=0.0, number=1, request=SaveVersion())))
    story.tick(story.now_s + 1)
    assert len(story.of(events.PersistStarted)) == 2
    write(story)
    story.tick(story.now_s + 1)
    assert len(story.of(events.PersistStarted)) == 2


def test_a_store_that_fails_is_not_asked_again_and_again():
    story = short_of_a_machine()
    failed = SaveFailed(epoch=story.epoch, version=3, reason="full")
    story.say("node-0", failed)
    for _ in range(3):
        story.tick(story.now_s + 1)
    assert [one.reason for one in story.of(events.PersistFailed)] == ["full"]
    assert len(story.of(events.PersistStarted)) == 1


def test_a_store_that_hangs_is_given_up():
    story = short_of_a_machine(persist_limit_s=60)
    for _ in range(70):
        story.tick(story.now_s + 1)
    (failed,) = story.of(events.PersistFailed)
    assert "took longer than 60 s" in failed.reason


def test_a_machine_that_comes_meanwhile_is_used_at_once():
    story = short_of_a_machine()
    story.join("node-7")
    assert story.members() == ["node-0", "node-7", "node-2", "node-3"]
    assert (story.plan().tier, story.plan().version) == ("memory", 3)


def test_without_a_tier_or_with_a_standby_nothing_is_saved():
    for story in (Story(nodes=4).start(), Story(nodes=5).start(persistent_url=URL)):
        story.lose("node-1")
        story.tick(story.now_s + 1)
        assert story.of(events.PersistStarted) == []


def test_a_version_that_memory_lacks_a_shard_of_is_not_saved():
    story = Story(nodes=4).start(persistent_url=URL)
    story.persistent = [2]
    story.lose("node-0", "node-1")
    story.tick(story.now_s + 1)
    assert story.root.state.phase == "waiting"
    assert story.of(events.PersistStarted) == []
