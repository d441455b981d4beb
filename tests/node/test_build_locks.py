"""Claims about locks of compilations: only what nobody holds is called left."""

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from gemini_lab.node.build_locks import (
    LOOK_S,
    BuildLocks,
    Left,
    build_root,
    left_locks,
    outlive_their_process,
)

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


def left(lock, *, is_hidden=False):
    return left_locks([lock], can_be_out_of_sight=lambda _: is_hidden)


def test_the_lock_of_a_killed_compilation_is_left_and_that_of_a_live_one_is_not(lock, builder):
    assert left(lock) == Left()
    kill(builder)
    assert left(lock) == Left(abandoned=(lock,))


def test_of_a_lock_whose_holder_may_be_out_of_sight_that_is_said(lock):
    lock.touch()
    assert left(lock, is_hidden=True) == Left(unsure=(lock,))


def test_a_lock_that_is_gone_is_none(lock):
    assert left(lock) == Left()


class Looking:
    """A node's look after locks, with a clock of its own."""

    def __init__(self, root, *, is_hidden=False):
        self.now_s, self.said = 0.0, []
        self.locks = BuildLocks(
            root,
            node="node-1",
            say=self.said.append,
            can_be_out_of_sight=lambda _: is_hidden,
            clock=lambda: self.now_s,
        )

    def look(self, lock, *ranks, held=()):
        """A while after the last one."""
        self.now_s += LOOK_S
        waited_for = {rank: str(lock) for rank in ranks}
        self.locks.look(held={rank: str(lock) for rank in held}, waited_for=waited_for)


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
    (said,) = looking.said
    assert said.startswith(f"removed {lock}: ranks 0, 2 wait for it, and whoever compiled there is")


def test_a_lock_whose_holder_may_be_out_of_sight_is_named_once_and_left(lock, tmp_path):
    lock.touch()
    looking = Looking(tmp_path, is_hidden=True)
    for _ in range(4):
        looking.look(lock, 1)
    assert lock.exists()
    (said,) = looking.said
    assert said.startswith(f"rank 1 waits for {lock}, and no process of node-1 holds it; if nobody")


def test_nothing_is_looked_at_while_nobody_waits_or_right_after_the_last_look(lock, tmp_path):
    lock.touch()
    looking = Looking(tmp_path)
    for _ in range(4):
        looking.look(lock)
    for _ in range(4):
        looking.locks.look(held={}, waited_for={0: str(lock)})
    assert lock.exists()


def test_what_a_worker_of_this_node_held_when_it_was_killed_goes_before_the_next_start(
    lock, tmp_path
):
    """Whoever else could hold one: this one was seen with it."""
    lock.touch()
    looking = Looking(tmp_path, is_hidden=True)
    looking.locks.clear()
    assert lock.exists()
    looking.look(lock, held=[3])
    looking.locks.clear()
    assert not lock.exists()
    assert looking.said == [f"removed {lock}: a worker was killed before it was done"]


@pytest.mark.usefixtures("builder")
def test_what_is_held_by_another_job_stays(lock, tmp_path):
    looking = Looking(tmp_path)
    looking.look(lock, held=[3])
    looking.locks.clear()
    assert lock.exists()
    assert looking.said == []


def test_before_a_start_what_an_earlier_run_left_goes_unless_somebody_may_hold_it(lock, tmp_path):
    lock.touch()
    Looking(tmp_path, is_hidden=True).locks.clear()
    assert lock.exists()
    looking = Looking(tmp_path)
    looking.locks.clear()
    assert not lock.exists()
    assert looking.said == [f"removed {lock}: whoever compiled there was killed before it was done"]


def test_a_folder_that_cannot_be_read_keeps_nobody_from_starting_and_is_said_once(lock, tmp_path):
    """An inventory waits for this: without an answer its node counted as silent after minutes."""

    def stale(_: Path) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")

    said: list[str] = []
    locks = BuildLocks(tmp_path, node="node-1", say=said.append, can_be_out_of_sight=stale)
    lock.touch()
    for _ in range(2):
        locks.clear()
        locks.look(held={}, waited_for={0: str(lock)})
    assert said == ["node-1 cannot look after locks of compilations: [Errno 116] Stale file handle"]


@pytest.mark.parametrize(
    ("source", "outlive"),
    [("    baton = FileBaton(path)", True), ("    with FileLock(path):", False), (None, False)],
    ids=["before PyTorch 2.14", "since", "none"],
)
def test_where_the_kernel_lets_locks_go_nobody_looks_after_them(tmp_path, source, outlive):
    if source is not None:
        (tmp_path / "utils").mkdir()
        (tmp_path / "utils" / "cpp_extension.py").write_text(source)
    assert outlive_their_process(tmp_path) is outlive


def test_a_node_looks_after_them_where_its_pytorch_leaves_some():
    is_left = "baton" in cpp_extension._jit_compile.__code__.co_varnames
    assert (BuildLocks.here("node-1", say=print) is not None) is is_left


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"TORCH_EXTENSIONS_DIR": "/fast/extensions"}, "/fast/extensions"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/torch_extensions"),
    ],
)
def test_the_folder_is_the_one_that_pytorch_takes(environment, root):
    assert build_root(environment) == Path(root)
