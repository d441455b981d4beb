"""Claims about locks of compilations: only what nobody holds is called left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemini_lab.node.build_locks import build_root, left_locks

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


def test_the_lock_of_a_killed_compilation_is_left_and_that_of_a_live_one_is_not(lock, tmp_path):
    began_s = time.time() - 1
    builder = subprocess.Popen(
        [sys.executable, "-c", COMPILES, str(lock)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert builder.stdout.readline() == "compiles\n"
        assert left_locks(tmp_path, since_s=began_s).ours == ()
    finally:
        builder.send_signal(signal.SIGKILL)
        builder.wait()
    assert left_locks(tmp_path, since_s=began_s).ours == (lock,)


def test_a_lock_from_before_may_be_another_machines(lock, tmp_path):
    lock.touch()
    os.utime(lock, (1000.0, 1000.0))
    left = left_locks(tmp_path, since_s=2000.0)
    assert (left.ours, left.older) == ((), (lock,))


def test_without_a_folder_nothing_is_left(tmp_path):
    left = left_locks(tmp_path / "nowhere", since_s=0.0)
    assert (left.ours, left.older) == ((), ())


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"TORCH_EXTENSIONS_DIR": "/fast/extensions"}, "/fast/extensions"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/torch_extensions"),
    ],
)
def test_the_folder_is_the_one_that_pytorch_takes(environment, root):
    assert build_root(environment) == Path(root)
