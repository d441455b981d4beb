"""Before a start, locks of compilations go that no process holds, and no others."""

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from gemini_lab.node.build_locks import (
    BuildLocks,
    build_root,
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


class Node:
    """A node's look after locks, and what it said."""

    def __init__(self, root, *, is_hidden=False):
        self.said = []
        self.locks = BuildLocks(
            root, node="node-1", say=self.said.append, may_be_hidden=lambda _: is_hidden
        )

    def holds(self, lock):
        self.locks.note([str(lock)])


def test_the_lock_of_a_killed_compilation_goes_and_that_of_a_live_one_does_not(
    lock, tmp_path, builder
):
    node = Node(tmp_path)
    node.locks.clear()
    assert lock.exists()
    kill(builder)
    node.locks.clear()
    assert not lock.exists()
    (said,) = node.said
    assert said == f"removed {lock}: a process that compiled there was killed before it was done"


def test_what_a_worker_of_this_node_held_when_it_was_killed_goes_before_the_next_start(
    lock, tmp_path
):
    """Whoever else could hold one: this one was seen with it."""
    lock.touch()
    node = Node(tmp_path, is_hidden=True)
    node.locks.clear()
    assert lock.exists()
    node.holds(lock)
    node.locks.clear()
    assert not lock.exists()
    assert node.said == [f"removed {lock}: a worker was killed before it was done"]


@pytest.mark.usefixtures("builder")
def test_what_is_held_by_another_job_stays(lock, tmp_path):
    node = Node(tmp_path)
    node.holds(lock)
    node.locks.clear()
    assert lock.exists()
    assert node.said == []


def test_before_a_start_what_an_earlier_run_left_goes_unless_somebody_may_hold_it(lock, tmp_path):
    lock.touch()
    Node(tmp_path, is_hidden=True).locks.clear()
    assert lock.exists()
    node = Node(tmp_path)
    node.locks.clear()
    assert not lock.exists()
    assert node.said == [
        f"removed {lock}: a process that compiled there was killed before it was done"
    ]


def test_a_folder_that_cannot_be_read_keeps_nobody_from_starting_and_is_said_once(lock, tmp_path):
    """An inventory waits for this: without an answer its node counted as silent after minutes."""

    def stale(_: Path) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")

    said: list[str] = []
    locks = BuildLocks(tmp_path, node="node-1", say=said.append, may_be_hidden=stale)
    lock.touch()
    for _ in range(2):
        locks.clear()
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
