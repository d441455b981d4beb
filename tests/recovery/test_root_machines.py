"""Recoveries that fail at one machine: they are counted, they pause, and another one takes over."""

import itertools
import math
from dataclasses import replace

import pytest

from gemini_lab.log import events
from gemini_lab.recovery.faults import FREE_TRIES, MAX_ATTEMPTS, MAX_KILLS
from gemini_lab.recovery.messages import (
    Fence,
    OrderFailed,
    ScriptError,
    TakeInventory,
)
from gemini_lab.recovery.protocol import AgentJoined

from .story import Story

SHORT_OF_MEMORY = ScriptError(error="CapacityError", text="too little memory for the slab")
LACKS = "OSError: [Errno 24] Too many open files"


class Lacking(Story):
    """Some agents lack what some orders need."""

    def __init__(self, *, nodes: int = 5) -> None:
        self.lack: dict[str, set[type]] = {}
        super().__init__(nodes=nodes)

    def answer(self, sent) -> None:
        if type(sent.order) in self.lack.get(sent.to, ()):
            name = type(sent.order).__name__
            self.say(sent.to, OrderFailed(epoch=sent.order.epoch, order=name, reason=LACKS))
        else:
            super().answer(sent)

    def relink(self, node: str) -> None:
        """A connection broke and came back; its workers are what they were."""
        workers = self.root.state.seats.ranks_on(node)
        joined = AgentJoined(at_s=self.now_s, node=node, epoch=self.epoch, workers=workers)
        self.do(self.root.handle(joined))


def excluded(story: Story) -> list[tuple[str, str]]:
    return [(one.name, one.reason) for one in story.of(events.NodeExcluded)]


@pytest.mark.parametrize("order", [Fence, TakeInventory])
def test_a_machine_that_cannot_do_an_order_is_named_and_a_standby_takes_its_place(order):
    story = Lacking().start(iterations=4)
    story.lack = {"node-1": {order}}
    story.exit(1, -9)
    told = f"node-1 cannot do {order.__name__}: {LACKS}"
    assert told in [note.text for note in story.of(events.Note)]
    assert [reason for _, reason in excluded(story)] == [told]
    assert "node-4" in story.members()
    assert story.plan().version == 4
    story.go_on()
    assert story.root.state.phase == "running"


def test_memory_that_cannot_be_read_now_is_waited_for_where_progress_would_be_lost():
    """Both that keep a shard lack descriptors: what they have is there, and is read later."""
    story = Lacking(nodes=4).start(iterations=4)
    story.lack = {node: {TakeInventory} for node in story.members()}
    story.exit(1, -9)
    assert story.root.state.phase == "waiting"
    assert story.of(events.RecoveryWaiting)
    epoch = story.epoch
    story.tick(story.now_s + 10)
    story.tick(story.now_s + 10)
    assert (story.root.state.phase, story.epoch) == ("waiting", epoch)
    story.lack = {}
    story.tick(story.now_s + 60)
    assert story.plan().version == 4
    assert story.root.state.nodes.silent == ()


def test_a_tier_that_no_process_can_be_started_for_is_unread_and_asked_for_elsewhere():
    story = Lacking(nodes=5).start(iterations=4, persistent_url="memory://runs")
    story.persistent = [3]
    story.lack = {"node-0": {TakeInventory}}
    story.lose("node-1")
    story.lose("node-2")  # memory does not suffice without the first one's
    asked = [s.to for s in story.orders if getattr(s.order, "persistent_url", None) is not None]
    assert "node-0" not in asked[-1:]
    assert story.epoch < 10


def test_ranks_meet_in_the_port_of_a_machine_that_could_open_one():
    story = Lacking().start(iterations=4)
    story.portless = {"node-0", "node-2"}
    story.exit(1, -9)
    assert story.root.state.reached.rendezvous == f"node-1:{story.epoch}"
    assert excluded(story) == []


def test_without_a_standby_the_run_tries_again_ever_later_and_never_ends_for_that():
    story = Lacking(nodes=4).start(iterations=4)
    story.portless = {*story.members()}
    story.forever_s = 600.0
    story.exit(1, -9)
    assert story.root.state.phase == "waiting"
    assert story.epoch < 40  # in ten minutes; without a pause it would have no end
    assert "recoveries in a row failed" in story.of(events.RecoveryWaiting)[-1].reason
    assert "order_failed" in story.of(events.RecoveryWaiting)[-1].reason
    story.portless, story.forever_s = set(), math.inf
    story.tick(story.now_s + 60)
    story.go_on()
    assert story.root.state.phase == "running"


@pytest.mark.parametrize("phase", ["fencing", "inventory"])
def test_an_agent_whose_connection_breaks_before_it_answers_is_asked_again_but_not_for_ever(phase):
    story = Lacking().start(iterations=4)
    if phase == "fencing":
        story.silent = {"node-1"}
    else:
        story.deaf = {"node-1"}
    story.exit(0, -9)
    assert story.root.state.phase == phase
    epoch = story.epoch
    story.relink("node-1")
    story.relink("node-1")
    asked = [s for s in story.orders if s.to == "node-1" and s.order.epoch == epoch]
    assert len(asked) == (3 if phase == "fencing" else 4)
    assert (story.root.state.phase, story.epoch) == (phase, epoch)
    story.relink("node-1")
    assert story.members()[1] == "node-4"
    assert excluded(story)[0][0] == "node-1"
    assert story.epoch == epoch + 1  # without it, and once


def test_an_agent_that_answers_when_it_is_asked_again_loses_nothing():
    story = Lacking().start(iterations=4)
    story.silent = {"node-1"}
    story.exit(0, -9)
    story.silent = set()
    story.relink("node-1")
    assert story.root.state.phase == "starting"
    assert story.members() == ["node-0", "node-1", "node-2", "node-3"]


def test_a_recovery_that_keeps_being_begun_pauses_whatever_it_is_begun_for():
    """Also by a root agent after another: what counts is in the store."""
    story = Lacking().start(iterations=4)
    story.exit(0, -9)
    began_s = story.now_s
    for _ in range(8):
        story.next_root()
    assert story.root.state.faults.fruitless == 9
    assert story.now_s - began_s > 60


def test_agents_that_are_lost_before_workers_start_prolong_no_pause():
    """No start failed: a root agent that reaches others one way alone is lost again and again."""
    story = Lacking().start(iterations=4)
    story.silent = {"node-1"}  # so that the fence lasts
    story.exit(0, -9)
    for _ in range(8):
        story.next_root()
    assert story.root.state.phase == "fencing"
    story.lose("node-2")
    assert story.root.state.faults.fruitless == 1


def test_a_run_that_pauses_lacks_nothing_that_another_root_agent_could_reach():
    story = Lacking().start(iterations=4)
    story.forever_s = 0.0  # pauses are not sat out
    for rank in range(FREE_TRIES + 1):
        story.exit(rank % 4, -9)
    assert story.root.state.phase == "waiting"
    assert story.root.lifecycle.is_pausing
    story.lose("node-0", "node-1", cause="lease")
    assert not story.root.lifecycle.is_pausing


def test_progress_makes_an_end_of_pauses():
    story = Lacking().start(iterations=4)
    for _ in range(12):
        began_s = story.now_s
        story.exit(0, -9)
        assert story.now_s == began_s
        story.go_on()
        story.iterate(story.root.state.reached.iteration + 1)
    assert story.root.state.phase == "running"


def test_a_machine_whose_port_refuses_is_silent_and_a_member_again_when_it_answers():
    """A firewall that rejects for a moment: its memory is not written off."""
    story = Lacking(nodes=4).start(iterations=4)
    memory = dict(story.copies)
    story.lose("node-0", "node-1", cause="refused")
    assert story.root.state.phase == "waiting"
    assert (
        "node-0, node-1 fell silent with version 4" in story.of(events.RecoveryWaiting)[-1].reason
    )
    story.copies = memory
    story.join("node-0")
    story.join("node-1")
    assert story.plan().version == 4
    assert story.members() == ["node-0", "node-1", "node-2", "node-3"]
    assert excluded(story) == []
    story.go_on()
    assert story.root.state.reached.iteration == 5


# -- machines that were excluded -------------------------------------------------------------------


def used_again(story: Story) -> list[str]:
    notes = [note.text for note in story.of(events.Note)]
    return [text.split()[0] for text in notes if "was excluded and is used again" in text]


def train_on(story: Story, iterations: int = 3) -> None:
    story.go_on()
    for _ in range(iterations):
        story.iterate(story.root.state.reached.iteration + 1)


def test_an_excluded_machine_is_used_again_when_the_one_in_its_place_fails():
    """It is well again, and there is no other: the run ended beside it."""
    story = Story().start(iterations=4)
    story.exit(1, 1, "", SHORT_OF_MEMORY)
    assert story.members()[1] == "node-4"
    train_on(story)
    story.exit(1, 1, "", SHORT_OF_MEMORY)
    assert story.members()[1] == "node-1"
    assert used_again(story) == ["node-1"]
    assert story.root.state.nodes.excluded == ("node-4",)
    train_on(story)
    assert story.root.state.phase == "running"


@pytest.mark.parametrize("does_one", [False, True])
def test_machines_that_take_turns_pause_ever_longer_and_have_an_end(does_one):
    """Also if each start does one iteration, which makes the attempts count anew."""
    story, seats, began_s = Story().start(iterations=4), [], []
    while story.root.state.phase != "failed":
        seats.append(story.members()[1])
        began_s.append(story.now_s)
        if does_one and len(seats) > 1:
            story.go_on(story.plan().version + 1)
        story.exit(1, 1, "", SHORT_OF_MEMORY)
        assert len(seats) < 60
    assert {*seats[-MAX_KILLS:]} == {"node-1", "node-4"}
    assert max(after - before for before, after in itertools.pairwise(began_s)) >= 30


def test_a_machine_that_took_an_empty_place_again_is_left_again_for_a_fresh_one():
    story = Story().start(iterations=4)
    story.exit(1, 1, "", SHORT_OF_MEMORY)
    train_on(story)
    story.lose("node-0")
    assert story.members()[0] == "node-1"
    assert used_again(story) == ["node-1"]
    train_on(story)
    story.join("node-5")
    for _ in range(MAX_ATTEMPTS):
        assert story.members()[0] == "node-1"
        story.exit(0, -9)
    assert story.members()[0] == "node-5"


def test_a_machine_whose_memory_is_needed_and_that_always_fails_has_an_end():
    """A standby is there, but not what the machine alone has: all starts came to the same."""
    story = Story().start(iterations=4)
    for node, copies in story.copies.items():
        if node != "node-1":
            copies[:] = [copy for copy in copies if copy.shard != 1]
    while story.root.state.phase != "failed":
        assert story.members()[1] == "node-1"
        story.exit(1, 1, "", SHORT_OF_MEMORY)
        assert story.epoch < 4 * MAX_KILLS
    assert used_again(story) == ["node-1"]


def test_another_machine_of_the_same_name_is_a_fresh_one():
    story = Story().start(iterations=4)
    story.exit(1, 1, "", SHORT_OF_MEMORY)
    train_on(story)
    story.lose("node-1")
    story.join("node-1")
    assert story.root.state.nodes.excluded == ()
    story.lose("node-0")
    assert story.members()[0] == "node-1"
    assert used_again(story) == []


def test_a_machine_that_computed_wrong_is_not_used_again_for_want_of_others():
    story = Story().start(iterations=4)
    wrong = replace(story.root.state.nodes, wrong=("node-4",), excluded=("node-4",))
    story.root.run.state = replace(story.root.state, nodes=wrong)
    while story.root.state.phase != "failed":
        assert story.members()[1] == "node-1"
        story.exit(1, 1, "", SHORT_OF_MEMORY)
    assert used_again(story) == []


def test_where_no_port_can_be_opened_the_run_tries_ever_later_until_a_standby_has_one():
    story = Lacking().start(iterations=4)
    story.portless = {*story.copies}
    story.forever_s = 600.0
    story.exit(1, -9)
    assert story.root.state.phase == "waiting"
    assert excluded(story) == []
    assert "node-4: Too many open files" in [note.text for note in story.of(events.Note)]
    story.portless, story.forever_s = {*story.members()}, math.inf
    story.tick(story.now_s + 60)
    assert story.members()[0] == "node-4"
    train_on(story)
    assert story.root.state.phase == "running"
