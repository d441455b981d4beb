"""Slow ranks and ill machines on real nodes: a busy rank, and a driver that tells of errors."""

import os
import textwrap
import time

import pytest

from gemini_lab import Job, Lab

SCRIPT = """
    import time
    import torch, gemini_lab
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    protected = gemini_lab.protect(model=model, optimizer=optimizer)
    for step in protected.steps(300):
        if rank == 2 and 20 <= step < 60:
            end_s = time.thread_time() + 0.2
            while time.thread_time() < end_s:
                pass
        time.sleep(0.2)
        loss = model(torch.ones(2, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        protected.log(loss=loss.item())
        optimizer.step()
"""
DRIVER = """\
#!/bin/sh
# Tells as nvidia-smi does; from a moment on, one of the agents that ask hears of errors.
errors=0
if [ -e {folder}/broken ]; then
    mkdir {folder}/taken 2>/dev/null && echo $PPID > {folder}/taken/agent
    [ "$(cat {folder}/taken/agent)" = "$PPID" ] && errors=2
fi
case "$1" in
    --query-gpu*) echo "$errors, 0, Not Active, Not Active" ;;
    --query-remapped-rows*) echo "No, No" ;;
esac
"""


def first(run, kind, *, within_s):
    """The first event of a kind, once there is one."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if found := run.events(kind):
            return found[0].event
        time.sleep(0.2)
    raise AssertionError(f"no {kind} within {within_s} s")


@pytest.mark.usefixtures("leaves_nothing")
def test_a_busy_rank_is_named_and_a_node_whose_gpu_fails_is_drained(tmp_path, script, monkeypatch):
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text(DRIVER.format(folder=tmp_path))
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:{os.environ['PATH']}")
    with Lab(4, 1, folder=tmp_path / "runs") as lab:
        run = lab.train(Job(script=str(script(textwrap.dedent(SCRIPT)))), persistent_url=None)
        slow = first(run, "rank_slow", within_s=120)
        assert (slow.rank, slow.name) == (2, run.members[2])
        assert 20 < slow.iteration <= 40
        (tmp_path / "broken").touch()
        ill = first(run, "node_ailing", within_s=60)
        assert (ill.fault, ill.drains) == ("gpu_memory", True)
        run.wait(200)
        assert ill.name not in run.members
        assert [one.event.name for one in run.events("node_drained")] == [ill.name]
        assert [one.lost_iterations for one in run.report().recoveries] in ([0], [])
        assert {rank for _, rank in run.report().losses} == {0, 1, 2, 3}
        assert len(run.report().losses) == 4 * 300
        assert str(ill) in map(str, run.report().ailments)
