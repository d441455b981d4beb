"""A job as people have them is told to end soon; the same command with --resume goes on."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gemini_lab.cli.exits import Exit
from gemini_lab.log.events import Protected, RunFailed
from gemini_lab.log.file import LOG_FILE, read_log
from gemini_lab.report import load_report

TRAIN = """
    import argparse, os, time
    import torch
    from .parts import Waves

    if __name__ == "__main__":
        import deepspeed, gemini_lab
        from torch import nn

        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, required=True)
        parser.add_argument("--steps", type=int)
        args = parser.parse_args()
        assert args.local_rank == int(os.environ["LOCAL_RANK"])
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config="ds_config.json"
        )
        loader = torch.utils.data.DataLoader(
            Waves(), batch_size=4, num_workers=1, multiprocessing_context="spawn",
        )
        protected = gemini_lab.protect(engine, data=loader)
        for epoch in protected.epochs(1):
            for batch in loader:
                loss = engine(batch).square().mean()
                engine.backward(loss)
                protected.log(loss=loss.item())
                engine.step()
                time.sleep(0.1)
                if engine.global_steps >= args.steps:
                    break
        os._exit(0)
"""
PARTS = """
    import torch

    class Waves(torch.utils.data.Dataset):
        def __len__(self):
            return 4000

        def __getitem__(self, index):
            return torch.sin(torch.arange(6.0) * index)
"""
STEPS = 50


def has_trained(log: Path) -> bool:
    """Whether some iterations are done."""
    return log.exists() and '"iteration":5,' in log.read_text()


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, command: list[str], cwd: Path) -> None:
        self._ours, self._theirs = os.openpty()  # which is there before the command opens it
        os.set_blocking(self._ours, False)
        ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
        self.process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(self._theirs), *command],
            cwd=cwd,
            start_new_session=True,  # whose terminal is the first that it opens
        )
        signal.signal(signal.SIGHUP, ours)

    def read(self) -> bytes:
        """What it has said since; it waits where nobody reads."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._ours, 1 << 16)
        return b""

    def close(self) -> None:
        os.close(self._ours)
        os.close(self._theirs)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP"])
@pytest.mark.usefixtures("leaves_nothing")
def test_a_run_that_was_told_to_end_goes_on_from_the_version_that_it_saved(tmp_path, how):
    """The tier stands in the script's own configuration alone, as in the README."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "train.py").write_text(textwrap.dedent(TRAIN))
    (package / "parts.py").write_text(textwrap.dedent(PARTS))
    tier = tmp_path / "tier"
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gemini": {"persistent_url": str(tier)},
    }
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    size = ["--nodes", "2", "--standbys", "0", "--notice", "60", "--name", "one"]
    command = [sys.executable, "-m", "gemini_lab.cli.main", "run", *size]
    job = ["-m", "pkg.train", "--steps", str(STEPS)]
    folder = tmp_path / "gemini-runs" / "one"

    terminal = Terminal([*command, *job], tmp_path)
    first, shown = terminal.process, b""
    give_up_s = time.monotonic() + 120
    while not has_trained(folder / LOG_FILE):
        shown += terminal.read()
        assert first.poll() is None, shown
        assert time.monotonic() < give_up_s
        time.sleep(0.1)
    if how == "SIGHUP":
        terminal.close()
    else:
        first.send_signal(signal.SIGTERM)
    assert first.wait(90) == Exit.AGAIN, shown
    ended = [one.event for one in read_log(folder / LOG_FILE)]
    (end,) = (one for one in ended if isinstance(one, RunFailed))
    assert end.cause == "notice"
    saved = re.fullmatch(rf"{how}: version (\d+) is whole in {re.escape(str(tier))}", end.reason)
    assert saved, end.reason
    if how == "SIGTERM":
        assert end.reason in terminal.read().decode()
        terminal.close()
    else:
        return  # what it saved is the same

    second = subprocess.run(
        [*command, "--resume", *job],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert second.returncode == Exit.FINISHED, second.stderr
    again = folder.with_name("one-2")
    told = [one.event for one in read_log(again / LOG_FILE)]
    tiers = {one.settings.persistent_url for one in told if isinstance(one, Protected)}
    assert tiers == {str(tier)}
    before, after = load_report(folder).losses, load_report(again).losses
    assert max(iteration for iteration, _ in after) == STEPS
    assert min(iteration for iteration, _ in after) == int(saved[1]) > 1
    both = before.keys() & after.keys()
    assert both
    assert {key: before[key] for key in both} == {key: after[key] for key in both}
    assert load_report(again).recoveries == ()
