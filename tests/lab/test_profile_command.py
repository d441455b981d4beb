"""`gemini-lab profile`: an unchanged DeepSpeed script, really run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gemini_lab.cli.main import main
from gemini_lab.errors import ConfigError
from gemini_lab.lab.profile_script import profile_script
from gemini_lab.profiler.profile import Profile

SCRIPT = """
import sys, deepspeed, deepspeed.ops, torch
from torch import nn

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=model, config=config)
for _ in range(2 * int(sys.argv[1])):
    loss = engine(torch.randn(4, 64)).square().mean()
    engine.backward(loss)
    engine.step()
    if len(sys.argv) > 2 and engine.global_rank == 0:
        with open(sys.argv[2], "a") as losses:
            print(loss.item().hex(), file=losses)
if len(sys.argv) > 2:
    from gemini_lab.engine.process_exit import leave

    leave(0)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def test_a_script_is_profiled_unchanged(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two micro-batches make one iteration; the link's rate is named in the result."""
    code = main(["profile", "--iterations=3", "--skip=2", "--link=1GB/s", str(script), "100000"])
    said = capfd.readouterr().out
    assert code == 0
    assert "network" in said
    profile = Profile.from_json(Path("profile.json").read_text(encoding="utf-8"))
    assert 2 <= profile.iterations <= 3  # one that stalled is left out
    assert profile.world_size == 2
    assert "paced" in profile.conditions[0]
    names = [c.name for c in profile.collectives]
    assert names.count("reduce_scatter_tensor") % 2 == 0
    assert {"all_gather_into_tensor", "reduce_scatter_tensor"} <= set(names)
    full_bytes = 4 * (3 * 64 * 64)
    assert sum(c.size_bytes for c in profile.collectives if "gather" in c.name) >= 2 * full_bytes
    assert 0 < profile.update_s < profile.iteration_s


def test_watching_and_pacing_leave_the_losses_bit_identical(script: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    own = [f"--log-dir={script.parent}", "--nproc-per-node=2"]
    plain = [*torchrun, *own, str(script), "8", "plain.txt"]
    subprocess.run(plain, check=True, timeout=240)
    args = ["8", "watched.txt"]
    profile_script(script, args, iterations=5, skip=2, link_bytes_per_s=10e6)
    expected = Path("plain.txt").read_text(encoding="utf-8").split()
    watched = Path("watched.txt").read_text(encoding="utf-8").split()
    assert len(expected) == 16
    assert len(watched) >= 14
    assert watched == expected[: len(watched)]


@pytest.mark.long
def test_a_script_that_ends_too_early_says_how_many_iterations_it_had(
    script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--iterations=20", str(script), "3"]) == 2
    said = capfd.readouterr().err
    assert "ended after 2 whole iterations; 23 that repeat are needed" in said
    assert "Traceback" not in said
    assert "ChildFailedError" not in said
    assert not Path("profile.json").exists()


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no script"):
        profile_script(tmp_path / "nothing.py")


def test_a_script_that_is_no_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(")
    with pytest.raises(ConfigError, match="cannot read the script"):
        profile_script(tmp_path / "train.py")


def test_the_ranks_of_a_killed_profile_end(script: Path, tmp_path: Path) -> None:
    """Cut off from each other, they would wait for half an hour."""
    said = tmp_path / "losses"
    command = ["profile", "--iterations=100000", str(script), "100000"]
    profile = psutil.Popen(
        [sys.executable, "-m", "gemini_lab.cli.main", *command, str(said)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        give_up_s = time.monotonic() + 60
        while not said.exists():
            assert profile.poll() is None
            assert time.monotonic() < give_up_s
            time.sleep(0.1)
        below = profile.children(recursive=True)
        assert len(below) >= 2
    finally:
        profile.kill()
        profile.wait()
    _, alive = psutil.wait_procs(below, timeout=20)
    assert alive == []
