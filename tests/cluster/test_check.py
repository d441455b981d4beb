"""`gemini-lab check` on scripts that come back the same, and on some that do not."""

import psutil
import pytest

from gemini_lab import Job, Lab
from gemini_lab.cli.check import render
from gemini_lab.lab.check import check_script
from gemini_lab.lab.under_torchrun import UnderTorchrun
from gemini_lab.log.witnessed import PLACES, StateDifference
from gemini_lab.report.twice import FirstDifference

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
import gemini_lab
from gemini_lab.engine import session

habit = sys.argv[1]
dist.init_process_group("gloo")
if habit != "unseeded":
    torch.manual_seed(1)
net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.1), nn.Linear(12, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
torch.manual_seed(10 + dist.get_rank())
loader = DataLoader(torch.randn(16, 6), batch_size=4, shuffle=True)
protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)
if habit == "cannot start again" and protected.step:
    raise ValueError("this script begins at its beginning")
scale = 1.0

def train(batch):
    global scale
    loss = scale * (model(batch) - 1).square().mean()
    if habit == "its own":
        scale *= 0.9
    optimizer.zero_grad()
    loss.backward()
    if habit == "by a lab" and session.current is not None and protected.step == 0:
        net[3].bias.grad.mul_(1 + 2**-20)
    if habit == "logs":
        protected.log(loss=loss.item())
    optimizer.step()

for epoch in protected.epochs(2):
    for batch in loader:
        train(batch)
    if dist.get_rank() == 0:
        with torch.no_grad():
            net(torch.randn(4, 6))
for phase in (10, 12):
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    for _ in protected.steps(phase):
        train(torch.randn(4, 6))
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two nodes and a standby."""
    with Lab(2, 1, folder=tmp_path_factory.mktemp("lab")) as opened:
        yield opened


@pytest.fixture
def check(two, script):
    path = str(script(SCRIPT))

    def checked(habit: str):
        job = Job(script=path, args=[habit])
        found = check_script(two, job, iterations=40, kills=9, limit_s=150, tell=print)
        print("\n".join(render(found)))
        return found

    return checked


def test_a_script_that_logs_nothing_is_killed_at_each_of_its_places_and_comes_back(check, two):
    found = check("as it is")
    assert found.verdict == "bit-identical", found
    assert found.iterations == 12
    assert found.missed == ()
    kills = [one.kill for one in found.recovered]
    assert {kill.place for kill in kills} == set(PLACES)
    assert {kill.rank for kill in kills if kill.place == "evaluation"} == {0}
    assert [kill.place for kill in kills if kill.loses_node] == ["forward"]
    assert all(one.duration_s is not None for one in found.recovered[:-1])
    assert found.disturbed.states.states == found.plain.states.states == 2 * 14
    assert found.disturbed.states.pieces > 20
    assert found.disturbed.twice.with_values == 0
    assert not [*two.folder.glob("check-*/rank-*.pt")]


def test_state_of_the_scripts_own_is_found_without_any_loss(check):
    found = check("its own")
    assert found.verdict == "differs", found
    first = found.disturbed.first
    assert isinstance(first, StateDifference)
    assert "weight 0.weight" in first.pieces
    assert found.disturbed.values["weight 0.weight"] > 0
    assert found.after is not None
    assert found.after.version < first.version
    assert found.plain.is_same


def test_what_a_lab_alone_changes_is_told_before_anything_is_killed(check):
    found = check("by a lab")
    assert found.verdict == "differs without a failure", found
    first = found.plain.states.first
    assert first.version == 1  # the very first update
    assert "optimizer's state of 3.bias.momentum_buffer" in first.pieces
    assert found.recovered == ()


def test_a_script_that_no_two_starts_are_the_same_of_is_told_so(check):
    found = check("unseeded")
    assert found.verdict == "not repeatable", found
    assert found.plain.states.first.version == 0
    assert found.recovered == ()


def test_a_script_that_cannot_start_again_is_told_with_the_kill(check):
    found = check("cannot start again")
    assert found.verdict == "does not come back", found
    assert "this script begins at its beginning" in found.failure
    assert found.after == found.recovered[-1]
    assert found.after.kill.version > 0


def test_a_loss_that_is_logged_is_compared_too(check):
    found = check("logs")
    assert found.verdict == "bit-identical", found
    assert found.disturbed.twice.with_values == found.plain.twice.with_values == 24
    assert not isinstance(found.disturbed.first, FirstDifference)


def test_nothing_of_torchrun_is_left(tmp_path):
    (tmp_path / "wait.py").write_text("import time\nprint('waits', flush=True)\ntime.sleep(600)\n")
    job = Job(script="wait.py", cwd=str(tmp_path))
    with UnderTorchrun(job, nodes=2, workers_per_node=1, folder=tmp_path) as run:
        while len(run.last_lines) < 2:
            assert not run.is_over_within(0.1)
        ours = psutil.Process().children(recursive=True)
        scripts = [one for one in ours if "wait.py" in one.cmdline()[-1:]]
        assert len(scripts) == 4  # two torchruns, and what each started
    _, alive = psutil.wait_procs(ours, timeout=10)
    assert not [one for one in alive if one in scripts]
