"""Ranks that hang in a collective: which one, which rank never entered it, and where all stand."""

import textwrap
import time

from gemini_lab import Job
from gemini_lab.cli.main import main

SCRIPT = """
    import ctypes, os, sys, time
    from pathlib import Path
    import torch, gemini_lab
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    way, once = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    protected = gemini_lab.protect(model=model, optimizer=optimizer)

    def stuck_in_the_script():
        if way == "sleeps":
            time.sleep(1000)
        ctypes.PyDLL(None).sleep(1000)  # with Python's lock

    for step in protected.steps(20):
        if rank == 2 and step == 8 and not Path(once).exists():
            Path(once).touch()
            stuck_in_the_script()
        total = torch.ones(3)
        dist.all_reduce(total)
        loss = model(torch.ones(2, 6)).square().mean() + 0 * total.sum()
        optimizer.zero_grad()
        loss.backward()
        protected.log(loss=loss.item())
        optimizer.step()
"""
SETTINGS = {"min_progress_s": 12.0, "idle_s": 25.0}


def hang(lab, script, tmp_path, way):
    """Train until rank 2 is stuck, and the others wait for it."""
    lab.wait_until_ready()
    once = tmp_path / "once"
    job = Job(script=str(script(textwrap.dedent(SCRIPT))), args=[way, str(once)])
    run = lab.train(job, persistent_url=None, **SETTINGS)
    end_s = time.monotonic() + 120
    while not once.exists() and time.monotonic() < end_s:
        time.sleep(0.1)
    assert once.exists()
    time.sleep(2)  # for the others to come to it
    return run


def test_the_rank_that_never_enters_an_all_reduce_is_named_with_it(
    lab, script, quiet, tmp_path, capsys
):
    run = hang(lab, script, tmp_path, "sleeps")
    assert main(["stacks", str(run.folder), "2", "0"]) == 0
    printed = capsys.readouterr().out
    assert "(by its own thread)" in printed
    assert "in stuck_in_the_script" in printed
    assert "in all_reduce" in printed  # of rank 0
    run.wait(200)
    (hung,) = (entry.event for entry in run.events("worker_hung"))
    assert hung.rank == 2
    assert "at train.py:18 in stuck_in_the_script" in hung.seen
    assert "ranks 0, 1, 3 wait in all_reduce" in hung.seen
    assert "(all_reduce of Float[3]) was never entered by rank 2, last in " in hung.seen
    undisturbed = quiet(textwrap.dedent(SCRIPT), "sleeps", "/")  # which is there: nothing hangs
    assert run.report().losses == undisturbed.losses


def test_a_rank_in_a_call_that_keeps_pythons_lock_shows_its_stack_too(lab, script, tmp_path):
    run = hang(lab, script, tmp_path, "keeps the lock")
    run.stacks(2)
    end_s = time.monotonic() + 20
    while not run.events("stacks_taken") and time.monotonic() < end_s:
        time.sleep(0.1)
    (taken,) = (entry.event for entry in run.events("stacks_taken"))
    assert taken.rank == 2
    assert taken.how.startswith("by a signal")
    assert any("in stuck_in_the_script" in line for line in taken.lines)
    run.wait(200)
    (hung,) = (entry.event for entry in run.events("worker_hung"))
    assert hung.rank == 2
