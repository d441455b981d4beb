"""What an agent tells the root of its workers."""

from dataclasses import dataclass

import pytest
from made import made

from gemini_lab.node.listener import WorkerWatch
from gemini_lab.recovery.messages import WorkerPulse


@dataclass
class Process:
    """Stands for a worker."""

    rank: int = 0
    epoch: int = 1
    pid: int | None = 100
    status: str = "running"


class Node:
    """An agent's watch over one worker, and its clock."""

    def __init__(self):
        self.now_s, self.stopped = 0.0, set()
        self.workers = [Process()]
        self.watch = WorkerWatch(
            is_stopped=lambda pid: pid in self.stopped, clock=lambda: self.now_s
        )
        self.watch.look(self.workers)

    def beat(self, **said):
        """A second goes by, and the worker says something if it can."""
        self.now_s += 1
        if said:
            self.watch.hear(made(WorkerPulse, **said))
        return self.watch.look(self.workers)


@pytest.fixture
def node():
    return Node()


def test_of_a_worker_that_gets_on_nothing_is_told(node):
    told = [node.beat(doing="step", still_s=n % 3, calls=n) for n in range(20)]
    assert told == [[]] * 20


def test_a_worker_that_stands_still_is_told_of_once_and_again_when_it_gets_on(node):
    told = [node.beat(doing="step", still_s=float(n), idle_s=float(n)) for n in range(10)]
    assert [len(one) for one in told] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert told[3][0].still_s == 3
    (again,) = node.beat(doing="step", still_s=0.0)
    assert again.still_s == 0


def test_a_pause_is_told_of_at_once(node):
    (told,) = node.beat(doing="paused", detail="evaluation")
    assert told.detail == "evaluation"


def test_silence_is_told_of_with_what_the_machine_says(node):
    node.beat(doing="step")
    told = [node.beat() for _ in range(6)]
    assert [len(one) for one in told] == [0, 0, 1, 0, 0, 0]
    assert (told[2][0].silent_s, told[2][0].is_stopped) == (3, False)
    node.stopped.add(100)
    (said,) = node.beat()
    assert said.is_stopped
    assert said.doing == "step"


def test_a_worker_that_has_never_spoken_is_silent_too(node):
    told = [one for _ in range(4) for one in node.beat()]
    assert [(one.doing, one.silent_s) for one in told] == [("starting", 3)]


def test_an_agent_that_slept_itself_takes_nobody_for_silent(node):
    node.beat(doing="step")
    node.now_s += 1000
    assert node.beat() == []


def test_another_root_is_told_everything(node):
    for n in range(5):
        node.beat(doing="step", still_s=float(n))
    node.watch.forget_told()
    (told,) = node.beat(doing="step", still_s=5.0)
    assert told.still_s == 5


def test_who_has_finished_is_watched_no_more(node):
    node.workers[0].status = "finished"
    assert [node.beat() for _ in range(6)] == [[]] * 6


def test_the_lock_that_a_worker_holds_is_known_until_it_goes_on(node):
    (told,) = node.beat(doing="starting", still_s=3.0, idle_s=3.0, lock="/cache/op/lock")
    assert told.lock == "/cache/op/lock"
    assert node.watch.held_locks == []
    node.beat(doing="starting", still_s=4.0, lock="/cache/op/lock", compiles=True)
    assert node.watch.held_locks == ["/cache/op/lock"]
    node.beat(doing="starting", still_s=4.0)
    assert node.watch.held_locks == []
