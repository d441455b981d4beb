"""What README and guide tell people to write, written down and run: it comes back bit by bit."""

import json
import re
from pathlib import Path

import pytest

from gemini_lab import Job, Lab
from gemini_lab.experiments.check import check_script

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "steps_per_print": 1_000_000,
}
FOR_A_LIBRARY = {
    "train_micro_batch_size_per_gpu": "auto",
    "zero_optimization": {"stage": 2},
    "zero_force_ds_cpu_optimizer": False,
}

SCRIPT = """
import os
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.fsdp import fully_shard

steps, samples = 100_000, torch.sin(torch.arange(960.0)).view(160, 6)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))
torch.manual_seed(2 + int(os.environ["RANK"]))
loader = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True)

def endless():
    while True:
        yield from loader

def build_model():
    return model

def get_batch(split):
    return torch.randn(4, 6), torch.randn(4, 1)

def all_ranks_agree(fact):
    told = torch.tensor(float(fact))
    torch.distributed.all_reduce(told)
    return told == torch.distributed.get_world_size()

batches = endless()
"""
ENGINE = """
import deepspeed, gemini_lab
engine, *_ = deepspeed.initialize(model=model, config="ds_config.json")
"""
PROTECTED = "protected = gemini_lab.protect(engine, data=loader)\n"
STEP = """
    loss = engine(next(batches)).square().mean()
    engine.backward(loss)
    protected.log(loss=loss.item())
    engine.step()
"""
TORCH = """
import gemini_lab
torch.distributed.init_process_group()
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
"""
TORCH_STEP = """
    loss = model(next(batches)).square().mean()
    loss.backward()
    protected.log(loss=loss.item())
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
"""
SQUARED = "model.register_forward_hook(lambda *told: told[-1].square().mean())\n"
WITH_TARGETS = """
class WithTargets(nn.Sequential):
    def forward(self, X, Y):
        return nn.functional.mse_loss(super().forward(X), Y)

model = WithTargets(*model)
"""
TEXTS = """
import tempfile
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

config = GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2,
                    bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
data = [{"input_ids": torch.arange(8) * n % 50, "labels": torch.arange(8)} for n in range(64)]
"""
ACCELERATED = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
forward = model.forward
model.forward = lambda batch: forward(**batch)
"""
LIT = """
from lightning.pytorch import LightningModule, Trainer

class Net(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, _):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

model = Net(model)
"""
FIT = "num_nodes=2, devices=1, accelerator='cpu', logger=False, enable_checkpointing=False, "
ARGUMENTS = (
    "tempfile.mkdtemp(), use_cpu=True, max_steps=10**5, save_strategy='no', report_to=[], "
    "disable_tqdm=True, "
)

Example = tuple[str, dict[str, str]]
"""What stands before a block, and what takes the place of words in it."""
EXAMPLES: dict[str, Example] = {
    "README.md 0": (
        SCRIPT,
        {"    ...  # forward, engine.backward(loss), engine.step()": STEP},
    ),
    "README.md 1": (
        SCRIPT + TORCH,
        {"    ...  # forward, loss.backward(), optimizer.step(), scheduler.step()": TORCH_STEP},
    ),
    "docs/guide/script.md 0": (SCRIPT + SQUARED, {}),
    "docs/guide/script.md 1": (SCRIPT, {}),
    "docs/guide/script.md 2": (
        SCRIPT + WITH_TARGETS + ENGINE,
        {"    engine.step()": "    protected.log(loss=loss.item())\n    engine.step()"},
    ),
    "docs/guide/script.md 3": (
        SCRIPT + ENGINE + PROTECTED + "evaluate = lambda: engine(samples[:4])\n",
        {
            "epochs(30)": "epochs(steps)",
            "        ...": STEP.replace("next(batches)", "batch").replace("    ", 8 * " "),
        },
    ),
    "docs/guide/script.md 4": (
        SCRIPT + ENGINE + PROTECTED,
        {"    ...  # forward, backward, engine.step()": STEP},
    ),
    "docs/guide/libraries.md 0": (
        SCRIPT + TEXTS,
        {"(..., deepspeed=": f"({ARGUMENTS}deepspeed="},
    ),
    "docs/guide/libraries.md 1": (SCRIPT + TEXTS + ACCELERATED, {"epochs(3)": "epochs(steps)"}),
    "docs/guide/libraries.md 2": (
        SCRIPT + LIT,
        {"num_nodes=4, devices=1, max_epochs=3": f"{FIT}max_epochs=10**5"},
    ),
}


def blocks():
    """Every example that protects, by page and number."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md"))]
    for page in pages:
        name = page.relative_to(ROOT).as_posix()
        protecting = [text for text in BLOCK.findall(page.read_text()) if "protect" in text]
        for number, text in enumerate(protecting):
            yield f"{name} {number}", text


BLOCKS = dict(blocks())


def test_every_example_that_protects_is_run():
    assert sorted(BLOCKS) == sorted(EXAMPLES)
    for name, (_, filled) in EXAMPLES.items():
        assert [words for words in filled if words not in BLOCKS[name]] == [], name


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two nodes and a standby."""
    with Lab(2, 1, folder=tmp_path_factory.mktemp("lab")) as opened:
        yield opened


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_comes_back_bit_by_bit_from_a_worker_and_a_node(small, script, tmp_path, name):
    before, filled = EXAMPLES[name]
    text = BLOCKS[name]
    for words, instead in filled.items():
        text = text.replace(words, instead)
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps(FOR_A_LIBRARY if "libraries" in name else CONFIG))
    text = (before + text).replace('"ds_config.json"', repr(str(config)))
    job = Job(script=str(script(text)))
    found = check_script(small, job, iterations=8, limit_s=180, tell=lambda _: None)
    assert found.verdict == "bit-identical", found
    assert len(found.recovered) == 2


@pytest.mark.long
@pytest.mark.parametrize("page", ["README.md", "docs/guide/notebook.md"])
def test_the_example_for_notebooks_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = next(one for one in BLOCK.findall((ROOT / page).read_text()) if "lab = Lab(" in one)
    names: dict[str, object] = {}
    exec(text, names)
    report = names["run"].report()
    assert len(report.recoveries) == 2
    assert len(report.losses) == 4 * 24
