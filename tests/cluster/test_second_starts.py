"""Workers die in the code around a script's loops: what it tells is what a plain run tells."""

import os
import subprocess
import sys
import textwrap

import pytest

from gemini_lab import Job
from gemini_lab.errors import RunFailedError
from gemini_lab.log import events

SCRIPT = """
    import os, signal, sys, time
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader
    import gemini_lab

    told = Path(sys.argv[1])

    def say(*what):
        line = " ".join(one.hex() if isinstance(one, float) else str(one) for one in what)
        with open(told / f"rank-{dist.get_rank()}.txt", "a") as file:
            file.write(line + "\\n")

    def die(where, rank):
        mark = told / where
        if len(sys.argv) > 2 and dist.get_rank() == rank and not mark.exists():
            mark.touch()
            time.sleep(0.5)  # whatever was on its way has come
            os.kill(os.getpid(), signal.SIGKILL)

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    rows = torch.sin(torch.arange(32.0)[:, None] * torch.arange(1.0, 7.0)[None])
    loader = DataLoader(rows, batch_size=8, shuffle=True)
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)

    def update(batch):
        loss = (model(batch) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        protected.log(loss=loss.item())
        optimizer.step()
        return loss.item()

    for epoch in protected.epochs(2):
        for batch in loader:
            loss = update(batch)
        if epoch == 1:
            die("after-the-epoch", 1)
        with torch.no_grad():  # it draws: dropout is on
            say("epoch", epoch, loss, model(rows).mean().item())
    for state in optimizer.state.values():
        state["exp_avg"].mul_(-0.5)
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    for step in protected.steps(14):
        if step == 11:
            die("in-the-second-phase", 0)
        last = update(torch.randn(4, 6))
    die("after-the-loop", 0)
    weights = torch.cat([weight.detach().reshape(-1) for weight in net.parameters()])
    with torch.no_grad():
        say("end", last, model(rows).mean().item(), hash(tuple(weights.tolist())))
"""


def told_in(folder):
    return [(folder / f"rank-{rank}.txt").read_text().splitlines() for rank in range(2)]


LOADER = "loader = DataLoader(rows, batch_size=8, shuffle=True)"
PACKED = """
    class Packed(torch.utils.data.IterableDataset):
        at = 0

        def __iter__(self):
            left = []
            while self.at < 32:
                left += [*rows[self.at : self.at + 5]]
                self.at += 5
                while len(left) >= 8:
                    yield torch.stack(left[:8])
                    left = left[8:]
            self.at = 0

        def state_dict(self):
            return {"at": self.at}  # and not what is left

        def load_state_dict(self, state):
            self.at = state["at"]

    from torchdata.stateful_dataloader import StatefulDataLoader
    loader = StatefulDataLoader(Packed(), batch_size=None)
"""


@pytest.mark.parametrize("is_packed", [False, True])
def test_what_a_script_tells_after_an_epoch_and_after_its_loops_is_as_under_plain_torchrun(
    pair, script, tmp_path, is_packed
):
    """Also where the loader's own word on its position is not enough, so that it is read again."""
    path = script(textwrap.dedent(SCRIPT.replace(LOADER, PACKED.strip() if is_packed else LOADER)))
    plain, lab = (tmp_path / name for name in ("plain", "lab"))
    for folder in (plain, lab):
        folder.mkdir()
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", path, plain),
        ],
        check=True,
        timeout=150,
        env=os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
    )
    job = Job(script=str(path), args=[str(lab), "breaks"], env={"OMP_NUM_THREADS": "1"})
    run = pair.train(job, persistent_url=None)
    report = run.wait(250).report()
    assert [one.version for one in report.recoveries] == [7, 11, 13]
    assert not report.divergences
    notes = [one.event.text for one in run.events("note")]
    said = [text for text in notes if "does not say all of its position" in text]
    assert len(said) == is_packed
    for expected, found in zip(told_in(plain), told_in(lab), strict=True):
        assert set(found) == set(expected)  # a survivor of the evaluation tells its line again
        assert found[-1] == expected[-1]


ANEW = """
    import torch, gemini_lab
    from torch import nn

    model = nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
    protected = gemini_lab.protect(model=model, optimizer=optimizer)
    for step in protected.steps(40):
        if step == 5:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss = (model(torch.randn(8, 6)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_an_optimizer_that_is_made_anew_is_said_and_ends_the_run(pair, script):
    run = pair.train(Job(script=str(script(textwrap.dedent(ANEW)))), persistent_url=None)
    with pytest.raises(RunFailedError, match="without an update of the AdamW that `protect`"):
        run.wait(150)
    said = [one.event for one in run.events() if isinstance(one.event, events.UpdatesUnkept)]
    assert {(one.version, one.by) for one in said} == {(5, "another SGD")}
