"""Ranks that come to an end while others train on, on real nodes: named, and never mixed."""

import textwrap

import pytest

from gemini_lab import Job
from gemini_lab.errors import RunFailedError

SCRIPT = """
    import ctypes, os, sys
    import torch, gemini_lab
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    way = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    protected = gemini_lab.protect(model=model, optimizer=optimizer)
    for step in protected.steps(30):
        if rank == 1 and step == 12:
            if way == "break":
                break
            if way == "destroy":
                dist.destroy_process_group()
                sys.exit(0)
            {"os._exit": os._exit, "sys.exit": sys.exit, "C": ctypes.CDLL(None)._exit}[way](0)
        loss = model(torch.ones(2, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        protected.log(loss=loss.item())
        optimizer.step()
    if rank == 0:
        model.train()(torch.ones(2, 6))  # ranks of which one has more to do at the end
"""
UNEVEN = """
    import sys
    import torch, gemini_lab
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    form, after = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))  # as large as what is summed up after a pass

        def forward(self, batch):
            return batch.mean(1) * self.weight

    loader = DataLoader(torch.sin(torch.arange(288.0)).view(48, 6)[: 48 - 4 * rank], batch_size=4)
    model = DistributedDataParallel(Scaled())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)

    def epochs():
        if form == "epochs":
            yield from protected.epochs(3)
        while form == "passes" and protected.step + done < 36:
            yield None

    done, loss = 0, torch.zeros(())
    for epoch in epochs():
        for batch in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            protected.log(loss=loss.item())
            optimizer.step()
            done += 1
            if form == "passes" and protected.step + done == 36:
                break
        if after == "sum":
            dist.all_reduce(loss.detach().view(1))
"""


def newest(run):
    """The newest iteration of each rank."""
    done = [entry.event for entry in run.events("iteration")]
    return {rank: max(one.iteration for one in done if one.rank == rank) for rank in (0, 1)}


@pytest.mark.parametrize("way", ["os._exit", "break", "sys.exit", "destroy", "C"])
def test_a_rank_that_ends_well_too_early_is_named_and_ends_the_run(pair, script, way):
    pair.wait_until_ready()
    job = Job(script=str(script(textwrap.dedent(SCRIPT))), args=[way])
    run = pair.train(job, persistent_url=None)
    with pytest.raises(RunFailedError, match=r"rank 1 on node-1 has (ended|left) its") as failed:
        run.wait(200)
    assert "after iteration 12, while rank 0 " in str(failed.value)
    report = run.report()
    assert report.cause == "script"
    assert newest(run) == {0: 12, 1: 12}
    assert "worker_hung" not in {recovery.cause for recovery in report.recoveries}


def test_epochs_of_unequal_length_end_the_run_before_sums_of_different_kinds_meet(pair, script):
    pair.wait_until_ready()
    job = Job(script=str(script(textwrap.dedent(UNEVEN))), args=["epochs", "sum"])
    run = pair.train(job, persistent_url=None)
    with pytest.raises(RunFailedError, match=r"rank 1 on node-1 has come to the end of its epoch"):
        run.wait(200)
    assert newest(run) == {0: 11, 1: 11}
    assert "while rank 0 is in iteration 12" in run.report().reason


def test_a_sum_after_a_pass_that_meets_gradients_ends_the_run_before_they_are_used(pair, script):
    """Both have one number, so that nothing but their place in the script tells them apart."""
    pair.wait_until_ready()
    job = Job(script=str(script(textwrap.dedent(UNEVEN))), args=["passes", "sum"])
    run = pair.train(job, persistent_url=None)
    with pytest.raises(RunFailedError, match="gradients would be added up with something else"):
        run.wait(200)
    assert newest(run) == {0: 11, 1: 11}


def test_ranks_that_begin_a_pass_each_at_its_own_time_are_well(pair, script):
    pair.wait_until_ready()
    job = Job(script=str(script(textwrap.dedent(UNEVEN))), args=["passes", "nothing"])
    run = pair.train(job, persistent_url=None).wait(200)
    assert newest(run) == {0: 36, 1: 36}
    assert run.report().recoveries == ()
