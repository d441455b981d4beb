"""Ranks that keep their process while lost ones start anew, on real nodes: no bit differs."""

import pytest

from gemini_lab import Job
from gemini_lab.injector.failures import (
    LinkCut,
    NodeFreeze,
    NodeLoss,
    RootLoss,
    WorkerCrash,
    WorkerHang,
)
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.file import read_log

SCRIPT = """
import os, sys
import deepspeed, torch, gemini_lab
from torch import nn

stage, steps = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(1)
model = nn.Sequential(
    nn.Linear(12, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.2), nn.Linear(40, 1)
)
deepspeed.init_distributed("gloo")
size = torch.tensor([640])
torch.distributed.all_reduce(size)  # a set-up that asks the other ranks
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=[*model.parameters()],
    config={
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}},
    },
)
numbers = torch.randn(int(size), 12, generator=torch.Generator().manual_seed(5))
sampler = torch.utils.data.DistributedSampler(numbers, shuffle=True)
loader = torch.utils.data.DataLoader(numbers, batch_size=4, sampler=sampler)
torch.manual_seed(int(os.environ["RANK"]))
average = {"loss": 0.0}
protected = gemini_lab.protect(engine, data=loader, also={"average": average})
torch.distributed.barrier()  # and once more before its loop
print("pid", os.getpid(), flush=True)
batches = iter(loader)
for step in protected.steps(steps):
    loss = engine(next(batches)).square().mean()
    engine.backward(loss)
    average["loss"] = 0.9 * average["loss"] + 0.1 * loss.item()
    protected.log(loss=loss.item(), average=average["loss"])
    engine.step()
"""
TORCH = """
import os, sys
import torch, gemini_lab
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

kind, steps = sys.argv[1], int(sys.argv[2])
torch.distributed.init_process_group("gloo")
torch.manual_seed(1 if kind == "FSDP2" else int(os.environ["RANK"]))  # DDP has all take rank 0's
model = nn.Sequential(
    nn.Linear(12, 1500), nn.BatchNorm1d(1500), nn.ReLU(), nn.Dropout(0.2), nn.Linear(1500, 8)
)
if kind == "FSDP2":
    for part in model:
        fully_shard(part)
    fully_shard(model)
else:
    model = DistributedDataParallel(model, bucket_cap_mb=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
numbers = torch.randn(640, 12, generator=torch.Generator().manual_seed(5))
sampler = torch.utils.data.DistributedSampler(numbers, shuffle=True)
loader = torch.utils.data.DataLoader(numbers, batch_size=4, sampler=sampler)
torch.manual_seed(int(os.environ["RANK"]))
protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)
print("pid", os.getpid(), flush=True)
batches = iter(loader)
for step in protected.steps(steps):
    loss = model(next(batches)).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    norm = norm.full_tensor() if kind == "FSDP2" else norm
    protected.log(loss=loss.item(), norm=norm.item())
    optimizer.step()
    optimizer.zero_grad()
"""
PAIR = TORCH.replace(
    "protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)",
    """
inner = nn.Sequential(nn.Linear(12, 900), nn.Tanh(), nn.Linear(900, 8))
critic = DistributedDataParallel(inner, bucket_cap_mb=0.02)
other = torch.optim.Adam(critic.parameters(), lr=0.01)
protected = gemini_lab.protect(
    model=model, optimizer=optimizer, data=loader, also={"critic": inner, "its optimizer": other}
)
""",
).replace(
    "    loss = model(next(batches)).square().mean()",
    """
    batch = next(batches)
    other.zero_grad()
    (critic(batch) - 1).square().mean().backward()
    other.step()
    loss = (model(batch) - inner(batch).detach()).square().mean()
""",
)
MESH = """
import os, sys
import torch, gemini_lab
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

steps = int(sys.argv[2])
torch.distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(12, 600), nn.ReLU(), nn.Linear(600, 8))
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
numbers = torch.randn(640, 12, generator=torch.Generator().manual_seed(5))
replica = mesh["dp"].get_local_rank()
sampler = torch.utils.data.DistributedSampler(numbers, num_replicas=2, rank=replica)
loader = torch.utils.data.DataLoader(numbers, batch_size=4, sampler=sampler)
protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)
print("pid", os.getpid(), flush=True)
batches = iter(loader)
for step in protected.steps(steps):
    loss = model(next(batches)).square().mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    protected.log(loss=loss.item(), norm=norm.item())
    optimizer.step()
    optimizer.zero_grad()
"""
KEEP = {"keep_processes": True}


def kept(run):
    return [set(one.kept) for one in run.report().recoveries]


def train(lab, path, scenario=None, *, stage=3, steps=30, **settings):
    job = Job(script=path, args=[str(stage), str(steps)])
    run = lab.train(job, scenario=scenario, persistent_url=None, **settings).wait(300)
    assert run.report().outcome == "finished", run.report().reason
    return run


def starts(run):
    """How often each rank's script was started."""
    output = run.folder / "output"
    return [(output / f"rank-{rank}.log").read_text().count("pid ") for rank in range(4)]


def test_only_lost_ranks_start_anew_and_the_numbers_are_those_of_an_undisturbed_run(
    lab, script, quiet
):
    lab.wait_until_ready()
    path = str(script(SCRIPT))
    undisturbed = quiet(SCRIPT, "3", "30")
    scenario = (
        Scenario()
        .add(WorkerCrash("rank-1"), iteration=6.5)
        .add(NodeLoss("rank-2"), iteration=15.5)
        .add(WorkerCrash("rank-1"), iteration=23.5)
    )
    run = train(lab, path, scenario, **KEEP)
    assert kept(run) == [{0, 2, 3}, {0, 1, 3}, {0, 2, 3}]
    assert starts(run) == [1, 3, 2, 1]
    assert run.report().losses_match(undisturbed)
    assert len(undisturbed.losses) == 30 * 4
    assert run.report().divergences == ()


def test_a_second_model_in_ddp_has_its_buckets_made_anew_too(lab, script, quiet):
    """Otherwise ranks that go on and one that starts add up gradients in different buckets."""
    lab.wait_until_ready()
    path = str(script(PAIR))
    scenario = Scenario().add(WorkerCrash("rank-1"), iteration=5.5)
    run = lab.train(
        Job(script=path, args=["DDP", "14"]), scenario=scenario, persistent_url=None, **KEEP
    ).wait(100)
    assert kept(run) == [{0, 2, 3}]
    assert run.report().losses_match(quiet(PAIR, "DDP", "14"))


@pytest.mark.parametrize("kind", ["DDP", "FSDP2", "TP"])
def test_plain_pytorch_keeps_processes_too(lab, script, quiet, kind):
    """Of `TP`, a rank is in two groups of some ranks, which other ranks are lost from in turn."""
    lab.wait_until_ready()
    text = MESH if kind == "TP" else TORCH
    path = str(script(text))
    undisturbed = quiet(text, kind, "30")
    scenario = (
        Scenario()
        .add(WorkerCrash("rank-1"), iteration=1.5)
        .add(NodeLoss("rank-2"), iteration=12.5)
        .add(WorkerCrash("rank-0"), iteration=22.5)
    )
    run = train(lab, path, scenario, stage=kind, **KEEP)
    assert kept(run) == [{0, 2, 3}, {0, 1, 3}, {1, 2, 3}]
    assert starts(run) == [2, 2, 2, 1]
    assert run.report().losses_match(undisturbed)
    assert len(undisturbed.losses) == 30 * 4
    assert run.report().divergences == ()


@pytest.mark.parametrize("kind", ["DeepSpeed", "DDP"])
def test_where_a_link_is_cut_and_nobody_dies_no_process_starts_anew(lab, script, quiet, kind):
    lab.wait_until_ready()
    text, stage = (SCRIPT, "3") if kind == "DeepSpeed" else (TORCH, kind)
    path = str(script(text))
    undisturbed = quiet(text, stage, "30")
    scenario = Scenario().add(LinkCut("rank-2", to="rank-1"), iteration=12.5)
    run = train(lab, path, scenario, stage=stage, **KEEP)
    (recovery,) = run.report().recoveries
    # Within a message Gloo tells nobody, and where torch itself waits, as DDP does, nobody looks.
    assert recovery.cause in {"link_cut", *(["worker_hung"] if kind == "DDP" else [])}
    assert kept(run) == [{0, 1, 2, 3}]
    assert starts(run) == [1, 1, 1, 1]
    assert run.report().losses_match(undisturbed)
    said = [entry.event.failure for entry in run.events("injected")]
    assert said == ["link_cut"] * 2  # both ends


def test_who_waits_in_a_collective_for_a_hung_rank_keeps_its_process(lab, script, quiet):
    lab.wait_until_ready()
    path = str(script(SCRIPT))
    undisturbed = quiet(SCRIPT, "3", "30")
    scenario = Scenario().add(WorkerHang("rank-1"), iteration=8.5)
    run = train(lab, path, scenario, min_progress_s=6.0, **KEEP)
    assert [one.cause for one in run.report().recoveries] == ["worker_hung"]
    assert kept(run) == [{0, 2, 3}]
    assert starts(run) == [1, 2, 1, 1]
    assert run.report().losses_match(undisturbed)


@pytest.mark.long
def test_a_kept_process_whose_script_waits_for_good_is_ended(lab, script):
    lab.wait_until_ready()
    once = """
    if step == 9 and os.environ["RANK"] == "0" and not os.path.exists(__file__ + ".waited"):
        import threading
        open(__file__ + ".waited", "w").close()
        threading.Event().wait()
"""
    loop = "for step in protected.steps(steps):"
    path = script(SCRIPT.replace(loop, loop + once))
    waited = path.with_name("train.py.waited")
    waited.touch()
    quiet = train(lab, str(path)).report()
    waited.unlink()
    scenario = Scenario().add(WorkerCrash("rank-1"), iteration=9.5)
    run = train(lab, str(path), scenario, **KEEP)
    assert [one.cause for one in run.report().recoveries] == ["worker_exited"]
    assert starts(run)[0] == 2
    assert run.report().losses_match(quiet)
    said = [one.event.text for one in run.events("note")]
    assert [True for text in said if "rank 0 does not go on" in text] == [True]


@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 2])
def test_the_same_holds_for_other_stages_a_lost_root_and_a_silent_node(lab, script, stage):
    lab.wait_until_ready()
    path = str(script(SCRIPT))
    quiet = train(lab, path, stage=stage, steps=36).report()
    scenario = (
        Scenario()
        .add(RootLoss(), iteration=8.5)
        .add(NodeFreeze("rank-3"), iteration=17.5)
        .add(WorkerCrash("rank-0"), iteration=27.5)
    )
    run = train(lab, path, scenario, stage=stage, steps=36, **KEEP)
    assert {len(ranks) for ranks in kept(run)} == {3}
    assert len(kept(run)) >= 2  # the root agent may be on a standby, which has no rank
    assert run.report().losses_match(quiet)


def test_a_drained_nodes_ranks_move_while_the_others_keep_their_processes(lab, script):
    lab.wait_until_ready()
    path = str(script(SCRIPT.replace("[640]", "[960]")))  # batches for so many
    steps = 240
    quiet = train(lab, path, steps=steps).report()
    job = Job(script=path, args=["3", str(steps)])
    run = lab.train(job, persistent_url=None, **KEEP)
    run.wait(until=5)
    node = run.members[2]
    run.drain(node)
    run.wait(200)
    assert [entry.event.name for entry in run.events("node_drained")] == [node]
    assert kept(run) == [{0, 1, 3}]
    (moved,) = run.report().recoveries
    assert moved.lost_by_any == 0
    began = min(entry.at_s for entry in run.events("recovery_started"))
    notes = [entry.event.text for entry in run.events("note")]
    assert [text for text in notes if "ahead" in text] == []  # nothing stood against it
    waiting = [entry for entry in run.events("drain_waiting") if entry.at_s < began]
    assert ["starts its ranks" in entry.event.reason for entry in waiting] == [True]
    assert run.report().losses_match(quiet)


def test_where_a_set_up_cannot_be_told_to_a_later_rank_all_start_anew_and_it_is_said(lab, script):
    lab.wait_until_ready()
    own = "torch.distributed.all_reduce(size)  # a set-up that asks the other ranks"
    large = own + "\ntorch.distributed.broadcast(torch.zeros(100_000), 0)"
    path = str(script(SCRIPT.replace(own, large)))
    run = train(lab, path, Scenario().add(WorkerCrash("rank-1"), iteration=6.5), steps=12, **KEEP)
    assert kept(run) == [set()]
    assert starts(run) == [2] * 4
    notes = [entry.event.text for entry in read_log(run.log) if entry.kind == "note"]
    assert any("does not keep its process" in text and "broadcast" in text for text in notes)
