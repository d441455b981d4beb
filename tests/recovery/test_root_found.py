"""What exploring the protocol's interleavings found, each as the shortest story of it."""

import msgspec
import pytest
from made import made

from gemini_lab.log import events
from gemini_lab.recovery.messages import Fence, Fenced, Inventory, SaveFailed, TakeInventory
from gemini_lab.recovery.plan import Copy
from gemini_lab.recovery.progress_at_risk import newest_seen
from gemini_lab.recovery.protocol import (
    AgentJoined,
    AgentLost,
    Emit,
    FromAgent,
    JobSubmitted,
    Requested,
    WriteState,
)
from gemini_lab.recovery.requests import GiveUpProgress
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab.settings import Settings
from gemini_lab.shard.lineage import Lineage

from .story import RUN, Story, job


def successor(first: Story, state: RootState, *, without: tuple[str, ...] = ()) -> Story:
    """Another root, which knows only what was stored, and whom it reaches."""
    second = Story(nodes=0, state=RootState.from_text(state.to_text()))
    second.copies = {n: c for n, c in first.copies.items() if n not in without}
    second.settings = first.settings
    for node in second.copies:
        second.root.living[node] = AgentJoined(at_s=9.0, node=node, epoch=state.epoch)
    second.do(second.root.take_over(9.0))
    return second


# -- who says what ---------------------------------------------------------------------------------


def test_a_recovery_is_said_after_it_is_written_so_a_deposed_root_says_none():
    story = Story().start()
    given = story.root.handle(AgentLost(at_s=9.0, node="node-1", cause="lease"))
    kinds = [type(i.event) if isinstance(i, Emit) else type(i) for i in given]
    assert kinds.index(WriteState) < kinds.index(events.RecoveryStarted)


def test_a_root_that_dies_between_the_runs_last_write_and_its_last_word_leaves_that_to_the_next():
    first = Story().start(iterations=3)
    for rank in range(4):
        first.finish(rank)
    written = next(state for state in first.states if state.phase == "done")
    second = successor(first, written)
    assert len(second.of(events.RunFinished)) == 1
    assert {sent.to for sent in second.orders} == set(second.copies)
    third = successor(second, second.states[-1])
    assert not third.of(events.RunFinished)


def test_a_root_that_waits_again_says_again_why():
    story = Story(nodes=4).start()
    story.lose("node-1")
    story.join("node-7")
    story.lose("node-7")
    assert story.root.state.phase == "waiting"
    assert len(story.of(events.RecoveryWaiting)) == 2


# -- who is asked ----------------------------------------------------------------------------------


def test_a_node_that_joins_an_inventory_ends_its_old_workers_before_it_says_what_it_has():
    story = Story(nodes=6).start()
    story.deaf = {"node-2"}
    story.lose("node-1", cause="lease")
    assert story.root.state.phase == "inventory"
    sent = len(story.orders)
    story.join("node-1")
    asked = [one.order for one in story.orders[sent:] if one.to == "node-1"]
    assert [type(order) for order in asked] == [Fence, TakeInventory]


def test_a_root_without_any_agent_waits_for_the_first():
    """The last agent is lost while the persistent tier is to be asked."""
    story = Story(nodes=1, state=Story().start(persistent_url="memory://runs").root.state)
    story.do(story.root.take_over(1.0))
    story.deaf = {"node-0"}
    story.do(story.root.handle(AgentLost(at_s=2.0, node="node-0", cause="connection")))
    assert story.root.state.phase in {"fencing", "inventory", "waiting"}


# -- progress --------------------------------------------------------------------------------------


def test_settings_that_no_root_could_store_come_from_the_nodes_that_run_by_them():
    """The store was away while workers started: the next root has the copies, but no settings."""
    story = Story().start(iterations=4)
    left = next(state for state in story.states if state.phase == "starting")
    assert left.setup.settings is None
    protected = made(
        events.Protected,
        settings=Settings(),
        fingerprint="same",
        placement=story.root.state.seats.holders,
    )
    root = RootAgent(state=left, at_s=9.0)
    for node in story.copies:
        root.living[node] = AgentJoined(at_s=9.0, node=node, epoch=1)
    root.take_over(9.0)
    epoch = root.state.epoch
    for node in story.copies:
        root.handle(FromAgent(at_s=9.0, node=node, message=Fenced(epoch=epoch, address="a:1")))
    given = []
    for node, copies in story.copies.items():
        said = Inventory(
            epoch=epoch, copies=list(copies), damaged=[], protected=protected if copies else None
        )
        given += root.handle(FromAgent(at_s=9.0, node=node, message=said))
    planned = [i.event for i in given if isinstance(i, Emit) and i.event.kind == "recovery_planned"]
    assert [msgspec.to_builtins(one)["version"] for one in planned] == [4]


def test_a_group_that_falls_silent_together_with_the_root_is_waited_for():
    """Nobody is left who has heard of any version, which does not mean that there is none."""
    first = Story(nodes=6).start(iterations=0)
    left = first.states[-1]
    assert left.reached.newest == 0
    first.iterate(1, 2, 3)
    second = successor(first, left, without=("node-0", "node-1", "node-2", "node-3"))
    assert second.root.state.phase == "waiting"
    assert "fell silent together with the root" in second.of(events.RecoveryWaiting)[-1].reason


def test_an_old_version_on_a_standby_is_no_reason_to_leave_what_silent_nodes_may_have():
    """Both who train fall silent, with the root; whose place was given away has what was old."""
    first = Story(nodes=6).start(iterations=3)
    first.lose("node-0", "node-2", cause="lease")
    first.join("node-0")
    first.join("node-2")
    assert first.members() == ["node-4", "node-1", "node-5", "node-3"]
    first.go_on(4)
    left = first.states[-1]
    first.iterate(5, 6, 7)
    members = tuple(first.members())
    second = successor(first, left, without=members)
    for node in ("node-6", "node-7"):
        second.join(node)
    assert second.root.state.phase == "waiting"
    assert "than version 3" in second.of(events.RecoveryWaiting)[-1].reason
    second.copies |= {node: first.copies[node] for node in members}
    for node in members:
        second.join(node)
    assert (second.plan().version, second.plan().tier) == (7, "memory")


@pytest.mark.parametrize("unread", ["", "503"])
def test_what_was_saved_goes_before_an_old_version_on_standbys_where_all_who_trained_are_dead(
    unread,
):
    first = Story(nodes=6).start(iterations=3, persistent_url="memory://runs")
    first.lose("node-0", "node-2", cause="lease")
    first.join("node-0")
    first.join("node-2")
    first.go_on(4)
    left, dead = first.states[-1], tuple(first.members())
    second = successor(first, left, without=dead)
    second.persistent, second.unread = [6], unread
    for node in ("node-6", "node-7"):
        second.join(node)
    for node in dead:
        second.lose(node)
    if unread:
        assert second.root.state.phase == "waiting"
        reason = second.of(events.RecoveryWaiting)[-1].reason
        assert "cannot be read (503), and may have newer versions than version 3" in reason
        second.unread = ""
        second.tick(second.now_s + 60)
    assert (second.plan().version, second.plan().tier) == (6, "persistent")


def test_nobody_starts_anew_because_all_who_knew_of_progress_are_dead():
    """All nodes died together; the new ones read the state, which knows of the first iteration."""
    first = Story(nodes=6).start(iterations=1)
    left = first.states[-1]
    first.iterate(2, 3)
    dead = ("node-0", "node-1", "node-2", "node-3")
    second = successor(first, left, without=dead)
    for node in ("node-6", "node-7", "node-8"):
        second.join(node)
    for node in dead:
        second.lose(node)
    assert second.root.state.phase == "waiting"
    reason = second.of(events.RecoveryWaiting)[-1].reason
    assert "no copy of version 1 is left anywhere" in reason
    assert "1 iterations at least" in reason
    second.request(GiveUpProgress())
    assert second.plan().tier == "start"


def test_what_all_dead_nodes_saved_is_gone_on_from_as_soon_as_they_are_known_to_be_dead():
    first = Story(nodes=6).start(iterations=5, persistent_url="memory://runs")
    dead = ("node-0", "node-1", "node-2", "node-3")
    first.persistent = [4]
    second = successor(first, first.states[-1], without=(*dead, "node-4", "node-5"))
    second.persistent = [4]
    for node in ("node-6", "node-7", "node-8", "node-9"):
        second.join(node)
    assert second.root.state.phase == "waiting"
    for node in dead:
        second.lose(node)
    assert (second.plan().version, second.plan().tier) == (4, "persistent")


def test_a_node_that_is_not_to_be_used_again_is_used_rather_than_lose_what_it_has():
    story = Story(nodes=7).start(iterations=5)
    story.silent = {"node-0", "node-1"}
    story.exit(2, -9)
    story.tick(story.now_s + 61)  # both count as lost
    story.silent.clear()
    story.join("node-0")
    assert (story.plan().version, story.plan().tier) == (5, "memory")
    assert "node-0" in story.members()


def test_a_persons_word_holds_for_one_recovery_whoever_is_root():
    """The word stays in the store; a new root reads it there once more."""
    story = Story(nodes=8).start(iterations=5)
    story.lose("node-0", "node-1", cause="lease")
    word = Requested(at_s=story.now_s, number=1, request=GiveUpProgress())
    story.do(story.root.handle(word))
    assert story.plan().tier == "start"
    story.go_on(1, 2, 3)
    for node in story.members()[:2]:
        story.lose(node, cause="lease")
    assert story.root.state.phase == "waiting"
    story.do(story.root.handle(word))
    assert story.root.state.phase == "waiting"
    story.request(GiveUpProgress(), number=2)
    assert story.root.state.phase == "starting"


def test_a_tier_from_which_to_resume_is_not_empty_because_it_cannot_be_read():
    story = Story()
    story.unread = "503 Service Unavailable"
    order = msgspec.structs.replace(job(persistent_url="memory://runs"), is_resumed=True)
    story.do(story.root.handle(JobSubmitted(at_s=0.0, order=order)))
    assert story.root.state.phase == "waiting"
    assert "from which to resume" in story.of(events.RecoveryWaiting)[-1].reason
    story.unread, story.persistent = "", [4]
    story.tick(5.0)
    assert story.root.state.phase == "starting"


def test_a_save_that_never_ends_does_not_cost_the_last_version():
    story = Story().start(
        0, persistent_url="memory://runs", persist_every_iterations=2, persist_limit_s=30.0
    )
    story.iterate(1)
    story.tick(story.now_s + 0.1)
    story.iterate(2, 3, 4)
    for rank in range(4):
        story.finish(rank)
    story.tick(story.now_s + 31)
    assert [event.version for event in story.of(events.PersistStarted)] == [2, 4]
    assert story.root.state.phase == "finishing"


def test_agents_that_come_back_after_all_were_dropped_have_time_to_answer():
    story = Story().start()
    story.silent = set(story.copies)
    story.exit(0, -9)
    story.tick(story.now_s + 61)
    assert not story.root.living
    for node in list(story.copies):
        story.join(node)
    story.tick(story.now_s + 0.25)
    assert len(story.root.living) == 5


def test_a_version_that_was_given_up_is_not_waited_for_again():
    story = Story(nodes=8).start(iterations=5, persistent_url="memory://runs")
    story.persistent = [2]
    story.lose("node-0", "node-1", cause="lease")
    story.request(GiveUpProgress())
    story.go_on(3)
    story.exit(2, -9)
    assert (story.plan().version, story.plan().tier) == (3, "memory")


def test_a_silent_node_stays_silent_though_its_loss_is_noticed_twice():
    """First its lease runs out, then its connection breaks: neither says that it is dead."""
    story = Story(nodes=6).start(iterations=5, persistent_url="memory://runs")
    story.persistent = [2]
    for node in ("node-0", "node-1"):
        story.lose(node, cause="lease")
        story.lose(node, cause="connection")
    assert story.root.state.phase == "waiting"
    assert "node-0, node-1 fell silent" in story.of(events.RecoveryWaiting)[-1].reason


def test_a_new_root_does_not_wait_for_silent_nodes_that_it_is_connected_to():
    first = Story(nodes=6).start(iterations=5)
    first.lose("node-0", "node-1", cause="lease")
    assert first.states[-1].nodes.silent == ("node-0", "node-1")
    second = successor(first, first.states[-1])
    assert (second.plan().version, second.plan().tier) == (5, "memory")
    assert second.root.state.nodes.silent == ()


def test_what_a_left_history_had_is_not_waited_for():
    old, new = Lineage(run=RUN, epoch=1), Lineage(run=RUN, epoch=4)
    left = [Copy(shard=0, version=v, node="node-0", lineage=old) for v in (3, 4)]
    made = [Copy(shard=2, version=v, node="node-2", lineage=new) for v in (1, 2)]
    assert newest_seen([*left, *made]) == 1


def test_a_save_that_comes_too_late_is_not_asked_for_again_at_every_tick():
    """A new root has heard of no version yet, and asks for one that training has passed."""
    story = Story().start(
        0, persistent_url="memory://runs", persist_every_iterations=1, persist_limit_s=30.0
    )
    story.iterate(1)
    story.tick(story.now_s + 0.1)
    (begun,) = story.of(events.PersistStarted)
    said = SaveFailed(epoch=story.epoch, version=begun.version, reason="passed")
    story.say("node-0", said)
    for _ in range(10):
        story.tick(story.now_s + 0.25)
    assert len(story.of(events.PersistStarted)) == 1
    story.iterate(2)
    story.iterate(3)
    story.tick(story.now_s + 0.25)
    assert len(story.of(events.PersistStarted)) == 2
