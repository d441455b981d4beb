"""A worker that stands still at its loop's top, and is told to go on."""

import threading
from types import SimpleNamespace

import pytest

from gemini_lab.kept import process
from gemini_lab.kept.groups import obstacle
from gemini_lab.kept.process import StandingProcess

PATIENCE_S = 20.0


class Slow(threading.Event):
    """Whoever waits for it wakes up later, as on a busy machine."""

    def __init__(self):
        super().__init__()
        self.is_waited_for, self.may_wake = threading.Event(), threading.Event()

    def wait(self, _timeout=None):
        self.is_waited_for.set()
        return super().wait(PATIENCE_S) and self.may_wake.wait(PATIENCE_S)


def test_one_that_waits_at_the_top_is_not_taken_for_one_that_does_not_come_there():
    """It has done nothing for as long as the lost rank's node imported: all were ended for that."""
    standing, slow = StandingProcess(SimpleNamespace(tell=None), None, is_late=False), Slow()
    standing._told, word = slow, ("start", "store")
    heard = []
    training = threading.Thread(target=lambda: heard.append(standing.wait()))
    training.start()
    assert slow.is_waited_for.wait(PATIENCE_S)
    standing._next = word
    slow.set()
    assert not standing.is_awaited
    slow.may_wake.set()
    training.join(PATIENCE_S)
    assert heard == [word]
    slow.set()  # another word, and training's thread is somewhere else
    assert standing.is_awaited


@pytest.fixture
def made(monkeypatch):
    """A process that was ordered to go on, what it says, and its end; no test takes any time."""
    said, ended = [], []
    monkeypatch.setattr(process.os, "kill", lambda *_: (ended.append(True), told.take()))
    monkeypatch.setattr(process.time, "sleep", lambda _: told.sleep())
    pulse = SimpleNamespace(idle_s=0.0, place=lambda: "train.py:88 in evaluate")
    told = SimpleNamespace(said=said, ended=ended, pulse=pulse)
    told.process = StandingProcess(SimpleNamespace(tell=None), None, is_late=False)
    told.process._told.set()
    told.take = told.process._told.clear
    told.process.attach(
        SimpleNamespace(
            start=SimpleNamespace(rank=2), pulse=pulse, emit=lambda event: said.append(event.text)
        )
    )
    return told


def test_one_that_does_nothing_for_long_is_ended_and_said(made):
    made.sleep = lambda: setattr(made.pulse, "idle_s", made.pulse.idle_s + 1.0)
    made.process._see_it_go_on()
    assert made.pulse.idle_s >= process.IDLE_S
    assert made.ended == [True]
    (said,) = made.said
    assert "rank 2 does not go on" in said
    assert "train.py:88 in evaluate" in said


def test_one_that_comes_there_in_the_end_is_not(made):
    sleeps = iter(range(40))
    made.sleep = lambda: next(sleeps) < 39 or made.take()  # it computes meanwhile
    made.process._see_it_go_on()
    assert (made.ended, made.said) == ([], [])


@pytest.mark.parametrize(("keeps", "why"), [(False, process.NOT_ASKED), (True, obstacle())])
def test_a_process_is_kept_where_that_is_asked_for_and_possible(monkeypatch, keeps, why):
    monkeypatch.setattr(process.StandingGroups, "install", lambda _: None)
    order = SimpleNamespace(defaults={}, settings={"keep_processes": keeps})
    made = process.kept_process(SimpleNamespace(order=order, kept=[], rank=1), None)
    assert isinstance(made, StandingProcess) == (not why)
    assert made.why_not == (why or process.NOT_IN_LOOP)


def test_a_process_whose_groups_cannot_be_reconnected_says_so_and_is_not_kept():
    broken = []
    groups = SimpleNamespace(tell=None, flaw="", break_off=lambda: broken.append(True))
    standing = StandingProcess(groups, None, is_late=False)
    standing.why_not = ""
    assert (standing.stand(), broken) == ("", [True])
    groups.flaw = "it makes process groups in its loop"
    assert (standing.stand(), broken) == (groups.flaw, [True])
