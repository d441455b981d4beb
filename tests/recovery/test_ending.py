"""Stories of a run's end: told to end soon, gone on with later, and for what cause it failed."""

import msgspec
import pytest

from gemini_lab.log import events
from gemini_lab.recovery.faults import MAX_ATTEMPTS, MAX_KILLS
from gemini_lab.recovery.messages import (
    Commit,
    Committed,
    Persist,
    Persisted,
    SaveFailed,
    ScriptError,
)
from gemini_lab.recovery.protocol import JobSubmitted, Requested
from gemini_lab.recovery.requests import SaveVersion, StopRun
from gemini_lab.recovery.root.ending import LAST_TRIES_S
from gemini_lab.settings import Settings
from gemini_lab.shard.layout import ShardRecord
from gemini_lab.shard.lineage import Lineage

from .story import JOB, Story

TIER = "memory://runs"


def saves(story: Story) -> list[int]:
    """The versions that members were told to save, each once."""
    sent = [one.order for one in story.orders if isinstance(one.order, Persist)]
    return list(dict.fromkeys(order.version for order in sent))


def arrive(story: Story, version: int) -> None:
    """Every member has written its shard, and one of them the manifest."""
    for shard, node in enumerate(story.members()):
        record = ShardRecord(shard=shard, file=f"s{shard}", size_bytes=1, digest="d")
        made = Lineage(run=JOB.run, epoch=1)
        said = Persisted(epoch=story.epoch, version=version, records=[record], lineage=made)
        story.say(node, said)
    assert isinstance(story.orders[-1].order, Commit)


def test_a_run_that_may_end_soon_saves_its_next_version_at_the_next_tick():
    story = Story().start(3, persistent_url=TIER)
    assert saves(story) == []
    story.do(story.root.handle(Requested(at_s=0.0, number=1, request=SaveVersion())))
    story.tick(story.now_s)
    assert saves(story) == [4]


def test_a_version_that_is_wanted_during_a_recovery_is_saved_when_training_goes_on():
    story = Story().start(3, persistent_url=TIER)
    story.lose("node-1")
    story.do(story.root.handle(Requested(at_s=0.0, number=1, request=SaveVersion())))
    story.tick(story.now_s)
    assert saves(story) == []
    story.go_on(4)
    assert saves(story) == [5]


def test_a_wanted_version_that_fails_is_tried_again_with_the_next_one():
    story = Story().start(3, persistent_url=TIER)
    story.do(story.root.handle(Requested(at_s=0.0, number=1, request=SaveVersion())))
    story.tick(story.now_s)
    story.say("node-2", SaveFailed(epoch=story.epoch, version=4, reason="no space left"))
    story.iterate(4)
    assert saves(story) == [4, 5]
    arrive(story, 5)


def fail_last(story: Story) -> None:
    story.say("node-2", SaveFailed(epoch=story.epoch, version=3, reason="no space left"))


def finished(**settings: str | float | None) -> Story:
    """A run whose ranks have all finished; it saves its last version."""
    story = Story().start(3, persistent_url=TIER, **settings)
    for rank in range(4):
        story.finish(rank)
    assert saves(story) == [3]
    return story


def test_a_last_version_that_does_not_arrive_is_tried_again_after_a_pause():
    story = finished()
    fail_last(story)
    story.tick(story.now_s + 1)
    assert len(story.of(events.PersistStarted)) == 1
    story.tick(story.now_s + 2)
    assert len(story.of(events.PersistStarted)) == 2
    arrive(story, 3)
    assert story.root.state.phase == "finishing"
    story.say("node-0", Committed(epoch=story.epoch, version=3, size_bytes=4))
    assert story.root.state.phase == "done"


def test_a_last_version_that_never_arrives_keeps_a_run_from_ending_for_half_a_minute():
    story = finished()
    began_s = story.now_s
    while story.root.state.phase == "finishing":
        fail_last(story)
        story.tick(story.now_s + 0.25)
    assert len(story.of(events.PersistFailed)) == 5
    assert story.now_s - began_s <= LAST_TRIES_S
    assert story.kinds()[-1] == "run_finished"


def test_a_last_version_on_which_a_store_hangs_is_tried_once():
    story = finished(persist_limit_s=100.0)
    story.tick(story.now_s + 101)
    assert len(story.of(events.PersistFailed)) == 1
    assert story.root.state.phase == "done"


@pytest.mark.parametrize("known", [None, "memory://other"])
def test_a_resumed_run_plans_anew_when_its_script_names_the_tier(known):
    """The launcher did not know of it: the first plan was made without the versions there."""
    story = Story()
    story.settings = {"persistent_url": TIER}
    defaults = {} if known is None else {"persistent_url": known}
    order = msgspec.structs.replace(JOB, is_resumed=True, defaults=defaults)
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=order)))
    assert story.plan().version is None
    story.persistent = [7]
    first = story.epoch
    said = protected(story, rank=0)
    story.event("node-0", said)
    assert story.epoch == first + 1
    assert (story.plan().version, story.plan().tier) == (7, "persistent")
    assert story.root.state.story.recoveries == 0, "it is the job's start still"
    story.go_on(8)
    assert story.root.state.phase == "running"


def protected(story: Story, *, rank: int) -> events.Protected:
    settings = Settings.parse(story.settings)
    return events.Protected(
        rank=rank,
        epoch=story.epoch,
        shard_bytes=1,
        settings=settings,
        fingerprint="same",
        placement=story.root.state.seats.placed(settings).holders,
    )


def test_a_resumed_run_whose_launcher_knew_the_tier_starts_once():
    story = Story()
    story.settings = {"persistent_url": TIER}
    order = msgspec.structs.replace(JOB, is_resumed=True, settings={"persistent_url": TIER})
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=order)))
    first = story.epoch
    story.protect()
    assert story.epoch == first


# -- for what cause --------------------------------------------------------------------------------


def cause(story: Story) -> str:
    (failed,) = story.of(events.RunFailed)
    assert isinstance(failed, events.RunFailed)
    return failed.cause


@pytest.mark.parametrize(
    ("code", "error", "expected"),
    [
        (1, ScriptError(error="ValueError", text="the batch is empty"), "script"),
        (3, None, "script"),
        (1, ScriptError(error="ConfigError", text="replicas"), "script"),
        (1, ScriptError(error="RuntimeError", text="Connection closed by peer"), "machines"),
        (1, ScriptError(error="DistBackendError", text="unhandled"), "machines"),
    ],
)
def test_a_run_that_is_given_up_says_whether_its_script_or_its_machines_failed(
    code, error, expected
):
    story = Story(nodes=4).start(1)
    for _ in range(MAX_ATTEMPTS):
        if story.root.state.phase != "failed":
            story.exit(1, code, error=error)
    assert cause(story) == expected


def test_workers_that_are_killed_over_and_over_are_no_fault_of_the_script():
    story = Story(nodes=4).start(1)
    for _ in range(MAX_KILLS):
        story.exit(1, -9)
    assert cause(story) == "machines"


def test_a_run_that_its_owner_stops_says_so():
    story = Story().start(1)
    story.request(StopRun())
    assert cause(story) == "owner"


def give_up(story: Story) -> None:
    """A rank's script ends over and over before an iteration is done."""
    for rank in range(MAX_ATTEMPTS):
        story.exit(rank, 1, "boom")
        if story.root.state.phase == "starting":
            story.protect()


def test_a_run_that_is_given_up_saves_first_what_memory_alone_has():
    story = Story().start(3, persistent_url=TIER)
    give_up(story)
    assert saves(story) == [3]
    assert story.of(events.RunFailed) == []
    for sent in [one for one in story.orders if isinstance(one.order, Persist)]:
        made = Lineage(run=JOB.run, epoch=1)
        story.say(sent.to, Persisted(epoch=story.epoch, version=3, records=[], lineage=made))
    story.say("node-0", Committed(epoch=story.epoch, version=3, size_bytes=4))
    (ending,) = story.of(events.RunFailed)
    assert "boom; --resume goes on from version 3" in ending.reason
    assert ending.output == ("boom",)
    assert story.root.state.phase == "failed"


def test_a_tier_that_takes_nothing_keeps_no_run_from_being_given_up():
    story = Story().start(3, persistent_url=TIER)
    give_up(story)
    fail_last(story)
    (ending,) = story.of(events.RunFailed)
    assert ending.reason.endswith("its newest version could not be saved (no space left)")


def test_a_tier_that_hangs_keeps_a_run_from_being_given_up_as_long_as_a_save_may_take():
    story = Story().start(3, persistent_url=TIER, persist_limit_s=60.0)
    give_up(story)
    story.tick(story.now_s + 59)
    assert story.of(events.RunFailed) == []
    story.tick(story.now_s + 2)
    assert "took longer than 60 s" in story.of(events.RunFailed)[0].reason


@pytest.mark.parametrize("befalls", ["another root", "a lost node"])
def test_a_run_that_is_given_up_is_saved_whatever_befalls_it_meanwhile(befalls):
    story = Story().start(3, persistent_url=TIER)
    give_up(story)
    if befalls == "another root":
        story.next_root()
    else:
        story.lose("node-1")
    sent = [one for one in story.orders if isinstance(one.order, Persist)]
    newest = [one for one in sent if one.order.epoch == story.epoch]
    for one in newest:
        made = Lineage(run=JOB.run, epoch=1)
        story.say(one.to, Persisted(epoch=story.epoch, version=3, records=[], lineage=made))
    story.say(newest[-1].to, Committed(epoch=story.epoch, version=3, size_bytes=4))
    assert "--resume goes on from version 3" in story.of(events.RunFailed)[0].reason


def test_an_owner_who_ends_a_run_that_is_given_up_waits_for_nothing():
    story = Story().start(3, persistent_url=TIER)
    give_up(story)
    story.request(StopRun())
    assert [one.cause for one in story.of(events.RunFailed)] == ["owner"]
