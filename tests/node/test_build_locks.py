"""Claims about locks of compilations: only what nobody holds is called left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemini_lab.node.build_locks import LOOK_S, BuildLocks, Left, build_root, left_locks

COMPILES = """
import sys, time
from torch.utils.file_baton import FileBaton
assert FileBaton(sys.argv[1]).try_acquire()
print("compiles", flush=True)
time.sleep(600)
"""


@pytest.fixture
def lock(tmp_path) -> Path:
    folder = tmp_path / "py311_cpu" / "cpu_adam"
    folder.mkdir(parents=True)
    return folder / "lock"


@pytest.fixture
def builder(lock):
    """Another process, which compiles there until it is killed."""
    command = [sys.executable, "-c", COMPILES, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "compiles\n"
        yield process
        process.kill()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def left(lock, *, since_s, is_hidden=False):
    return left_locks([lock], since_s=since_s, can_be_out_of_sight=lambda _: is_hidden)


def test_the_lock_of_a_killed_compilation_is_left_and_that_of_a_live_one_is_not(lock, builder):
    assert left(lock, since_s=0.0).ours == ()
    kill(builder)
    assert left(lock, since_s=0.0).ours == (lock,)


def test_a_lock_from_before_is_abandoned_unless_its_holder_may_be_out_of_sight(lock):
    lock.touch()
    os.utime(lock, (1000.0, 1000.0))
    assert left(lock, since_s=2000.0) == Left(abandoned=(lock,))
    assert left(lock, since_s=2000.0, is_hidden=True) == Left(unsure=(lock,))


def test_a_lock_that_is_gone_is_none(lock):
    assert left(lock, since_s=0.0) == Left()


class Looking:
    """A node's look after locks, with a clock of its own."""

    def __init__(self, root, *, is_hidden=False):
        self.now_s, self.said = 0.0, []
        self.locks = BuildLocks(
            root,
            node="node-1",
            say=self.said.append,
            since_s=time.time() + 100,
            can_be_out_of_sight=lambda _: is_hidden,
            clock=lambda: self.now_s,
        )

    def look(self, lock, *ranks):
        """A while after the last one."""
        self.now_s += LOOK_S
        self.locks.look({rank: str(lock) for rank in ranks})


def test_a_lock_that_workers_wait_for_goes_once_its_compiler_is_gone(lock, tmp_path, builder):
    looking = Looking(tmp_path)
    for _ in range(3):
        looking.look(lock, 0, 2)
    assert lock.exists()
    assert looking.said == []
    kill(builder)
    looking.look(lock, 0, 2)
    assert lock.exists(), "it may be being released just now"
    looking.look(lock, 0, 2)
    assert not lock.exists()
    assert looking.said == [
        f"removed {lock}: ranks 0, 2 wait for it, and whoever compiled there is gone"
    ]


def test_a_lock_whose_holder_may_be_out_of_sight_is_named_once_and_left(lock, tmp_path):
    lock.touch()
    looking = Looking(tmp_path, is_hidden=True)
    for _ in range(4):
        looking.look(lock, 1)
    assert lock.exists()
    (said,) = looking.said
    assert "no process of node-1 holds it: rank 1 waits until it is gone; if nobody" in said


def test_nothing_is_looked_at_while_nobody_waits_or_right_after_the_last_look(lock, tmp_path):
    lock.touch()
    looking = Looking(tmp_path)
    for _ in range(4):
        looking.look(lock)
    for _ in range(4):
        looking.locks.look({0: str(lock)})
    assert lock.exists()


def test_before_a_start_what_an_earlier_run_left_goes_at_once(lock, tmp_path):
    lock.touch()
    looking = Looking(tmp_path)
    looking.locks.clear()
    assert not lock.exists()
    assert looking.said == [
        f"removed {lock}: whoever compiled there was killed before this lab started"
    ]


def test_without_a_folder_nothing_is_left(tmp_path):
    looking = Looking(tmp_path / "nowhere")
    looking.locks.clear()
    assert looking.said == []


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"TORCH_EXTENSIONS_DIR": "/fast/extensions"}, "/fast/extensions"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/torch_extensions"),
    ],
)
def test_the_folder_is_the_one_that_pytorch_takes(environment, root):
    assert build_root(environment) == Path(root)
