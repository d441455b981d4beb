"""A run on four nodes goes on from what two nodes saved, and outlives a failure of its own."""

import pytest

from gemini_lab import Job
from gemini_lab.injector.failures import WorkerCrash
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.events import ShardRecut
from gemini_lab.log.file import LOG_FILE, read_log

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

import gemini_lab

dist.init_process_group()
samples = torch.linspace(-1, 1, 480).view(80, 6)
torch.manual_seed(1)
model = fully_shard(nn.Sequential(nn.Linear(6, 13), nn.Tanh(), nn.Linear(13, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(samples, 8 // dist.get_world_size(), sampler=DistributedSampler(samples))
protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)
if protected.world_changed is not None and dist.get_rank() == 0:
    print(protected.world_changed)
batches = iter(loader)
for step in protected.steps(int(os.environ["STEPS"])):
    loss = model(next(batches)).square().mean()
    loss.backward()
    protected.log(loss=loss.item())
    optimizer.step()
    optimizer.zero_grad()
"""


def means(report):
    """The loss of the global batch by iteration."""
    by_iteration = {}
    for (iteration, _), loss in report.losses.items():
        by_iteration.setdefault(iteration, []).append(loss)
    return {iteration: sum(found) / len(found) for iteration, found in by_iteration.items()}


@pytest.mark.long
def test_four_nodes_go_on_from_what_two_nodes_saved(lab, pair, script, tmp_path):
    path, url = str(script(SCRIPT)), str(tmp_path / "tier")

    def job(steps):
        return Job(script=path, env={"STEPS": str(steps)})

    whole = means(pair.train(job(9), persistent_url=None).wait(200).report())
    pair.train(job(4), persistent_url=url).wait(200)
    run = lab.train(
        job(9),
        persistent_url=url,
        resume=True,
        scenario=Scenario().add(WorkerCrash("rank-3"), iteration=7),
    ).wait(200)
    report = run.report()
    log = read_log(run.folder / LOG_FILE)
    recut = [entry.event for entry in log if isinstance(entry.event, ShardRecut)]
    assert {(e.rank, e.version, e.ranks_then, e.ranks) for e in recut} == {
        (rank, 4, 2, 4) for rank in range(4)
    }
    assert [one.tier for one in report.recoveries] == ["memory"]
    after = {iteration: loss for iteration, loss in means(report).items() if iteration > 4}
    assert set(after) == {5, 6, 7, 8, 9}
    assert after == pytest.approx({n: whole[n] for n in after}, rel=1e-5)
    output = (run.folder / "output" / "rank-0.log").read_text()
    assert "WorldChange(ranks_then=2, ranks_now=4)" in output
