"""Claims about the training script, run as a user runs it."""

import os
import subprocess
import sys

import pytest

from gemini_lab.training.gpt_job import deepspeed_config, parse

ARGUMENTS = ["--size", "tiny", "--iterations", "3", "--batch", "2", "--block", "32"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_text("All work and no play makes a dull corpus. " * 200)
    return folder


def _train(text, logs):
    """The printed iterations of two ranks under plain torchrun, and what they complained of."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--log-dir", str(logs), "--nproc_per_node", "2"]
    command += ["-m", "gemini_lab.training.gpt_job", *ARGUMENTS, "--corpus", str(text)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if line.startswith("iteration")], done.stderr


@pytest.mark.long
def test_two_runs_under_plain_torchrun_give_bit_identical_losses_and_say_they_are_unprotected(
    text, tmp_path
):
    first, complaint = _train(text, tmp_path)
    second, _ = _train(text, tmp_path)

    assert [line.split()[:2] for line in first] == [["iteration", str(i)] for i in (1, 2, 3)]
    assert first == second
    assert "not protected" in complaint


def test_a_cpu_trains_in_fp32_and_a_gpu_in_bf16():
    options = parse([*ARGUMENTS, "--gemini", '{"replicas": 3}'])

    assert not deepspeed_config(options, on_gpu=False)["bf16"]["enabled"]
    assert deepspeed_config(options, on_gpu=True)["bf16"]["enabled"]
    assert deepspeed_config(options, on_gpu=True)["gemini"] == {"replicas": 3}
