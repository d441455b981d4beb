"""Folders in memory go with their bench, however that ends."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gemini_lab.node.processes import kill_all
from gemini_lab_bench.in_memory import folder_in_memory

PATIENCE_S = 60.0
BENCH = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from gemini_lab_bench.in_memory import folder_in_memory
with folder_in_memory("gemini-lab-test-") as folder:
    (folder / "data").mkdir()
    (folder.parent / f"{folder.name}-shared").touch()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    rank = subprocess.Popen(command, cwd=folder / "data", start_new_session=True)
    print(folder, rank.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_bench_that_is_killed_leaves_neither_its_folder_nor_its_ranks(number):
    command = [sys.executable, "-c", BENCH]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as bench:
        name, pid = bench.stdout.readline().split()
        folder, rank = Path(name), psutil.Process(int(pid))
        assert (folder / "data").is_dir()
        bench.send_signal(number)
    give_up_s = time.monotonic() + PATIENCE_S
    while list(folder.parent.glob(f"{folder.name}*")) and time.monotonic() < give_up_s:
        time.sleep(0.05)
    assert not list(folder.parent.glob(f"{folder.name}*"))
    rank.wait(PATIENCE_S)


def test_a_folder_is_gone_after_its_block():
    with folder_in_memory("gemini-lab-test-") as folder:
        (folder / "file").touch()
    assert not folder.exists()


def test_a_process_that_its_parent_does_not_reap_counts_as_ended():
    """Ctrl-C on a bench would wait for it otherwise, and the bench for who waits."""
    code = "import subprocess as s, sys; print(s.Popen(['sleep', '600']).pid); sys.stdin.read()"
    command = [sys.executable, "-uc", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        kill_all([child], within_s=math.inf)
        assert child.status() == psutil.STATUS_ZOMBIE
