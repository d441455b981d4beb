"""One rank that trains in plain PyTorch, and outlives a lost rank; run by test_groups."""

import json
import os
import signal
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from gemini_lab.engine.frameworks.ddp_buckets import BucketOrder
from gemini_lab.kept.groups import StandingGroups

rank, size, ports, is_late, end, kind = (
    int(sys.argv[1]),
    int(sys.argv[2]),
    [int(port) for port in sys.argv[3].split(",")],
    sys.argv[4] == "late",
    *sys.argv[5:7],
)
LOST = size - 1


def store(number: int) -> dist.TCPStore:
    """The first is served by rank 0, the second by the rank that comes late."""
    is_server = rank == 0 if number == 0 else is_late
    return dist.TCPStore("127.0.0.1", ports[number], is_master=is_server, wait_for_workers=False)


def make() -> nn.Sequential:
    """Return the model of this rank, by torch's generator."""
    return nn.Sequential(nn.Linear(8, 12000), nn.ReLU(), nn.Linear(12000, 4))


def step(value: float) -> list[float]:
    """The gradients of one iteration, as whole tensors."""
    model.zero_grad()
    model(torch.full((2, 8), value)).square().sum().backward()
    found = []
    for weight in model.parameters():
        whole = weight.grad if kind == "DDP" else weight.grad.full_tensor()
        found.append(whole.double().sum().item())
    return found


second, kept = store(1) if is_late else None, range(LOST)
groups = StandingGroups(kept=kept if is_late else (), told=second and second.get)
groups.install()
dist.init_process_group(
    "gloo", store=store(0) if not is_late else second, rank=rank, world_size=size
)
torch.manual_seed(rank if kind == "DDP" else 0)
layers = make()
if kind == "TP":
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    cut = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(layers, mesh["tp"], cut)
elif kind == "DDP":
    model = DistributedDataParallel(layers, bucket_cap_mb=0.1)
else:
    model = fully_shard(layers)
order = BucketOrder(model) if kind == "DDP" else None
groups.record.close()
flaw, broken = groups.record.flaw, False
unset = kind == "TP" and any(w.to_local().isnan().any().item() for w in model.parameters())
if not is_late:
    before = [step(rank + 1.0) for _ in range(3)]  # DDP lays its buckets anew after the first
    if rank == LOST:
        os.kill(os.getpid(), signal.SIGKILL if end == "killed" else signal.SIGSTOP)
    threading.Timer(0.5 if end == "killed" else 2.0, groups.break_off).start()
    step(7.0)
    broken = groups.is_broken
    step(7.0)
    second = store(1)
    for group in groups.led_by(rank, kept):
        second.set(group, groups.record.encode(group))
    if order is not None:
        order.begin_anew()
groups.join(second)
if kind == "TP":  # as a version would restore them
    torch.manual_seed(0)
    for weight, again in zip(model.parameters(), make().parameters(), strict=True):
        weight.data.copy_(distribute_tensor(again.data, weight.device_mesh, weight.placements))
if kind == "DDP":  # the late one has made other weights
    for weight in model.parameters():
        dist.broadcast(weight.data, 0)
after = [step(rank + 1.0) for _ in range(3)]
told = {
    "flaw": flaw,
    "broken": broken,
    "unset": unset,
    "after": after,
    "before": [] if is_late else before,
}
print(json.dumps({"rank": rank, **told}), flush=True)
os._exit(0)
