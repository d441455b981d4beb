"""Processes that go on through a recovery, told as stories."""

import pytest

from gemini_lab.log import events
from gemini_lab.recovery.messages import (
    AllLive,
    CallRoll,
    Fence,
    Held,
    KeptCopy,
    Severed,
    StartWorkers,
    WorkerEnded,
)

from .story import Story, kept_by


def lose(story: Story, rank: int) -> None:
    """A worker is killed: its process cannot stand still."""
    story.ended = {rank}
    story.exit(rank, -9)


def kept(story: Story) -> list[list[int]]:
    """Whom the nodes were told to go on with, at the last start."""
    sent = [s.order for s in story.orders if isinstance(s.order, StartWorkers)]
    return [kept_by(order) for order in sent if order.epoch == story.epoch]


def fences(story: Story) -> dict[str, bool]:
    """Whether each node's workers may stand still, at the last fence."""
    sent = [s for s in story.orders if isinstance(s.order, Fence)]
    return {s.to: s.order.keeps for s in sent if s.order.epoch == story.epoch}


def ends(story: Story) -> list[int]:
    """Whose processes may not stand still, at the last fence."""
    (told,) = {
        tuple(s.order.ends)
        for s in story.orders
        if isinstance(s.order, Fence) and s.order.epoch == story.epoch
    }
    return [*told]


def host(story: Story) -> str:
    """The node that holds the port in which the ranks met last."""
    return story.root.state.reached.rendezvous.split(":")[0]


def test_only_the_lost_rank_starts_anew_and_its_node_has_the_rendezvous():
    story = Story().start(keep_processes=True)
    lose(story, 2)
    assert kept(story) == [[0, 1, 3]] * 4
    assert host(story) == "node-2"
    assert [one.ranks for one in story.of(events.ProcessesKept)] == [(0, 1, 3)]
    story.go_on(4)
    assert story.root.state.phase == "running"


def test_a_lost_nodes_rank_starts_on_the_standby_which_has_the_rendezvous():
    story = Story().start(keep_processes=True)
    story.lose("node-0")
    assert story.members() == ["node-4", "node-1", "node-2", "node-3"]
    assert kept(story) == [[1, 2, 3]] * 4
    assert host(story) == "node-4"


def test_nobody_is_kept_unless_the_settings_say_so():
    story = Story().start()
    lose(story, 2)
    assert not any(fences(story).values())
    assert kept(story) == [[]] * 4


def test_a_failure_within_a_recovery_has_all_start_anew():
    story = Story().start(keep_processes=True)
    lose(story, 2)
    story.ended = set()
    story.say("node-1", WorkerEnded(rank=1, epoch=story.epoch, code=1, output=""))
    assert not any(fences(story).values())
    assert kept(story) == [[]] * 4


def test_a_node_lost_while_others_stand_still_has_all_start_anew():
    story = Story(nodes=6).start(keep_processes=True)
    story.deaf = {"node-1"}  # it reads its memory for long
    lose(story, 2)
    assert story.root.state.phase == "inventory"
    story.lose("node-1")
    assert not any(fences(story).values())
    assert kept(story) == [[]] * 4


def sever(story: Story, rank: int, *, epoch: int | None = None) -> None:
    """A worker's connection to another one breaks, and nobody has died."""
    said = Severed(rank=rank, epoch=story.epoch if epoch is None else epoch)
    story.say(story.members()[rank], said)


def test_where_a_connection_broke_and_nobody_died_all_go_on_and_one_of_them_has_the_rendezvous():
    story = Story().start(keep_processes=True)
    before = story.epoch
    sever(story, 2)
    sever(story, 3, epoch=before)  # the other end, which has noticed it, too
    assert kept(story) == [[0, 1, 2, 3]] * 4
    assert host(story) == "node-0"
    assert [one.cause for one in story.of(events.RecoveryStarted)] == ["link_cut"]
    story.go_on(4)
    assert story.root.state.phase == "running"


def test_a_connection_that_breaks_while_ranks_start_is_left_to_the_scripts_error_that_counts():
    story = Story().start(keep_processes=True)
    sever(story, 2)
    before = story.epoch
    sever(story, 2)
    assert story.epoch == before
    story.exit(2, 1)
    assert story.epoch == before + 1
    assert kept(story) == [[]] * 4


def called(story: Story) -> list[str]:
    """The nodes that were asked whether their workers all live."""
    return [s.to for s in story.orders if isinstance(s.order, CallRoll)]


def test_where_others_notice_a_death_before_its_agent_does_the_death_is_told():
    story = Story().start(keep_processes=True)
    before, story.ended = story.epoch, {2}
    sever(story, 3)
    sever(story, 0)
    assert called(story) == ["node-0", "node-1", "node-2", "node-3"]
    assert story.epoch == before
    story.exit(2, -9)
    assert [one.cause for one in story.of(events.RecoveryStarted)] == ["worker_exited"]
    story.tick(story.now_s + 1)
    assert story.epoch == before + 1
    assert kept(story) == [[0, 1, 3]] * 4
    assert host(story) == "node-2"


def test_a_run_that_has_finished_meanwhile_is_not_begun_again():
    story = Story().start(keep_processes=True)
    before, story.ended = story.epoch, {2}  # whose node does not answer yet
    sever(story, 3)
    for rank in range(4):
        story.finish(rank)
    assert story.root.state.phase in {"finishing", "done"}
    story.say("node-2", AllLive(epoch=before))
    story.tick(story.now_s + 1)
    assert story.epoch == before
    assert story.of(events.RecoveryStarted) == []


def test_a_node_that_does_not_say_whether_its_workers_live_is_not_waited_for_long():
    story = Story().start(keep_processes=True)
    before, story.ended = story.epoch, {2}
    sever(story, 3)
    story.tick(story.now_s + 0.4)
    assert story.epoch == before
    story.tick(story.now_s + 0.2)
    assert story.epoch == before + 1
    assert [one.cause for one in story.of(events.RecoveryStarted)] == ["link_cut"]
    assert kept(story) == [[0, 1, 3]] * 4
    assert host(story) == "node-2"


def test_processes_are_not_kept_where_memory_has_no_version():
    story = Story().start(keep_processes=True, persistent_url="file:///tier")
    story.persistent = [2]
    for copies in story.copies.values():
        copies.clear()
    lose(story, 2)
    assert kept(story)
    assert all(not one for one in kept(story))


def test_a_rank_whose_process_could_not_stand_still_starts_anew_beside_the_lost_one():
    story = Story().start(keep_processes=True)
    story.ended = {2, 3}
    story.exit(2, -9)
    assert kept(story) == [[0, 1]] * 4
    assert host(story) == "node-2"


def test_a_hung_rank_starts_anew_and_those_that_wait_for_it_in_a_collective_go_on():
    story = Story().start(keep_processes=True)
    story.pulse(1, doing="step", still_s=3.0, idle_s=3.0)
    for rank in (0, 2, 3):
        story.pulse(rank, doing="step", still_s=3.0, idle_s=3.0, waits_in="all_reduce")
    story.tick(story.now_s + 31)
    assert [one.rank for one in story.of(events.WorkerHung)] == [1]
    assert ends(story) == [1]
    assert kept(story) == [[0, 2, 3]] * 4


def test_who_stands_still_elsewhere_than_in_a_collective_starts_anew_with_the_hung_one():
    """It may never come to the top of its loop either."""
    story = Story().start(keep_processes=True)
    story.pulse(1, silent_s=3.0, is_stopped=True, doing="step")
    story.pulse(0, doing="step", still_s=3.0, idle_s=3.0, waits_in="all_reduce")
    story.pulse(3, doing="step", still_s=3.0, idle_s=3.0)
    story.tick(story.now_s + 31)
    assert story.of(events.WorkerHung)
    assert ends(story) == [1, 2, 3]


def test_where_all_wait_in_a_collective_all_go_on():
    story = Story().start(keep_processes=True)
    for rank in range(4):
        story.pulse(rank, doing="step", still_s=3.0, idle_s=3.0, waits_in="all_reduce")
    story.tick(story.now_s + 31)
    assert story.of(events.WorkerHung)
    assert kept(story) == [[0, 1, 2, 3]] * 4


def test_a_drained_nodes_ranks_move_and_the_others_keep_their_processes():
    story = Story().start(iterations=5, keep_processes=True)
    story.drain("node-2")
    for rank in range(4):
        story.say(story.members()[rank], Held(rank=rank, epoch=story.epoch, version=5))
    assert fences(story) == {f"node-{n}": n != 2 for n in range(5)}
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]
    assert kept(story) == [[0, 1, 2, 3]] * 4  # the one that was started ahead is there, too
    assert [one.ranks for one in story.of(events.ProcessesKept)] == [(0, 1, 3)]


def test_a_new_root_begins_a_recovery_again_without_keeping_anybody():
    """It does not know who stands still."""
    story = Story().start(keep_processes=True)
    story.silent = {"node-3"}
    lose(story, 2)
    assert story.root.state.phase == "fencing"
    story.silent = set()
    story.next_root()
    assert not any(fences(story).values())
    assert kept(story) == [[]] * 4


@pytest.mark.parametrize("version", [2, 3])
def test_processes_go_on_from_the_version_that_is_whole(version):
    story = Story().start(keep_processes=True)
    if version == 2:
        story.copies["node-2"] = [c for c in story.copies["node-2"] if c.version < 3]
        story.copies["node-3"] = [c for c in story.copies["node-3"] if c.shard != 2]
        story.copies["node-3"].append(KeptCopy(2, 2, story.lineage, 4))
    lose(story, 2)
    assert story.plan().version == version
    assert kept(story) == [[0, 1, 3]] * 4


def test_where_copies_are_placed_anew_with_a_restart_no_process_is_kept():
    """A process has memory for the copies of before."""
    story = Story().start(replicas="auto", keep_processes=True)
    chosen = []
    for _ in range(8):
        before = story.root.state.seats.placement
        story.ended = {2}
        story.exit(2, -9)
        chosen.append((story.root.state.seats.placement == before, kept(story)[0]))
        story.go_on()
    assert {tuple(ranks) for stayed, ranks in chosen if stayed} == {(0, 1, 3)}
    assert {tuple(ranks) for stayed, ranks in chosen if not stayed} == {()}
