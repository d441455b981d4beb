"""Real nodes: a batch makes no numbers, a node is lost meanwhile, and no bit differs."""

import json

import pytest

from gemini_lab import Job
from gemini_lab.errors import RunFailedError
from gemini_lab.injector.failures import NodeLoss
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.file import read_log
from gemini_lab_bench.benches.live_lab import wait_for

GUARDED = """
import json, os, sys
import deepspeed, torch, gemini_lab
from torch import nn

case = {"bad": [], "without": [], "worse": float("nan"), "steps": 14, **json.loads(sys.argv[1])}
settings = case.get("gemini", {"on_not_finite": "rewind", "keep_in_memory": 2})
rank = int(os.environ["RANK"])


class Batches(torch.utils.data.Dataset):
    numbers = [number for number in range(80) if number not in case["without"]]

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        number = self.numbers[index]
        batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(9 * number + rank))
        return batch * case["worse"] if number in case["bad"] else batch


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
        "gemini": settings,
    },
)
torch.manual_seed(rank)
loader = torch.utils.data.DataLoader(Batches(), batch_size=None)
protected = gemini_lab.protect(engine, data=loader)
batches = iter(loader)
for step in protected.steps(case["steps"]):
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
    guarded = jobs_of(script)
    quiet = lab.train(guarded(without=[5, 9])).wait(200).report()
    scenario = Scenario().add(NodeLoss("rank-2"), iteration=6)
    run = lab.train(guarded(bad=[5, 9]), scenario=scenario).wait(200)
    assert run.report().outcome == "finished", run.report().reason
    assert len(quiet.losses) == 14 * 4
    assert run.report().losses_match(quiet)
    assert len(run.report().recoveries) == 1
    assert run.report().divergences == ()
    assert {(one.iteration, one.version) for one in said_in(run, "rewound")} == {(6, 5), (9, 8)}


@pytest.mark.long
def test_a_loss_that_is_far_too_high_is_taken_back_and_leaves_no_bit(lab, script):
    """Batch 40 is a thousand times too large; by then there are losses to compare its own with."""
    guarded = jobs_of(script)
    case = {"gemini": {"rewind_on_spike": 12, "keep_in_memory": 2}, "steps": 44}
    quiet = lab.train(guarded(without=[40], **case)).wait(200).report()
    run = lab.train(guarded(bad=[40], worse=1000.0, **case)).wait(200)
    assert run.report().outcome == "finished", run.report().reason
    assert len(quiet.losses) == 44 * 4
    assert run.report().losses_match(quiet)
    assert run.report().recoveries == ()
    said = said_in(run, "rewound")
    assert {(one.iteration, one.version, one.cause) for one in said} == {(41, 40, "guard")}
    assert "standard deviations" in said[0].reason


@pytest.mark.long
def test_a_run_whose_memory_has_no_version_to_go_back_to_ends_and_says_so(lab, script):
    """All batches from the sixth on make no numbers, and it goes further back each time."""
    run = lab.train(jobs_of(script)(bad=[*range(5, 80)]))
    with pytest.raises(RunFailedError, match="raise keep_in_memory to keep more"):
        run.wait(200)
    assert {one.version for one in said_in(run, "rewound")} == {5, 4, 3}
    assert {(one.cause, one.iteration) for one in said_in(run, "rewind_failed")} == {("guard", 4)}
    assert run.report().recoveries == ()


@pytest.mark.long
def test_a_person_who_asks_for_what_memory_has_not_is_told_so_and_training_goes_on(lab, script):
    guarded = jobs_of(script)
    case = {"gemini": {"keep_in_memory": 2}, "steps": 60}
    run = lab.train(guarded(**case))
    wait_for(run, iteration=8)
    run.rewind(8)
    run.wait(200)
    report = run.report()
    assert report.outcome == "finished", report.reason
    assert {one.cause for one in said_in(run, "rewind_failed")} == {"person"}
    assert said_in(run, "rewound") == []
    assert len(report.losses) == 60 * 4


def jobs_of(script):
    """Makes jobs of the guarded script."""
    path = str(script(GUARDED))
    return lambda **case: Job(script=path, args=[json.dumps(case)])


def said_in(run, kind):
    return [entry.event for entry in read_log(run.log) if entry.kind == kind]
