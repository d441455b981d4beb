"""What a name of a process tells on its machine."""

import os
import subprocess
import sys

import pytest

from gemini_lab.node.this_machine import has_ended, process_identity


def test_a_process_has_ended_once_it_was_killed_also_before_anybody_has_waited_for_it():
    text = (
        "import gemini_lab.node.this_machine as m; print(m.process_identity(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        identity = process.stdout.readline().strip()
        assert not has_ended(identity)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(identity)
    assert has_ended(identity)


def test_a_number_that_another_process_has_now_is_none_of_the_one_that_has_ended():
    place, started = process_identity().rsplit(" ", 1)
    assert has_ended(f"{place} {int(started) - 1}")


@pytest.mark.parametrize("identity", ["", "elsewhere 1 2", "no number", "x" * 300])
def test_of_a_process_that_is_not_seen_from_here_nothing_is_known(identity):
    assert not has_ended(identity)
