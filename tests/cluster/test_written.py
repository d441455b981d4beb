"""README's and the guide's examples as they stand there: a worker and a node die, no bit differs.

What an example leaves open (a model, data, the body of a loop) is put around it. All blocks of
Python on these pages are here, or it is said where else they are run.
"""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from gemini_lab import Job
from gemini_lab.injector.failures import NodeLoss, WorkerCrash
from gemini_lab.injector.scenario import Scenario

from .conftest import shell
from .written import block, blocks, completed

ITERATIONS = 14
ELSEWHERE = {
    ("README.md", "gemini_lab", 0): "as under In your own script, with fewer arguments",
    ("docs/index.md", "gemini_lab", 0): "the same",
    ("docs/how-to/parallel.md", "Protect tensor, pipeline and sharded jobs", 0): (
        "tests/cluster/test_parallel.py, by docs/examples/train_pipeline.py"
    ),
    ("docs/how-to/notebook.md", "Use a notebook", 0): "the same as README's",
    ("docs/how-to/providers.md", "A provider of your own", 0): "needs Kubernetes; it is compiled",
    ("docs/how-to/resize.md", "The position in the data", 0): "tests/engine/test_resize.py",
    ("docs/how-to/parallel.md", "A pipeline of DeepSpeed's", 0): (
        "tests/cluster/test_parallel.py, by docs/examples/train_deepspeed_pipeline.py"
    ),
    ("docs/how-to/parallel.md", "What CPUs lack", 0): "fails as told; it is compiled",
    ("docs/how-to/debug-attack.md", "Call your function with just that case", 0): (
        "the names are a reader's; it is compiled"
    ),
    ("docs/reference/libraries.md", "TorchTitan", 0): (
        "tests/cluster/test_adapters.py, by docs/examples/train_torchtitan.py"
    ),
    ("docs/reference/protect.md", "Several loops, and code around them", 0): (
        "tests/engine/test_loops.py, tests/cluster/test_second_starts.py"
    ),
    ("docs/how-to/wrong-sums.md", "Try it", 0): "tests/cluster/test_wrong_sums.py",
}

BEGIN = f"""
import os, random, sys, torch
from torch import nn

os.chdir(sys.argv[1])  # where ds_config.json is, and where libraries write
steps, rank = {ITERATIONS}, int(os.environ["RANK"])
samples = torch.linspace(-1, 1, 240).view(40, 6)
loader = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True)

def build_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.2), nn.ReLU(), nn.Linear(12, 1))

def endless():
    while True:
        yield from loader

batches = endless()
model = build_model()
torch.manual_seed(2 + rank)
random.seed(2 + rank)
"""
DEEPSPEED = """
import deepspeed, gemini_lab

engine, *_ = deepspeed.initialize(model=model, config="ds_config.json")
"""
STEP = """
loss = engine({batch}).square().mean()
engine.backward(loss)
protected.log(loss=loss.item())
engine.step()
"""
TORCH = """
import gemini_lab
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group()
model = {wrap}(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
"""
TORCH_STEP = """
loss = model(next(batches)).square().mean()
loss.backward()
protected.log(loss=loss.item())
optimizer.step()
optimizer.zero_grad()
scheduler.step()
"""
TRAINER = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 28

    def __getitem__(self, index):
        ids = (torch.arange(12) * (index + 1) + torch.randint(0, 3, (12,))) % 50
        return {"input_ids": ids, "labels": ids}

data = Texts()
model = GPT2LMHeadModel(GPT2Config(
    vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
"""
OPTIONS = (
    f"sys.argv[1], use_cpu=True, max_steps={ITERATIONS}, per_device_train_batch_size=2, seed=7, "
    'report_to=[], disable_tqdm=True, save_strategy="no"'
)
SHARDED = """
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

# Accelerate leaves FSDP out on CPUs; here its own state says that it is meant.
state = trainer.accelerator.state
state.distributed_type = DistributedType.FSDP
state.fsdp_plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, reshard_after_forward=True, auto_wrap_policy="TRANSFORMER_BASED_WRAP",
    state_dict_type="SHARDED_STATE_DICT")
trainer.is_fsdp_enabled = True
"""
ACCELERATE = """
from types import SimpleNamespace
from accelerate import Accelerator

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = build_model()

    def forward(self, batch):
        return SimpleNamespace(loss=self.net(batch).square().mean())

torch.manual_seed(1)
model = Net()
torch.manual_seed(2 + rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
loader = torch.utils.data.DataLoader(samples.repeat(2, 1), batch_size=4, shuffle=True)
accelerator = Accelerator(cpu=True)
"""
LIGHTNING = """
from lightning.pytorch import LightningModule, Trainer

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = build_model()

    def training_step(self, batch, _):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

model = Net()
torch.manual_seed(2 + rank)
loader = torch.utils.data.DataLoader(samples.repeat(4, 1), batch_size=4, shuffle=True)
"""
WITH_LOSS = """
class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = build_model()

    def forward(self, batch):
        return self.net(batch).square().mean()

model = WithLoss()
torch.manual_seed(2 + rank)
"""
TWO_PASSES = """
import gemini_lab
from torch.nn.parallel import DistributedDataParallel
"""
README, SCRIPT, LOOP = "README.md", "docs/tutorials/your-script.md", "docs/reference/protect.md"
LIBRARIES, NAN = "docs/tutorials/trainer.md", "docs/how-to/nan.md"


def step(batch: str = "next(batches)") -> str:
    """The body of a loop with DeepSpeed."""
    return STEP.strip().format(batch=batch)


def two_lines(wrap: str) -> str:
    """README's two lines of plain PyTorch, of a model that is wrapped so."""
    written = completed(block(README, "In your own script", 1), body=TORCH_STEP.strip())
    return TORCH.format(wrap=wrap) + written


def trainer(deepspeed: str = 'deepspeed="ds_config.json"', sharding: str = "") -> str:
    """The guide's Trainer, with the options that it leaves out."""
    text = block(LIBRARIES, "transformers' Trainer")
    is_sharded = 'assert type(trainer.model_wrapped).__name__.startswith("FSDP")'
    for written, meant in {
        '..., deepspeed="ds_config.json"': ", ".join(filter(None, (OPTIONS, deepspeed))),
        "protect_trainer(trainer)": f"{sharding}\nprotect_trainer(trainer)",
    }.items():
        assert written in text
        text = text.replace(written, meant)
    return TRAINER + text + (f"{is_sharded}\n" if sharding else "")


def fetched_ahead() -> str:
    """The guide's loop that fetches ahead, which logs its loss here."""
    begin = """
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = build_model()

        def forward(self, x, y):
            return (self.net(x) - y).square().mean()

    def get_batch(_):
        return torch.randn(4, 6), torch.randn(4, 1)

    model = Pair()
    torch.manual_seed(2 + rank)
    """
    text = block(LOOP, "The loop")
    assert "    engine.backward(loss)\n" in text
    logged = text.replace(
        "    engine.backward(loss)\n",
        "    engine.backward(loss)\n    protected.log(loss=loss.item())\n",
    )
    return textwrap.dedent(begin) + DEEPSPEED + logged


def epochs() -> str:
    """The guide's two loops, of fewer epochs, with an evaluation that draws random numbers."""
    begin = """
    protected = gemini_lab.protect(engine, data=loader)

    def evaluate():
        with torch.no_grad():
            engine(torch.randn(4, 6))
    """
    text = block(LOOP, "The loop", 1)
    assert "protected.epochs(30)" in text
    text = text.replace("epochs(30)", "epochs(2)")
    return DEEPSPEED + textwrap.dedent(begin) + completed(text, body=step("batch"))


def rewound() -> str:
    """The guide's loop that goes back by its own lights, with a batch that gives it reason to."""
    begin = """
    if rank == 1:
        samples[17] = 1000.0
    protected = gemini_lab.protect(engine, data=loader)

    def all_ranks_agree(is_so):
        some = torch.tensor(float(is_so))
        torch.distributed.all_reduce(some, torch.distributed.ReduceOp.MAX)
        return bool(some)
    """
    text = block(NAN, "Rewind from the script")
    return DEEPSPEED + textwrap.dedent(begin) + completed(text, body=step())


EXAMPLES = {
    "README's two lines of DeepSpeed": lambda: completed(
        block(README, "In your own script"), body=step()
    ),
    "README's two lines of PyTorch, DDP": lambda: two_lines("DistributedDataParallel"),
    "README's two lines of PyTorch, FSDP2": lambda: two_lines("fully_shard"),
    "the guide's script": lambda: WITH_LOSS + block(SCRIPT, "With DeepSpeed"),
    "two passes a step": lambda: TWO_PASSES + block(LOOP, "Two passes a step"),
    "a batch that is fetched ahead": fetched_ahead,
    "two nested loops": epochs,
    "going back": rewound,
    "the Trainer": trainer,
    "the Trainer with DDP": lambda: trainer(deepspeed=""),
    "the Trainer with FSDP2": lambda: trainer(deepspeed="", sharding=SHARDED),
    "Accelerate": lambda: ACCELERATE + block(LIBRARIES, "Accelerate"),
    "Lightning": lambda: LIGHTNING + block(LIBRARIES, "Lightning"),
}
LIBRARY = {"Trainer": "transformers", "Accelerate": "accelerate", "Lightning": "lightning"}
DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "zero_force_ds_cpu_optimizer": False,
    "gemini": {"replicas": 2},
}
OF_THE_TRAINER = {
    "train_micro_batch_size_per_gpu": "auto",
    "zero_optimization": {"stage": 2},
    "zero_force_ds_cpu_optimizer": False,
}


def example_job(folder: Path, name: str) -> Job:
    """The script of an example, to run in a folder of its own."""
    folder.mkdir(parents=True)
    config = OF_THE_TRAINER if "Trainer" in name else DS_CONFIG
    if name == "going back":
        config = {**DS_CONFIG, "gemini": {"replicas": 2, "keep_in_memory": 1}}
    (folder / "ds_config.json").write_text(json.dumps(config))
    path = folder / "train.py"
    path.write_text(BEGIN + EXAMPLES[name]())
    return Job(script=str(path), args=[str(folder)])


def test_every_block_of_python_is_run_somewhere_and_all_are_python():
    """A block that is added to a page has to be added here."""
    run_here = {
        (README, "In your own script"): 2,
        (README, "From a notebook"): 1,
        (LIBRARIES, "transformers' Trainer"): 1,
        (LIBRARIES, "Accelerate"): 1,
        (LIBRARIES, "Lightning"): 1,
        (SCRIPT, "With DeepSpeed"): 1,
        (LOOP, "The loop"): 2,
        (NAN, "Rewind from the script"): 1,
        (LOOP, "Two passes a step"): 1,
        ("docs/how-to/detach.md", "Detach a run from its launcher"): 1,
        ("docs/how-to/notebook.md", "Stage by stage"): 2,
    }
    counted = dict(run_here)
    for page, after, _ in ELSEWHERE:
        counted[page, after] = counted.get((page, after), 0) + 1
    found: dict[tuple[str, str], int] = {}
    for one in blocks():
        compile(one.text, one.page, "exec")
        found[one.page, one.after] = found.get((one.page, one.after), 0) + 1
    assert found == counted
    assert block(README, "From a notebook") == block("docs/how-to/notebook.md", "Use a notebook")


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_loses_a_worker_and_a_node_and_no_bit(lab, tmp_path, name):
    for word, library in LIBRARY.items():
        if word in name:
            pytest.importorskip(library)
    quiet_job = example_job(tmp_path / "quiet", name)
    quiet = lab.train(quiet_job, persistent_url=None).wait(200).report()
    failures = Scenario().add(WorkerCrash("rank-1"), iteration=4)
    failures = failures.add(NodeLoss("rank-2"), iteration=9)
    job = example_job(tmp_path / "broken", name)
    report = lab.train(job, scenario=failures, persistent_url=None).wait(200).report()
    assert len(report.recoveries) >= 2  # a busy machine may lose one more
    assert len(quiet.losses) >= ITERATIONS * 4
    assert report.losses_match(quiet)


@pytest.mark.long
def test_the_notebooks_lines_break_a_lab_and_its_log_is_simulated(tmp_path, monkeypatch):
    """The job is a smaller one, and the log is the one that was just written."""
    monkeypatch.chdir(tmp_path)
    text = block(README, "From a notebook")
    assert '["--iterations", "24"]' in text
    names: dict[str, Any] = {}
    text = text.replace('"24"]', '"24", "--size", "tiny"]')
    exec(compile(text, README, "exec"), names)
    report = names["run"].report()
    assert len(report.recoveries) >= 2
    assert len(report.losses) == 24 * 4
    stage, simulated = (block("docs/how-to/notebook.md", "Stage by stage", n) for n in (0, 1))
    exec(compile(stage, "notebook.md", "exec"), {})
    written = '"runs/20260101-120000-train"'
    assert written in simulated
    exec(simulated.replace(written, repr(str(names["run"].folder))), {})


@pytest.mark.long
@pytest.mark.usefixtures("leaves_nothing")
def test_the_lines_for_a_detached_run_start_find_and_stop_it(tmp_path, monkeypatch):
    """As from two kernels, one after the other."""
    monkeypatch.chdir(tmp_path)
    job = example_job(tmp_path / "written", "the guide's script")
    text = Path(job.script).read_text().replace("sys.argv[1]", repr(str(tmp_path / "written")))
    Path("train.py").write_text(text.replace(f"steps, rank = {ITERATIONS}", "steps, rank = 10000"))
    names: dict[str, Any] = {}
    lines = block("docs/how-to/detach.md", "Detach a run from its launcher")
    exec(compile(lines, "detach.md", "exec"), names)
    assert names["run"].is_over_within(60)
    # Its agents end by themselves.
    until(lambda: "no run is under way" in shell("list").stdout)
