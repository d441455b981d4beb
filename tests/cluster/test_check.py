"""`gemini-lab check` on scripts that come back the same, and on some that do not."""

import os
import signal
import subprocess
import sys
import time
from textwrap import indent

import psutil
import pytest

from gemini_lab import Job, Lab
from gemini_lab.cli.check_command import render
from gemini_lab.cli.exits import Exit
from gemini_lab.lab.check import check_script
from gemini_lab.lab.under_torchrun import UnderTorchrun
from gemini_lab.log.witnessed import PLACES, StateDifference
from gemini_lab.report.compare_runs import FirstDifference

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
import gemini_lab
from gemini_lab.engine import session

habit = sys.argv[1]
dist.init_process_group("gloo")
if habit != "unseeded":
    torch.manual_seed(1)
net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.1), nn.Linear(12, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
torch.manual_seed(10 + dist.get_rank())
loader = DataLoader(torch.randn(16, 6), batch_size=4, shuffle=True)
protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)
if habit == "cannot start again" and protected.step:
    raise ValueError("this script begins at its beginning")
scale = 1.0

def train(batch):
    global scale
    loss = scale * (model(batch) - 1).square().mean()
    if habit == "its own":
        scale *= 0.9
    optimizer.zero_grad()
    loss.backward()
    if habit == "by a lab" and session.current is not None and protected.step == 0:
        net[3].bias.grad.mul_(1 + 2**-20)
    if habit == "logs":
        protected.log(loss=loss.item())
    optimizer.step()

for epoch in protected.epochs(2):
    for batch in loader:
        train(batch)
    if dist.get_rank() == 0:
        with torch.no_grad():
            net(torch.randn(4, 6))
for phase in (10, 12):
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    for _ in protected.steps(phase):
        train(torch.randn(4, 6))
"""

ZERO = """
import sys
import deepspeed, torch
from torch import nn
from torch.utils.data import DataLoader
import gemini_lab

deepspeed.init_distributed(dist_backend="gloo", verbose=False)
torch.manual_seed(1)
engine, *_ = deepspeed.initialize(
    model=nn.Sequential(nn.Linear(6, 11), nn.BatchNorm1d(11), nn.Dropout(0.1), nn.Linear(11, 1)),
    config={
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
        "gradient_clipping": 0.5, "steps_per_print": 1_000_000,
        "zero_optimization": {"stage": int(sys.argv[1])},
    },
)
torch.manual_seed(10 + engine.global_rank)
loader = DataLoader(torch.randn(24, 6), batch_size=4, shuffle=True)
protected = gemini_lab.protect(engine, data=loader)
for epoch in protected.epochs(3):
    for batch in loader:
        loss = (engine(batch) - 1).square().mean()
        engine.backward(loss)
        protected.log(loss=loss.item())
        engine.step()
    with torch.no_grad():
        engine(torch.randn(4, 6))
"""
TRAINER = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from gemini_lab.adapters.transformers import protect_trainer

config = GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2,
                    bos_token_id=0, eos_token_id=0)
texts = [{"input_ids": torch.arange(8) * n % 50, "labels": torch.arange(8)} for n in range(24)]
set_seed(1)
trainer = Trainer(GPT2LMHeadModel(config), TrainingArguments(
    sys.argv[1], use_cpu=True, per_device_train_batch_size=2, gradient_accumulation_steps=2,
    num_train_epochs=3, learning_rate=1e-2, logging_steps=2, eval_strategy="epoch",
    save_strategy="no", report_to=[], disable_tqdm=True,
), train_dataset=texts, eval_dataset=texts[:4])
protect_trainer(trainer)
trainer.train()
"""
LIGHTNING = """
import os, sys, torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader
from gemini_lab.adapters.lightning import protect_lightning

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.2), nn.Linear(12, 1))

    def training_step(self, batch, _):
        return self.net(batch).square().mean()

    def validation_step(self, batch, _):
        self.log("held out", self.net(batch).square().mean() + torch.rand(()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]

torch.manual_seed(1)
model = Net()
torch.manual_seed(2 + int(os.environ["RANK"]))
samples = torch.linspace(-1, 1, 144).view(24, 6)
trainer = Trainer(
    accelerator="cpu", strategy="ddp", num_nodes=2, devices=1, max_epochs=3, logger=False,
    accumulate_grad_batches=2, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False, default_root_dir=sys.argv[1])
protect_lightning(trainer)
trainer.fit(model, DataLoader(samples, batch_size=2, shuffle=True), DataLoader(samples, 8))
"""
LOOPS = {"loop begins", "loop over"}  # a library has one loop, and it is no loop of ours
WHOLE = set(PLACES) - {"between steps"}  # with one optimizer


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two nodes and a standby."""
    with Lab(2, 1, folder=tmp_path_factory.mktemp("lab")) as opened:
        yield opened


@pytest.fixture
def check(two, script):
    def checked(habit: str, text: str = SCRIPT):
        job = Job(script=str(script(text)), args=[habit])
        found = check_script(two, job, iterations=40, kills=12, limit_s=150, tell=print)
        print("\n".join(render(found)))
        return found

    return checked


def test_a_script_that_logs_nothing_is_killed_at_each_of_its_places_and_comes_back(check, two):
    found = check("as it is")
    assert found.verdict == "bit-identical", found
    assert found.iterations == 12
    assert found.missed == ()
    kills = [one.kill for one in found.recovered]
    assert {kill.place for kill in kills} == WHOLE - {"second pass"}
    assert {kill.rank for kill in kills if kill.place == "evaluation"} == {0}
    assert {kill.rank for kill in kills} == {0, 1}
    nodes = [kill for kill in kills if kill.loses_node]
    assert [kill.place for kill in nodes] == ["forward"] * 2
    assert [kill.is_at_root for kill in nodes] == [True, False]
    assert all(one.duration_s is not None for one in found.recovered[:-1])
    assert found.disturbed.states.states == found.plain.states.states == 2 * 14
    assert found.disturbed.states.pieces > 20
    assert found.disturbed.twice.with_values == 0
    assert not [*two.folder.glob("check-*/rank-*.pt")]


def test_state_of_the_scripts_own_is_found_without_any_loss(check):
    found = check("its own")
    assert found.verdict == "differs", found
    first = found.disturbed.first
    assert isinstance(first, StateDifference)
    assert "weight 0.weight" in first.pieces
    assert found.disturbed.values["weight 0.weight"] > 0
    assert found.after is not None
    assert found.after.version < first.version
    assert found.plain.is_same
    assert [hint.split()[0] for hint in found.hints] == ["scale"]


def test_what_a_lab_alone_changes_is_told_before_anything_is_killed(check):
    found = check("by a lab")
    assert found.verdict == "differs without a failure", found
    first = found.plain.states.first
    assert first.version == 1  # the very first update
    assert "optimizer's state of 3.bias.momentum_buffer" in first.pieces
    assert found.recovered == ()


def test_a_script_that_no_two_starts_are_the_same_of_is_told_so(check):
    found = check("unseeded")
    assert found.verdict == "not repeatable", found
    assert found.plain.states.first.version == 0
    assert found.recovered == ()


def test_a_script_that_cannot_start_again_is_told_with_the_kill(check):
    found = check("cannot start again")
    assert found.verdict == "does not come back", found
    assert "this script begins at its beginning" in found.failure
    assert found.after == found.recovered[-1]
    assert found.after.kill.version > 0


def test_a_loss_that_is_logged_is_compared_too(check):
    found = check("logs")
    assert found.verdict == "bit-identical", found
    assert found.disturbed.twice.with_values == found.plain.twice.with_values == 24
    assert not isinstance(found.disturbed.first, FirstDifference)


@pytest.mark.parametrize(
    "stage",
    [pytest.param("1", marks=pytest.mark.long), pytest.param("2", marks=pytest.mark.long), "3"],
)
def test_an_engine_of_zero_is_compared_with_plain_torchrun_and_comes_back(check, stage):
    found = check(stage, ZERO)
    assert found.verdict == "bit-identical", found
    assert found.plain is not None, found.plain_failed
    assert found.missed == ()
    assert {one.kill.place for one in found.recovered} == WHOLE - {"loop begins"}
    # Nine updates: the state before the first one, and those after each, the last at the end.
    assert found.plain.states.states == 2 * (9 + 1)
    assert found.plain.states.pieces >= 25


@pytest.mark.long
@pytest.mark.parametrize("text", [TRAINER, LIGHTNING], ids=["transformers", "Lightning"])
def test_a_library_is_killed_at_each_of_its_places_and_comes_back(check, text, tmp_path):
    found = check(str(tmp_path / "output"), text)
    assert found.verdict == "bit-identical", found
    assert found.plain is not None, found.plain_failed
    assert found.missed == ()
    assert {one.kill.place for one in found.recovered} == WHOLE - LOOPS


WAITS = """
import signal, subprocess, sys, time

for number in (signal.SIGINT, signal.SIGTERM):  # as a rank that waits in a collective
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("waits", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["left", "torchrun is killed"])
def test_nothing_of_torchrun_is_left(tmp_path, how):
    (tmp_path / "wait.py").write_text(WAITS)
    job = Job(script="wait.py", cwd=str(tmp_path))
    with UnderTorchrun(job, nodes=2, workers_per_node=1, folder=tmp_path) as run:
        while run.last_lines.count("waits") < 2:
            assert not run.is_over_within(0.1), run.last_lines
        ours = psutil.Process().children(recursive=True)
        assert sum("wait.py" in one.cmdline()[-1:] for one in ours) >= 4  # torchruns and ranks
        if how == "torchrun is killed":
            for rank in (one for one in ours if one.cmdline()[1:] == ["-u", "wait.py"]):
                rank.parent().kill()
            while not run.is_over_within(0.1):
                pass
            assert run.has_failed
            _, alive = psutil.wait_procs(ours, timeout=20)
            assert alive == []
    _, alive = psutil.wait_procs(ours, timeout=20)
    assert alive == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_torchrun_is_left_by_a_check_that_is_interrupted(tmp_path, number):
    """Ctrl-C reaches all processes of the terminal's foreground, but no session of their own."""
    waits = f"if session.current is None:\n{indent(WAITS, '    ')}\nhabit ="
    (tmp_path / "train.py").write_text(SCRIPT.replace("habit =", waits, 1))
    words = ["check", "--folder", "runs", "train.py", "as it is"]
    with psutil.Popen(
        [sys.executable, "-m", "gemini_lab.cli.main", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as check:
        try:
            for line in check.stderr:
                if "under plain torchrun" in line:
                    break
            said = ""
            while said.count("waits") < 2:
                assert check.poll() is None, said
                time.sleep(0.1)
                said = "".join(one.read_text() for one in tmp_path.rglob("printed.txt"))
            below = check.children(recursive=True)
            assert sum("train.py" in one.cmdline()[:-1] for one in below) >= 4
        finally:
            os.killpg(check.pid, number)
        check.communicate(timeout=60)
    assert check.returncode in {Exit.INTERRUPTED, Exit.TERMINATED, -signal.SIGKILL}
    _, alive = psutil.wait_procs(below, timeout=30)
    assert alive == []
