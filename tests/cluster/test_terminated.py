"""A command that is told to end, as batch systems do, leaves neither processes nor files."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from .conftest import processes_of_labs


@pytest.mark.usefixtures("leaves_nothing")
def test_a_terminated_bench_leaves_nothing(tmp_path):
    """It has a lab open, and beside it torchrun with the script that it is held against."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gemini_lab.cli.main", "bench", "overhead"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        give_up_s = time.monotonic() + 100
        while not any(is_under_torchrun(one) for one in processes_of_labs()):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < give_up_s
            time.sleep(0.1)
        assert list(tmp_path.glob("gemini-lab-*"))
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM, process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    assert not list(tmp_path.glob("gemini-lab-*"))


def is_under_torchrun(process) -> bool:
    try:
        return "gemini_lab.training.gpt_job" in process.cmdline()
    except psutil.Error:  # it has ended
        return False
