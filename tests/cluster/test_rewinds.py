"""Real nodes: a batch makes no numbers, a node is lost meanwhile, and no bit differs."""

import pytest

from gemini_lab import Job
from gemini_lab.injector.failures import NodeLoss
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.file import read_log

GUARDED = """
import os, sys
import deepspeed, torch, gemini_lab
from torch import nn

bad, without = ({int(number) for number in part.split(",") if number} for part in sys.argv[1:3])
rank = int(os.environ["RANK"])


class Batches(torch.utils.data.Dataset):
    numbers = [number for number in range(40) if number not in without]

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        number = self.numbers[index]
        batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(9 * number + rank))
        return batch * float("nan") if number in bad else batch


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 13), nn.ReLU(), nn.Dropout(0.2), nn.Linear(13, 1))
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=[*model.parameters()],
    config={
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}},
        "gemini": {"on_not_finite": "rewind", "keep_in_memory": 2},
    },
)
torch.manual_seed(rank)
loader = torch.utils.data.DataLoader(Batches(), batch_size=None)
protected = gemini_lab.protect(engine, data=loader)
batches = iter(loader)
for step in protected.steps(14):
    loss = engine(next(batches)).square().mean()
    engine.backward(loss)
    protected.log(loss=loss.item())
    engine.step()
"""


@pytest.mark.long  # tests/engine and tests/recovery show each half of it sooner
def test_a_guarded_run_that_loses_a_node_has_the_numbers_of_one_without_the_bad_batches(
    lab, script
):
    """The node goes when iteration 6 is said first: that is the one that is taken back."""
    path = str(script(GUARDED))
    quiet = lab.train(Job(script=path, args=["", "5,9"])).wait(200).report()
    scenario = Scenario().add(NodeLoss("rank-2"), iteration=6)
    run = lab.train(Job(script=path, args=["5,9", ""]), scenario=scenario).wait(200)
    assert run.report().outcome == "finished", run.report().reason
    assert len(quiet.losses) == 14 * 4
    assert run.report().losses_match(quiet)
    assert len(run.report().recoveries) == 1
    assert run.report().divergences == ()
    said = [entry.event for entry in read_log(run.log) if entry.kind == "rewound"]
    assert {(one.iteration, one.version) for one in said} == {(6, 5), (9, 8)}
