"""`gemini-lab check` on scripts that come back the same, and on one that does not."""

from gemini_lab import Job
from gemini_lab.experiments.check import check_script
from gemini_lab.log.events import Diverged
from gemini_lab.log.file import read_log

SCRIPT = """
import sys
import deepspeed, torch
from torch import nn
import gemini_lab

deepspeed.init_distributed(verbose=False)
torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(64, 16), nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 64))
engine, *_ = deepspeed.initialize(model=model, config={
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "steps_per_print": 1_000_000,
})
torch.manual_seed(2 + engine.global_rank)
own = torch.Generator().manual_seed(engine.global_rank)  # `protect` does not know of it
generator = own if sys.argv[1] == "own" else None

protected = gemini_lab.protect(engine)
for _ in range(protected.step, 100_000):
    x = torch.randint(64, (4, 9), generator=generator)
    loss = nn.functional.cross_entropy(engine(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    engine.backward(loss)
    protected.log(loss=loss.item())
    engine.step()
"""


def test_a_script_is_checked_as_it_is_and_told_what_differs_first(lab, script):
    path = str(script(SCRIPT))
    told: list[str] = []

    def check(which: str):
        job = Job(script=path, args=[which])
        return check_script(lab, job, iterations=8, limit_s=150, tell=told.append)

    same = check("global")
    assert same.verdict == "bit-identical", same
    assert same.twice.with_values >= 4 * 8
    assert len(same.recovered) == 2

    other = check("own")
    assert other.verdict == "differs"
    assert other.twice.first.what == "batch"
    assert other.twice.first.iteration == other.recovered[0].version + 1
    assert any("worker crash" in line for line in told)
    noticed = [e.event for e in read_log(other_log(lab)) if isinstance(e.event, Diverged)]
    assert {one.differs for one in noticed} == {"batch"}
    assert noticed[0].iteration == other.twice.first.iteration


def other_log(lab):
    """That of the last run with failures."""
    return max(
        lab.folder.glob("check-*-with-failures*/events.jsonl"), key=lambda p: p.stat().st_mtime
    )
