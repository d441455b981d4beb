"""What the root agent does not do: mix histories, throw progress away, or wait in silence."""

import itertools
import signal
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.log import events
from gemini_lab.recovery.discarded_versions import giving_up
from gemini_lab.recovery.faults import MAX_ATTEMPTS, MAX_KILLS
from gemini_lab.recovery.messages import (
    Committed,
    Inventory,
    KeptCopy,
    Persist,
    ScriptError,
)
from gemini_lab.recovery.plan import Unclear
from gemini_lab.recovery.planning import make_plan
from gemini_lab.recovery.protocol import AgentJoined, AgentLost, JobSubmitted, Requested
from gemini_lab.recovery.requests import GiveUpProgress, StopRun
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import Discarded, RootState
from gemini_lab.shard.lineage import MOST_REWINDS, Lineage

from .story import RUN, Story, job
from .test_root import commits, written

# -- two histories ---------------------------------------------------------------------------------


def test_a_node_that_thaws_with_a_left_history_does_not_mix_it_into_the_new_one():
    """The line fell back from 6 to 3; the others reach 6 again when the frozen node is back."""
    story = Story(nodes=8).start(iterations=3, persistent_url="memory://runs")
    story.persistent = [3]
    story.iterate(4, 5, 6)
    frozen = list(story.copies["node-1"])  # shards 0 and 1 of version 6
    story.lose("node-0")
    story.lose("node-1", cause="lease")
    story.request(GiveUpProgress())
    assert story.plan().version == 3
    story.go_on(4, 5, 6)
    story.copies["node-1"] = frozen
    story.join("node-1")
    for node in story.members()[:2]:  # who took the lost group's places goes, with version 6
        story.lose(node)
    plan = story.plan()
    assert (plan.version, plan.tier) == (3, "persistent")


def test_a_left_history_that_is_whole_is_gone_on_from_rather_than_the_start():
    """Both nodes of a group were silent, and a person gave them up; they come back in time."""
    story = Story(nodes=6).start(iterations=5)
    story.lose("node-0", "node-1", cause="lease")
    assert story.root.state.phase == "waiting"
    story.join("node-0")
    story.join("node-1")
    assert (story.plan().version, story.plan().tier) == (5, "memory")
    assert "node-0" in story.members()


@pytest.mark.parametrize("by", ["person", "setting"])
def test_what_was_given_up_displaces_nobody_when_its_nodes_come_back(by):
    """All of version 6 was silent; it comes back after training has gone on from the tier's 3."""
    settings = {"give_up_progress_after_s": 60} if by == "setting" else {}
    story = Story(nodes=8).start(iterations=6, persistent_url="memory://runs", **settings)
    story.persistent = [3]
    story.lose("node-0", "node-1", "node-2", "node-3", cause="lease")
    assert story.root.state.phase == "waiting"
    if by == "person":
        story.request(GiveUpProgress())
    else:
        story.tick(story.now_s + 61)
    assert (story.plan().version, story.plan().tier) == (3, "persistent")
    story.go_on(4)
    for node in ("node-0", "node-1", "node-2", "node-3"):
        story.join(node)
    story.exit(0, -9)
    assert (story.plan().version, story.members()[0]) == (4, "node-4")
    story.next_root()
    story.lose("node-4", "node-5")
    assert (story.plan().version, story.plan().tier) == (3, "persistent")


def test_what_the_tier_shows_again_was_given_up_and_no_other_runs_version_comes_back():
    """A run that resumes could not read the tier, and a person had it begin at the start."""
    story = Story(nodes=5)
    story.unread = "503"
    order = msgspec.structs.replace(
        job(persistent_url="memory://runs"), is_resumed=True, run=RUN + 1
    )
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=order)))
    assert story.root.state.phase == "waiting"
    story.do(story.root.handle(Requested(at_s=1.0, number=1, request=GiveUpProgress())))
    assert story.plan().tier == "start"
    story.unread, story.persistent = "", [400]
    story.exit(0, -9)
    assert story.plan().tier == "start"


def test_a_version_that_is_not_whole_is_waited_for_once():
    """A person gave it up: the next failure does not wait for it again."""
    story = Story().start(iterations=3, persistent_url="memory://runs")
    story.persistent, story.unclear = [2], [Unclear(version=20, seen="20 is not whole")]
    story.lose("node-0", "node-1")
    assert "20 is not whole" in story.of(events.RecoveryWaiting)[-1].reason
    story.join("node-5")
    story.request(GiveUpProgress())
    assert story.plan().version == 2
    story.go_on(3)
    story.join("node-6")
    story.lose("node-4", "node-5")
    story.join("node-7")
    assert story.plan().version == 2
    assert story.root.state.phase == "starting"


@given(
    copies=st.lists(
        st.builds(
            KeptCopy,
            shard=st.integers(0, 3),
            version=st.integers(1, 9),
            lineage=st.builds(
                Lineage,
                run=st.just(RUN),
                epoch=st.integers(1, 6),
                rewinds=st.sampled_from([0, 1, MOST_REWINDS]),
            ),
        ),
        max_size=24,
    ),
    given_up=st.integers(0, 9),
    owners=st.randoms(use_true_random=False),
)
def test_no_plan_goes_on_from_what_was_given_up(copies, given_up, owners):
    """Whoever has it, in whatever lineage, on whatever node; all else counts as before."""
    story = Story(nodes=6).start(iterations=0)
    state = replace(story.root.state, epoch=4)
    chosen = replace(story.plan(), version=given_up)
    state = giving_up(state, chosen, ())
    held = {node: [] for node in story.root.living}
    for copy in copies:
        held[owners.choice(sorted(held))].append(copy)
    asked = {n: Inventory(epoch=4, copies=kept, damaged=[]) for n, kept in held.items()}
    plan = make_plan(state, story.root.living, asked)
    counts = [c for c in copies if c.lineage.epoch >= 4 or c.version <= given_up]
    only = {
        n: Inventory(epoch=4, copies=[c for c in kept if c in counts], damaged=[])
        for n, kept in held.items()
    }
    assert plan == make_plan(replace(state, discarded=Discarded()), story.root.living, only)
    if plan.version is not None:
        assert plan.lineage.epoch >= 4 or plan.version <= given_up


def test_a_version_that_was_rejected_counts_again_when_it_was_made_anew():
    story = Story().start(iterations=4)
    story.exit(0, -9)
    story.fail_restore(0, 4, holder="node-0")
    story.fail_restore(0, 4, holder="node-1")
    assert story.plan().version == 3
    story.go_on(4)
    story.exit(0, -9)
    assert story.plan().version == 4


# -- progress --------------------------------------------------------------------------------------


def test_a_silent_group_is_waited_for_aloud():
    story = Story(nodes=6).start(iterations=5)
    story.lose("node-0", "node-1", cause="lease")
    assert story.root.state.phase == "waiting"
    told = story.of(events.RecoveryWaiting)[-1]
    assert "node-0, node-1 fell silent with version" in told.reason
    assert "lose 5 iterations" in told.reason


def test_it_is_said_once_and_asked_again_ever_later():
    story = Story(nodes=6).start(iterations=5)
    story.lose("node-0", "node-1", cause="lease")
    said, asked = len(story.of(events.RecoveryWaiting)), len(story.orders)
    for _ in range(600):
        story.tick(story.now_s + 0.25)
    assert len(story.of(events.RecoveryWaiting)) == said
    rounds = (len(story.orders) - asked) / 4
    assert 5 <= rounds <= 12


def test_a_silent_node_that_is_found_dead_is_waited_for_no_more():
    story = Story(nodes=6).start(iterations=5, persistent_url="memory://runs")
    story.persistent = [2]
    story.lose("node-0", "node-1", cause="lease")
    assert story.root.state.phase == "waiting"
    story.lose("node-0", "node-1")
    assert (story.plan().version, story.plan().tier) == (2, "persistent")


def test_who_fell_silent_before_later_versions_were_made_is_not_waited_for():
    """A machine without power never says that it is dead, and has nothing of what came since."""
    story = Story(nodes=8).start(iterations=5, persistent_url="memory://runs")
    story.lose("node-0", cause="lease")
    story.go_on(6, 7, 8)
    story.persistent = [7]
    for node in story.members()[2:]:
        story.lose(node)
    assert (story.plan().version, story.plan().tier) == (7, "persistent")
    assert RootState.from_text(story.states[-1].to_text()).nodes.silent == ()


def test_who_fell_silent_is_waited_for_until_a_later_version_is_whole():
    """The start that followed has not come so far when the others are lost, too."""
    story = Story(nodes=8).start(iterations=5, persistent_url="memory://runs")
    story.persistent = [4]
    story.lose("node-0", cause="lease")
    story.protect()
    story.lose("node-1")
    assert story.root.state.phase == "waiting"
    assert "node-0 fell silent with version 5" in story.of(events.RecoveryWaiting)[-1].reason


def test_a_tier_that_cannot_be_read_is_not_an_empty_one():
    story = Story(nodes=6).start(iterations=5, persistent_url="memory://runs")
    story.unread = "503 Service Unavailable"
    story.lose("node-0", "node-1")
    assert story.root.state.phase == "waiting"
    assert "503" in story.of(events.RecoveryWaiting)[-1].reason
    story.unread, story.persistent = "", [4]
    story.tick(story.now_s + 5)
    assert (story.plan().version, story.plan().tier) == (4, "persistent")


def test_starting_anew_is_left_to_a_person():
    story = Story(nodes=6).start(iterations=5)
    story.lose("node-0", "node-1")
    assert story.root.state.phase == "waiting"
    assert "no copy of version" in story.of(events.RecoveryWaiting)[-1].reason
    story.request(GiveUpProgress())
    assert story.plan().tier == "start"


def test_a_word_said_twice_gives_up_only_what_was_waited_for():
    """The second one comes when workers start already; then the tier cannot be read."""
    story = Story(nodes=8).start(iterations=3, persistent_url="memory://runs")
    story.persistent = [3]
    story.iterate(4, 5, 6)
    story.lose("node-0", "node-1", cause="lease")
    for number in (1, 2):
        story.request(GiveUpProgress(), number=number)
    assert (story.root.state.phase, story.plan().version) == ("starting", 3)
    story.unread = "it is away"
    story.lose("node-2")
    assert story.root.state.phase == "waiting"
    story.request(GiveUpProgress(), number=3)
    assert story.plan().tier == "start"


def test_a_setting_may_give_up_after_a_time():
    story = Story(nodes=6).start(iterations=5, give_up_progress_after_s=60)
    story.lose("node-0", "node-1")
    story.tick(story.now_s + 59)
    assert story.root.state.phase == "waiting"
    story.tick(story.now_s + 31)
    assert story.plan().tier == "start"


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_another_machines_clock_gives_nothing_up_too_early_nor_later(ahead_s):
    """The second root's machine has its clock an hour ahead, or behind."""
    first = Story(nodes=6).start(iterations=5, give_up_progress_after_s=60)
    first.lose("node-0", "node-1")
    first.tick(first.now_s + 30)
    left = first.states[-1]
    second = Story(nodes=0, state=RootState())
    second.now_s = first.now_s + ahead_s
    second.root = RootAgent(state=RootState.from_text(left.to_text(first.now_s)), at_s=second.now_s)
    second.copies = {n: c for n, c in first.copies.items() if n not in {"node-0", "node-1"}}
    for node in second.copies:
        second.root.living[node] = AgentJoined(at_s=second.now_s, node=node, epoch=left.epoch)
    second.do(second.root.take_over(second.now_s))
    assert second.root.state.phase == "waiting"
    second.tick(second.now_s + 25)
    assert second.root.state.phase == "waiting"
    second.tick(second.now_s + 31)
    assert second.plan().tier == "start"


def test_a_new_root_waits_too_going_by_what_memory_shows():
    first = Story(nodes=6).start(iterations=5)
    left = RootState.from_text(first.states[0].to_text())  # it has seen no version at all
    left = RootState.from_text(first.states[-1].to_text())
    second = Story(nodes=0, state=left)
    second.copies = {n: c for n, c in first.copies.items() if n not in {"node-0", "node-1"}}
    for node in second.copies:
        second.root.living[node] = AgentJoined(at_s=9.0, node=node, epoch=left.epoch)
    second.do(second.root.take_over(9.0))
    assert second.root.state.phase == "waiting"
    second.do(second.root.handle(AgentLost(at_s=9.0, node="node-0", cause="dead")))
    assert "node-1 fell silent" in second.of(events.RecoveryWaiting)[-1].reason


# -- bad machines ----------------------------------------------------------------------------------


def test_a_worker_that_always_fails_on_one_node_is_moved_before_the_run_is_given_up():
    story = Story().start(iterations=2)
    for _ in range(3):
        story.exit(1, 1, "CUDA error: uncorrectable ECC error")
    assert story.members() == ["node-0", "node-4", "node-2", "node-3"]
    assert story.of(events.NodeExcluded)[0].name == "node-1"
    story.go_on(3)
    assert story.root.state.phase == "running"


def test_a_node_that_was_left_is_used_again_only_where_there_is_no_other():
    story = Story(nodes=6).start(iterations=2)
    for _ in range(3):
        story.exit(1, 1, "bad node")
    story.go_on(3)
    story.lose("node-0")
    assert story.members() == ["node-5", "node-4", "node-2", "node-3"]
    story.go_on(4)
    story.lose("node-2")
    assert story.members() == ["node-5", "node-4", "node-1", "node-3"]


SHORT_OF_MEMORY = ScriptError(error="CapacityError", text="too little memory for the slab")


def test_a_machine_that_is_too_small_is_left_at_once_when_the_run_has_trained():
    story = Story().start(iterations=4)
    story.lose("node-1")
    assert story.members() == ["node-0", "node-4", "node-2", "node-3"]
    story.join("node-5")
    story.exit(1, 1, "", SHORT_OF_MEMORY)
    assert story.members() == ["node-0", "node-5", "node-2", "node-3"]
    assert story.of(events.NodeExcluded)[0].reason.endswith(SHORT_OF_MEMORY.text)
    assert story.plan().version == 4


def test_a_machine_that_kills_a_worker_three_times_is_left_for_a_standby_with_the_reason():
    """Its kernel lacks memory, say, and the standby's does not."""
    story, killed = Story().start(iterations=4), "as the kernel's OOM killer ended 1"
    for _ in range(MAX_ATTEMPTS):
        assert "node-1" in story.members()
        story.exit(1, -signal.SIGKILL, f"iteration 4\n{killed}")
    assert story.members() == ["node-0", "node-4", "node-2", "node-3"]
    (excluded,) = story.of(events.NodeExcluded)
    assert (excluded.name, excluded.reason.endswith(killed)) == ("node-1", True)
    assert story.plan().version == 4


def test_kills_on_several_machines_are_no_single_ones():
    story = Story().start(iterations=4)
    for number in range(MAX_ATTEMPTS):
        story.exit(number, -signal.SIGKILL)
    assert story.of(events.NodeExcluded) == []


def test_without_another_machine_a_start_is_tried_again_but_not_for_ever():
    story, began_s = Story(nodes=4).start(iterations=4), []
    for _ in range(MAX_KILLS - 1):
        story.exit(1, 1, "", SHORT_OF_MEMORY)
        assert story.root.state.phase == "starting"
        began_s.append(story.now_s)
    pauses_s = [after - before for before, after in itertools.pairwise(began_s)]
    assert pauses_s == [0, 0, 2, 4, 8, 16, 30, 30]  # what it lacks may be there by then
    assert "3 recoveries in a row" not in str(story.of(events.RecoveryWaiting))
    assert "4 recoveries in a row" in str(story.of(events.RecoveryWaiting))
    story.exit(1, 1, "", SHORT_OF_MEMORY)
    assert story.root.state.phase == "failed"


def test_a_run_that_never_fitted_ends_at_once():
    story = Story().start(iterations=0)
    story.exit(1, 1, "", SHORT_OF_MEMORY)
    assert story.root.state.phase == "failed"


def test_an_error_of_the_configuration_is_not_a_machines():
    story = Story().start(iterations=2)
    story.exit(1, 1, "", ScriptError(error="ConfigError", text="mu must be above 0"))
    assert story.root.state.phase == "failed"
    assert "mu must be above 0" in story.of(events.RunFailed)[0].reason


# -- hangs -----------------------------------------------------------------------------------------


def test_a_hang_is_noticed_though_the_root_changed_meanwhile():
    first = Story().start(iterations=4)
    left = RootState.from_text(first.states[-1].to_text())
    second = Story(nodes=0, state=left)
    second.copies = dict(first.copies)
    for rank, node in enumerate(second.copies):
        second.root.living[node] = AgentJoined(
            at_s=9.0, node=node, epoch=left.epoch, workers=[rank]
        )
    second.now_s = 9.0
    second.do(second.root.take_over(9.0))
    second.pulse(2, silent_s=20.0, is_stopped=True)  # the agents tell it again to every root
    second.tick(9.0 + 9)
    assert "worker_hung" not in second.kinds()
    second.tick(9.0 + 11)
    assert "worker_hung" in second.kinds()


def test_a_healthy_evaluation_of_any_length_between_steps_is_left_alone():
    story = Story().start(iterations=4)
    story.pulse(0, doing="between steps", still_s=3.0, idle_s=0.0)
    for rank in (1, 2, 3):
        story.pulse(rank, doing="step", still_s=3.0, idle_s=3.0, waits_in="all_gather")
    story.tick(story.now_s + 4000)
    assert "worker_hung" not in story.kinds()


def test_a_worker_stuck_before_its_first_iteration_is_found_in_five_minutes():
    story = Story()
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=job())))
    story.pulse(2, doing="starting", still_s=3.0, idle_s=3.0, where="train.py:9 in main")
    for rank in (0, 1, 3):
        story.pulse(rank, doing="starting", still_s=3.0, idle_s=3.0, waits_in="init_process_group")
    story.tick(296.0)
    assert "worker_hung" not in story.kinds()
    story.tick(298.0)
    (told,) = story.of(events.WorkerHung)
    assert told.rank == 2
    assert "starting, at train.py:9 in main" in told.seen


def test_a_run_that_hangs_again_and_again_ends_with_what_was_seen():
    story = Story(nodes=4).start(iterations=2)
    for _ in range(3):
        story.pulse(1, silent_s=3.0, is_stopped=True)
        story.tick(story.now_s + 31)
    (ending,) = story.of(events.RunFailed)
    assert "rank 1 has said nothing for 34 s, its process is stopped" in ending.reason
    assert "protected.pause" in ending.reason


def test_an_agent_that_does_not_answer_is_not_at_once_a_standby_again():
    story = Story(nodes=6).start()
    story.silent.add("node-1")
    story.exit(0, -9)
    story.tick(story.now_s + 61)
    assert story.members()[1] == "node-4"
    story.silent.clear()
    story.join("node-1")
    story.go_on(4)
    story.lose("node-4")
    assert story.members()[1] == "node-5"


def test_a_large_memory_may_take_minutes_to_be_read():
    story = Story().start()
    story.deaf = {"node-1"}
    story.exit(0, -9)
    assert story.root.state.phase == "inventory"
    story.tick(story.now_s + 600)
    assert "node-1" in story.members()
    assert story.root.state.phase == "inventory"


# -- the end ---------------------------------------------------------------------------------------


def test_every_fifth_version_is_saved_where_that_was_asked_for():
    story = Story().start(0, persistent_url="memory://runs", persist_every_iterations=5)
    saved = []
    for iteration in range(1, 16):
        story.iterate(iteration)
        story.tick(story.now_s + 0.1)
        started = story.of(events.PersistStarted)
        if len(started) > len(saved):
            saved.append(started[-1].version)
            save(story, saved[-1])
    assert saved == [5, 10, 15]


def save(story: Story, version: int) -> None:
    for node in story.members():
        story.say(node, written(story, version))
    story.say(story.members()[0], Committed(epoch=story.epoch, version=version, size_bytes=1))


def test_a_save_that_hangs_does_not_keep_later_ones_from_being_made():
    story = Story().start(
        0, persistent_url="memory://runs", persist_every_iterations=2, persist_limit_s=30.0
    )
    story.iterate(1)
    story.tick(story.now_s + 0.1)
    assert story.of(events.PersistStarted)[-1].version == 2
    for iteration in range(2, 40):
        story.iterate(iteration)
        story.tick(story.now_s + 0.1)
    assert "longer than 30 s" in story.of(events.PersistFailed)[0].reason
    assert story.of(events.PersistStarted)[-1].version >= 30


def test_a_node_lost_while_the_last_version_is_saved_costs_neither_it_nor_ten_minutes():
    story = Story().start(4, persistent_url="memory://runs")
    for rank in range(4):
        story.finish(rank)
    assert story.root.state.phase == "finishing"
    story.lose("node-2")
    assert (story.plan().version, story.plan().tier) == (4, "memory")
    story.protect()
    story.say_complete(4)
    for rank in range(4):
        story.finish(rank)
    assert story.of(events.PersistStarted)[-1].version == 4
    save(story, 4)
    assert story.root.state.phase == "done"
    assert commits(story)[-1].version == 4


def test_a_new_root_saves_the_last_version_too():
    first = Story().start(4, persistent_url="memory://runs")
    for rank in range(4):
        first.finish(rank)
    left = RootState.from_text(first.states[-1].to_text())
    assert left.phase == "finishing"
    second = Story(nodes=0, state=left)
    second.copies, second.settings = dict(first.copies), first.settings
    for node in second.copies:
        second.root.living[node] = AgentJoined(at_s=9.0, node=node, epoch=left.epoch)
    second.do(second.root.take_over(9.0))
    assert second.plan().version == 4


def test_stop_ends_a_run_that_saves_its_last_version():
    story = Story().start(4, persistent_url="memory://runs")
    for rank in range(4):
        story.finish(rank)
    assert isinstance(story.orders[-1].order, Persist)
    story.request(StopRun())
    assert story.root.state.phase == "failed"
    assert "stopped by its owner" in story.of(events.RunFailed)[0].reason


def test_shards_of_two_histories_are_never_one_version_in_the_tier():
    story = Story().start(0, persistent_url="memory://runs", persist_every_iterations=1)
    story.iterate(1)
    story.tick(story.now_s + 0.1)
    version = story.of(events.PersistStarted)[0].version
    first, *others = story.members()
    said = written(story, version)
    older = replace(said.lineage, epoch=said.lineage.epoch - 1)
    story.say(first, msgspec.structs.replace(said, lineage=older))
    for node in others:
        story.say(node, said)
    assert not commits(story)
    assert "several histories" in story.of(events.PersistFailed)[0].reason
