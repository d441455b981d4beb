"""Who gives way to training's threads, and that training's own do not."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from gemini_lab.priority import give_way, giving_way, take_turns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has SCHED_BATCH")


def policy_of_a_process() -> int:
    """Of one that this thread starts."""
    code = "import os; print(os.sched_getscheduler(0))"
    return int(subprocess.check_output([sys.executable, "-c", code]))


def in_a_thread(act: Callable[[], list[int]]) -> list[int]:
    """What `act` says on a thread of its own: a thread's policy is not to outlive a test."""
    said: list[int] = []
    thread = threading.Thread(target=lambda: said.extend(act()))
    thread.start()
    thread.join()
    return said


def test_who_gives_way_starts_what_gives_way_and_may_take_turns_again() -> None:
    def act() -> list[int]:
        give_way()
        told = [os.sched_getscheduler(0), policy_of_a_process()]
        take_turns()
        return [*told, os.sched_getscheduler(0)]

    assert in_a_thread(act) == [os.SCHED_BATCH, os.SCHED_BATCH, os.SCHED_OTHER]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_threads_made_meanwhile_give_way_for_good() -> None:
    def act() -> list[int]:
        with giving_way():
            inner = in_a_thread(lambda: [os.sched_getscheduler(0)])
        return [*inner, os.sched_getscheduler(0)]

    assert in_a_thread(act) == [os.SCHED_BATCH, os.SCHED_OTHER]


def test_a_policy_that_somebody_chose_stays() -> None:
    def act() -> list[int]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        give_way()
        take_turns()
        return [os.sched_getscheduler(0)]

    assert in_a_thread(act) == [os.SCHED_IDLE]
