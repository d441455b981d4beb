"""The guide's script in plain PyTorch on real nodes: a worker and a node die, no bit differs."""

import pytest

from gemini_lab import Job
from gemini_lab.injector.failures import NodeLoss, WorkerCrash
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.file import read_log

from .written import block

BEFORE = """
import os
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

steps, samples = 14, torch.linspace(-1, 1, 240).view(40, 6)
loader = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True)

def build_model():
    torch.manual_seed(1)
    first = nn.Sequential(nn.Linear(6, 13), nn.BatchNorm1d(13), nn.Dropout(0.2), nn.ReLU())
    model = nn.Sequential(first, nn.Linear(13, 1))
    torch.manual_seed(int(os.environ["RANK"]))
    return model

def endless():
    while True:
        yield from loader

batches = endless()
"""


@pytest.mark.parametrize(
    "parallel", [pytest.param("DistributedDataParallel", marks=pytest.mark.long), "fully_shard"]
)
def test_the_guides_script_loses_a_worker_and_a_node_and_no_bit(lab, script, parallel):
    text = block("docs/tutorials/your-script.md", "In plain PyTorch")
    text = text.replace("DistributedDataParallel(build_model())", f"{parallel}(build_model())")
    for line in block("README.md", "In your own script", 1).splitlines()[:2]:
        assert line in text
    job = Job(script=str(script(BEFORE + text)))
    quiet = lab.train(job, persistent_url=None).wait(200).report()
    scenario = (
        Scenario().add(WorkerCrash("rank-1"), iteration=5).add(NodeLoss("rank-2"), iteration=9)
    )
    run = lab.train(job, scenario=scenario, persistent_url=None, scheme="gemini").wait(200)
    assert len(run.report().recoveries) == 2
    assert len(quiet.losses) == 14 * 4
    assert run.report().losses_match(quiet)
    protected = [e.event for e in read_log(run.log) if e.kind == "protected"]
    assert {event.settings.scheme for event in protected} == {"background"}
    assert any("'gemini' needs to see" in note for note in run.report().notes)
