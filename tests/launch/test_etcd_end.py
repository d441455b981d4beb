"""When a member's keeper ends: stories of what it is told, with times in seconds."""

import pytest

from gemini_lab.launch.etcd_keeper import (
    AGENTS_END_S,
    BEGIN_S,
    DEAF_S,
    FORSAKEN_S,
    LEAVE_S,
    LabEnd,
)
from gemini_lab.node.start_config import OVER_KEY

LAB = {"lab", "nodes/node-1"}
AWAY = None


def lasts(end, now_s, **told) -> bool:
    return not end.has_come(now_s, **{"are_agents_here": False, **told})


def test_it_stays_while_an_agent_is_here_however_long_the_store_is_away():
    end = LabEnd(0, has_begun=False)
    assert all(lasts(end, hour * 3600, are_agents_here=True) for hour in range(100))
    assert lasts(end, 99 * 3600 + DEAF_S - 1, names=AWAY)
    assert not lasts(end, 99 * 3600 + DEAF_S, names=AWAY)


def test_it_stays_for_a_lab_whose_agents_come_anew_elsewhere():
    end = LabEnd(0, has_begun=False)
    assert lasts(end, 1, are_agents_here=True)
    assert lasts(end, 2, names={"lab"})  # all are lost
    assert lasts(end, 1800, names={"lab"})
    assert lasts(end, 1801, names=LAB)  # others have come
    assert lasts(end, 1801 + FORSAKEN_S - 1, names={"lab"})
    assert lasts(end, 1801 + FORSAKEN_S, names={"lab"})
    assert not lasts(end, 1801 + FORSAKEN_S + LEAVE_S, names=AWAY)


@pytest.mark.parametrize("has_begun", [False, True])
def test_it_ends_when_whoever_started_the_lab_says_that_it_is_over(has_begun):
    end = LabEnd(0, has_begun=has_begun)
    assert lasts(end, 1, names=LAB)
    assert lasts(end, 2, names={*LAB, OVER_KEY})  # until the others have seen it
    assert not lasts(end, 2 + LEAVE_S, names=AWAY)


def test_it_ends_with_the_key_of_a_lab_that_has_begun():
    for names in (set(), {OVER_KEY}):
        end = LabEnd(0, has_begun=True)
        assert lasts(end, 1, names=names)
        assert not lasts(end, 1 + LEAVE_S, names=AWAY)
    end = LabEnd(0, has_begun=False)
    assert lasts(end, 1, names=set())
    assert lasts(end, 2, names=LAB)
    assert lasts(end, 3, names=set())
    assert not lasts(end, 3 + LEAVE_S, names=set())


@pytest.mark.parametrize("names", [set(), AWAY])
def test_a_lab_that_never_comes_is_not_waited_for_without_end(names):
    end = LabEnd(0, has_begun=False)
    assert lasts(end, BEGIN_S - 1, names=names)
    assert not lasts(end, BEGIN_S, names=names)


def test_one_that_the_others_left_ends_though_nobody_can_tell_it_why():
    end = LabEnd(0, has_begun=False)
    assert lasts(end, 1, names=LAB)
    assert lasts(end, 2, names=AWAY)
    assert not lasts(end, 1 + DEAF_S, names=AWAY)


def test_one_that_an_agent_told_waits_for_the_agents_here_and_not_for_ever():
    end = LabEnd(0, has_begun=True)
    assert lasts(end, 1, are_agents_here=True, is_told=True)
    assert lasts(end, 2, is_told=True)
    assert not lasts(end, 1 + LEAVE_S, is_told=True)
    assert lasts(end, AGENTS_END_S, are_agents_here=True, is_told=True)
    assert not lasts(end, 1 + AGENTS_END_S, are_agents_here=True, is_told=True)
