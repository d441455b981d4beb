"""The root agent, told as stories: what happens, and what it then has others do."""

from dataclasses import replace

from gemini_lab.log import events
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.recovery.messages import (
    Commit,
    Committed,
    Fence,
    Fenced,
    Persisted,
    SaveFailed,
    TakeInventory,
)
from gemini_lab.recovery.plan import Source
from gemini_lab.recovery.protocol import AgentJoined, JobSubmitted, Send, WriteState
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab.settings import Settings
from gemini_lab.shard.layout import ShardRecord

from .story import JOB, Story, job


def test_a_job_starts_on_the_first_nodes_and_leaves_the_standby_alone():
    story = Story().start()
    assert story.members() == ["node-0", "node-1", "node-2", "node-3"]
    assert story.root.state.phase == "running"
    assert story.plan().tier == "start"


def test_state_is_written_before_what_follows_from_it_is_ordered():
    story = Story()
    given = story.root.handle(JobSubmitted(at_s=0.0, order=JOB))
    writes = [n for n, instruction in enumerate(given) if isinstance(instruction, WriteState)]
    sends = [n for n, instruction in enumerate(given) if isinstance(instruction, Send)]
    assert min(writes) < min(sends)


def test_a_lost_node_is_replaced_and_training_resumes_from_the_last_whole_version():
    story = Story().start(iterations=5)
    story.lose("node-2")
    plan = story.plan()
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]
    assert (plan.version, plan.tier) == (5, "memory")
    assert plan.sources[2] == Source(shard=2, tier="peer", holder="node-3")
    story.go_on(6)
    assert story.root.state.phase == "running"
    assert story.of(events.RecoveryFinished)[0].version == 5


def test_a_lost_nodes_shard_comes_from_whom_the_jobs_own_placement_names():
    across = ((0, 2), (1, 3), (2, 0), (3, 1))
    mine = Placement(nodes=4, replicas=2, strategy="mine", groups=(), holders=across)
    story = Story().start(placement=mine)
    story.lose("node-2")
    assert story.root.state.seats.placement == mine
    assert story.plan().sources[2] == Source(shard=2, tier="peer", holder="node-0")


def test_the_operator_is_asked_for_a_machine_after_a_standby_was_used():
    story = Story().start()
    story.lose("node-2")
    assert [request.wanted for request in story.requests] == [5]


def test_without_a_standby_the_run_waits_and_goes_on_when_a_node_joins():
    story = Story(nodes=4).start()
    story.lose("node-1")
    assert story.root.state.phase == "waiting"
    waiting = story.of(events.RecoveryWaiting)[0]
    assert waiting.missing == (1,)
    assert waiting.reason == "no machine for position 1"
    story.join("node-7")
    assert story.members() == ["node-0", "node-7", "node-2", "node-3"]
    assert story.plan().version == 3


def test_a_second_loss_during_a_recovery_begins_the_same_recovery_anew():
    story = Story(nodes=6).start()
    story.silent.add("node-3")  # node-3 does not answer the fence
    story.lose("node-0")
    epoch = story.epoch
    story.lose("node-3")
    assert story.epoch == epoch + 1
    assert story.root.state.story.recoveries == 1
    assert story.members() == ["node-4", "node-1", "node-2", "node-5"]
    assert story.plan().version == 3


def test_answers_from_before_the_fence_are_ignored():
    story = Story().start()
    story.silent |= set(story.copies)
    story.lose("node-2")
    for node in list(story.copies):
        story.say(node, Fenced(epoch=story.epoch - 1))
    assert story.root.state.phase == "fencing"


def test_a_node_that_joins_during_a_fence_is_asked_like_the_others():
    story = Story(nodes=4)
    story.silent.add("node-0")
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=JOB)))
    story.join("node-4")
    asked = [sent.to for sent in story.orders if isinstance(sent.order, Fence)]
    assert asked[-1] == "node-4"
    story.silent.clear()
    story.say("node-0", Fenced(epoch=story.epoch))
    assert story.root.state.phase == "starting"


def test_an_agent_that_never_answers_counts_as_lost():
    story = Story().start()
    story.silent.add("node-1")
    story.exit(0, -9)
    assert story.root.state.phase == "fencing"
    story.tick(story.now_s + 61)
    assert "node-1" not in story.members()
    assert story.root.state.phase == "starting"


def test_a_new_root_asks_for_a_machine_in_place_of_the_one_that_its_predecessor_was_on():
    """The last root was on a standby: nobody's place is empty, and nobody else would ask."""
    first = Story().start(iterations=2)
    second = Story(nodes=0, state=RootState.from_text(first.states[-1].to_text()))
    for rank, node in enumerate(first.members()):
        second.root.living[node] = AgentJoined(
            at_s=9.0, node=node, epoch=first.epoch, workers=[rank]
        )
    second.do(second.root.take_over(9.0))
    assert second.root.state.phase == "running"
    assert [request.wanted for request in second.requests] == [5]


def test_a_new_root_takes_over_a_recovery_that_was_half_done():
    first = Story().start()
    first.silent |= set(first.copies)
    first.lose("node-2")  # the first root dies while it waits for the fence
    left = RootState.from_text(first.states[-1].to_text())
    second = Story(nodes=0, state=left)
    second.copies = dict(first.copies)
    for node in second.copies:
        second.root.living[node] = AgentJoined(at_s=9.0, node=node, epoch=left.epoch - 1)
    second.do(second.root.take_over(9.0))
    assert second.root.state.epoch > left.epoch
    assert second.root.state.story.recoveries == 1
    assert second.members() == ["node-0", "node-1", "node-4", "node-3"]
    assert second.plan().version == 3


def test_a_new_root_leaves_a_healthy_run_alone():
    first = Story().start()
    left = RootState.from_text(first.states[-1].to_text())
    second = Story(nodes=0, state=left)
    for rank, node in enumerate(first.copies):
        second.root.living[node] = AgentJoined(
            at_s=9.0, node=node, epoch=left.epoch, workers=[rank]
        )
    assert second.root.take_over(9.0) == []
    assert second.root.state.phase == "running"


def test_a_new_root_says_again_how_the_newest_recovery_began_or_ended():
    """Its predecessor may have been cut off as it said so: written, but not heard."""
    first = Story().start()
    first.exit(0, -9)
    (began,) = first.of(events.RecoveryStarted)
    heir = Story(nodes=0, state=RootState.from_text(first.states[-1].to_text()))
    heir.do(heir.root.take_over(9.0))
    assert heir.of(events.RecoveryStarted) == [began]
    first.iterate(4)
    (ended,) = first.of(events.RecoveryFinished)
    first.exit(1, -9)
    began = first.of(events.RecoveryStarted)[-1]
    heir = Story(nodes=0, state=RootState.from_text(first.states[-1].to_text()))
    heir.do(heir.root.take_over(9.0))
    assert heir.events[:2] == [ended, began]


def test_a_new_root_restarts_workers_that_died_while_there_was_none():
    first = Story().start()
    left = RootState.from_text(first.states[-1].to_text())
    second = Story(nodes=0, state=left)
    second.copies = dict(first.copies)
    for node in second.copies:
        second.root.living[node] = AgentJoined(at_s=9.0, node=node, epoch=left.epoch, workers=[])
    second.do(second.root.take_over(9.0))
    assert second.plan().version == 3


def test_a_copy_that_fails_to_load_is_stepped_over_and_a_version_that_fails_twice_rejected():
    story = Story().start(iterations=4)
    story.exit(0, -9)
    for holder in ("node-0", "node-1"):
        assert story.plan().version == 4
        story.fail_restore(0, 4, holder=holder)
    assert story.plan().version == 3
    assert story.of(events.VersionRejected)[0].version == 4


def test_a_damaged_replica_is_replaced_by_the_other_holders_copy():
    story = Story().start(iterations=4)
    story.copies["node-0"] = [c for c in story.copies["node-0"] if (c.shard, c.version) != (0, 4)]
    story.exit(3, -9)
    assert story.plan().version == 4
    assert story.plan().sources[0] == Source(shard=0, tier="peer", holder="node-1")


def asked_storage(story: Story) -> list[str]:
    """The agents that were asked what the persistent tier has."""
    return [
        sent.to
        for sent in story.orders
        if isinstance(sent.order, TakeInventory) and sent.order.persistent_url is not None
    ]


def test_a_lost_group_falls_back_to_storage():
    story = Story(nodes=6).start(iterations=4, persistent_url="memory://runs")
    story.persistent = [2]
    story.lose("node-0", "node-1")
    assert (story.plan().version, story.plan().tier) == (2, "persistent")


def test_storage_is_asked_only_when_memory_does_not_suffice():
    """At the start, when there is no memory yet, and when a group is lost; not for one node."""
    story = Story(nodes=6).start(iterations=4, persistent_url="memory://runs")
    assert asked_storage(story) == ["node-0"]
    story.lose("node-2")
    assert story.plan().tier == "memory"
    assert asked_storage(story) == ["node-0"]
    story.lose("node-0", "node-1")
    assert asked_storage(story)[-1] == "node-3"


def test_an_agent_that_dies_while_storage_is_read_is_asked_for_by_another():
    story = Story(nodes=6).start(iterations=4, persistent_url="memory://runs")
    story.persistent = [2]
    story.lose("node-0")
    story.silent.add("node-2")  # the one to be asked; it answers nothing any more
    story.lose("node-1", "node-2")
    story.join("node-6")
    assert (story.plan().version, story.plan().tier) == (2, "persistent")
    assert asked_storage(story)[-1] == "node-3"


def test_a_worker_that_stands_still_in_its_step_counts_as_hung():
    story = Story().start(iterations=4)
    story.pulse(1, doing="step", still_s=3.0, idle_s=3.0)
    for rank in (0, 2, 3):
        story.pulse(rank, doing="step", still_s=3.0, idle_s=3.0, waits_in="all_reduce")
    story.tick(story.now_s + 20)
    assert "worker_hung" not in story.kinds()
    story.tick(story.now_s + 11)
    (told,) = story.of(events.WorkerHung)
    assert told.rank == 1
    assert "ranks 0, 2, 3 wait in all_reduce" in told.seen
    assert story.of(events.RecoveryStarted)[-1].cause == "worker_hung"


def test_a_script_that_fails_again_and_again_ends_the_run_with_its_words():
    story = Story(nodes=4).start(iterations=2)
    for _ in range(3):
        story.exit(1, 1, "ValueError: no such layer")
    assert story.root.state.phase == "failed"
    assert "no such layer" in story.of(events.RunFailed)[0].reason


def test_errors_between_which_training_went_on_do_not_add_up():
    story = Story().start(iterations=2)
    for iteration in range(3, 8):
        story.exit(1, 1, "a passing fault")
        story.go_on(iteration)
    assert story.root.state.phase == "running"


def written(story: Story, version: int) -> Persisted:
    """What a member says whose own shard of a version is in the persistent tier."""
    record = ShardRecord(shard=0, file="shard", size_bytes=1, digest="")
    return Persisted(
        epoch=story.epoch, version=version, lineage=story.root.state.lineage, records=[record]
    )


def commits(story: Story) -> list[Commit]:
    """The manifests that were to be written."""
    return [sent.order for sent in story.orders if isinstance(sent.order, Commit)]


def test_a_version_goes_to_the_persistent_tier_and_is_committed_when_all_shards_arrived():
    story = Story().start(0, persistent_url="memory://runs", persist_every_iterations=2)
    story.iterate(1, 2)
    story.tick(story.now_s + 0.1)
    assert story.of(events.PersistStarted)[0].version == 2
    for node in story.members():
        assert not commits(story)
        story.say(node, written(story, 2))
    assert len(commits(story)[0].records) == 4
    story.say("node-3", Committed(epoch=story.epoch, version=2, size_bytes=10))
    assert story.of(events.PersistFinished)[0].version == 2


def test_a_failed_save_does_not_disturb_training():
    story = Story().start(0, persistent_url="memory://runs", persist_every_iterations=1)
    story.iterate(1)
    story.tick(story.now_s + 0.1)
    version = story.of(events.PersistStarted)[0].version
    story.say("node-2", SaveFailed(epoch=story.epoch, version=version, reason="no space left"))
    assert story.of(events.PersistFailed)[0].reason == "no space left"
    assert story.root.state.phase == "running"


def save(story: Story, version: int) -> None:
    """The members write what the root agent asked for."""
    for node in story.members():
        story.say(node, written(story, version))
    story.say("node-3", Committed(epoch=story.epoch, version=version, size_bytes=10))


def saved(story: Story) -> list[int]:
    """The versions that were begun to be saved."""
    return [one.version for one in story.of(events.PersistStarted)]


def test_a_save_that_a_failure_ended_is_due_again_at_once():
    """And not only when as much time has passed once more."""
    story = Story().start(1, persistent_url="memory://runs", persist_every_s=100.0)
    story.tick(200.0)
    story.exit(1, -9)
    story.go_on(2)
    story.tick(story.now_s + 0.1)
    assert saved(story) == [2, 3]


def test_when_the_next_save_is_due_outlives_root_agents():
    """Where they change more often than versions are saved, none would be otherwise."""
    story = Story().start(1, persistent_url="memory://runs", persist_every_s=100.0)
    story.tick(150.0)
    story.iterate(2)
    save(story, 2)
    for at_s in (200.0, 260.0):
        story.now_s = at_s
        state = RootState.from_text(story.states[-1].to_text())
        before, story.root = story.root, RootAgent(state=state, at_s=at_s)
        for joined in before.living.values():
            workers = state.seats.ranks_on(joined.node)
            now = replace(joined, epoch=state.epoch, workers=workers)
            story.root.living[joined.node] = now
        story.do(story.root.take_over(at_s))
        assert state.phase == "running"
        story.tick(at_s + 0.1)
        assert len(saved(story)) == (1 if at_s < 250.0 else 2)


def test_the_last_version_is_saved_though_a_slow_store_was_busy_with_another():
    story = Story().start(0, persistent_url="memory://runs", persist_every_iterations=2)
    for iteration in range(1, 7):
        story.iterate(iteration)
        story.tick(story.now_s + 0.1)
    for rank in range(4):
        story.finish(rank)
    for version in (2, 6):
        assert story.root.state.phase == "finishing"
        assert story.of(events.PersistStarted)[-1].version == version
        for node in story.members():
            story.say(node, written(story, version))
        story.say("node-3", Committed(epoch=story.epoch, version=version, size_bytes=10))
    assert [event.version for event in story.of(events.PersistFinished)] == [2, 6]
    assert story.kinds()[-1] == "run_finished"


def test_the_run_is_over_when_every_rank_has_finished():
    story = Story().start(iterations=3)
    for rank in range(4):
        assert story.root.state.phase == "running"
        story.finish(rank)
    assert story.root.state.phase == "done"
    assert story.kinds()[-1] == "run_finished"


def test_settings_are_asked_for_only_while_they_are_not_known():
    """They come with a placement, which grows with the nodes: not from everybody, every time."""
    story = Story().start()
    story.lose("node-1")
    asked = [s.order.asks_settings for s in story.orders if isinstance(s.order, TakeInventory)]
    assert set(asked[:5]) == {True}
    assert set(asked[5:]) == {False}


def test_a_rank_that_leaves_the_placement_to_rank_0_is_heard_all_the_same():
    """The placement is learned from whoever tells it."""
    story = Story()
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=job())))
    said = events.Protected(
        rank=3, epoch=story.epoch, shard_bytes=1, settings=Settings(), fingerprint="same"
    )
    story.event("node-3", said)
    assert story.root.state.setup.settings is None
    story.protect()
    assert story.root.state.seats.placement is not None


def test_the_settings_of_a_run_are_known_though_a_user_gave_its_placement():
    """Nothing was saved until the first failure: agents leave out a placement that is known."""
    story = Story().start(placement=plan_placement(nodes=4), persistent_url="memory://tier")
    assert story.root.state.setup.settings is not None
    assert story.root.state.seats.placement == plan_placement(nodes=4)
