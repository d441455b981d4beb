"""Machines that tell of faults, told as stories: drained by the rule, or only named."""

import pytest

from gemini_lab.log import events
from gemini_lab.recovery.ailments import MOST, OVER_S, RULES, FaultsSeen, MachineFault
from gemini_lab.recovery.messages import Ailing

from .story import Story


def ails(story, node, fault, *, seen="79", is_over=False):
    story.say(node, Ailing(fault=fault, seen=seen, is_over=is_over))


@pytest.mark.parametrize("fault", [name for name, rule in RULES.items() if rule.drains])
def test_the_ranks_of_a_machine_that_is_about_to_fail_move_to_a_standby(fault):
    story = Story().start(iterations=5)
    ails(story, "node-2", fault)
    (told,) = story.of(events.NodeAiling)
    assert (told.name, told.fault, told.drains) == ("node-2", fault, True)
    assert str(told) == f"node-2: {RULES[fault].means}: 79"
    story.hold(0, 1, 2, 3)
    story.go_on()
    assert story.members() == ["node-0", "node-1", "node-4", "node-3"]
    assert [event.name for event in story.of(events.NodeDrained)] == ["node-2"]


@pytest.mark.parametrize("fault", [name for name, rule in RULES.items() if not rule.drains])
def test_what_may_pass_is_only_told(fault):
    story = Story().start(iterations=5)
    ails(story, "node-2", fault)
    assert [one.drains for one in story.of(events.NodeAiling)] == [False]
    assert story.told_to_hold() == []
    ails(story, "node-2", fault, is_over=True)
    assert [one.is_over for one in story.of(events.NodeAiling)] == [False, True]


def test_nothing_is_drained_where_the_settings_say_so():
    story = Story().start(5, on_ailing="warn")
    ails(story, "node-2", "gpu_failed")
    assert [one.drains for one in story.of(events.NodeAiling)] == [False]
    assert story.told_to_hold() == []


def test_a_fault_from_before_the_job_is_told_with_it_and_its_node_drained():
    story = Story()
    ails(story, "node-2", "gpu_failed")
    assert story.of(events.NodeAiling) == []
    story.start(iterations=5)
    assert [one.name for one in story.of(events.NodeAiling)] == ["node-2"]
    story.hold(0, 1, 2, 3)
    story.go_on()
    assert "node-2" not in story.members()


def test_a_fault_without_a_rule_is_ignored():
    story = Story().start(iterations=5)
    ails(story, "node-2", "something else")
    assert story.of(events.NodeAiling) == []


def test_a_fault_is_told_once_and_is_over_when_it_was_not_seen_for_long():
    seen = FaultsSeen()
    found = [MachineFault("oom_kill", "one")]
    (told,) = seen.take(found, at_s=0.0)
    assert not told.is_over
    assert list(seen.take(found, at_s=OVER_S)) == []
    assert list(seen.take([], at_s=2 * OVER_S)) == []
    (told,) = seen.take([], at_s=2 * OVER_S + 1)
    assert told.is_over
    (told,) = seen.take(found, at_s=2 * OVER_S + 2)
    assert not told.is_over


def test_another_root_agent_hears_everything_again():
    seen = FaultsSeen()
    list(seen.take([MachineFault("oom_kill", "one")], at_s=0.0))
    seen.forget_told()
    assert [one.fault for one in seen.take([], at_s=1.0)] == ["oom_kill"]


def test_of_any_number_of_faults_some_are_kept():
    seen = FaultsSeen()
    assert len(list(seen.take([MachineFault(str(n), "") for n in range(1000)], at_s=0.0))) == MOST
