"""Trains the stages of a pipeline on a few gloo ranks, as a script does; see `torch_ranks`."""

import random
from itertools import chain

import numpy as np
import torch
import torch.distributed as dist
import xxhash
from script_start import Start
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gemini_lab.engine.arguments import as_engine, with_schedule
from gemini_lab.engine.frameworks.optimizer_state import local_part
from gemini_lab.engine.frameworks.tensors import is_dtensor
from gemini_lab.engine.iteration_log import IterationLog, watch_inputs

STEPS, WIDTH = 7, 8
LEARNERS = (
    lambda weights: torch.optim.AdamW(weights, lr=0.01),
    lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
)


class Pairs(Dataset):
    """Features and what is to be made of them, by their index."""

    def __len__(self):
        return self.count

    def __init__(self, count=32):
        self.count = count

    def __getitem__(self, index):
        features = torch.sin(torch.arange(1.0, WIDTH + 1) * (index + 1))
        return features, features.flip(0) * 0.5


class Stage(nn.Module):
    """A stage unlike the others: of its own depth; the first has a norm, and frozen weights.

    torch's trial of a later stage is made on memory as it was found, and a norm would keep that.
    """

    def __init__(self, number, *, is_tied=False):
        super().__init__()
        self.number = number
        self.table = nn.Parameter(torch.full((WIDTH,), 0.9)) if is_tied else None
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(1 + number % 3))
        self.norm = nn.Identity() if number else nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.2)
        if number == 0:
            self.layers.append(nn.Linear(WIDTH, WIDTH).requires_grad_(False))

    def forward(self, hidden):
        random.random()  # as layers do that are left out at random
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden)) + hidden
        if self.table is not None:
            hidden = hidden * self.table
        return self.drop(self.norm(hidden))


def numbers_of(case, rank, ranks):
    """The stages of a rank, in the schedule's order."""
    if case["schedule"] in {"ScheduleGPipe", "Schedule1F1B"}:
        return [rank]
    if case["schedule"] in {"ScheduleZBVZeroBubble", "ScheduleDualPipeV"}:
        return [rank, 2 * ranks - 1 - rank]
    return [rank, rank + ranks]


def whole_state(models, optimizers):
    """A digest of each whole tensor of these models and their optimizers, whatever rank has it."""
    weights = [w for model in models for w in model.parameters()]
    states = [one for o in optimizers for w in weights for one in o.state.get(w, {}).values()]
    whole = [one.full_tensor() if is_dtensor(one) else one for one in (*weights, *states)]
    return [xxhash.xxh3_64_hexdigest(one.detach().contiguous().numpy()) for one in whole]


class Job(Start):
    """One start of a training script."""

    def __init__(self, case, *, rank, seed, wanted=(), payload=None):
        super().__init__(case, wanted)
        ranks, group, mesh = dist.get_world_size(), None, None
        if case.get("sharded"):
            names = ("stages", "data", "cut")[: case["sharded"]]
            shape = (2, ranks // 2 ** (len(names) - 1), 2)[: len(names)]
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            group, ranks = mesh.get_group("stages"), 2
        place = rank if mesh is None else mesh.get_local_rank("stages")
        numbers = numbers_of(case, place, ranks)
        kind = getattr(pipelining.schedules, case["schedule"])
        is_single = len(numbers) == 1
        count = ranks * len(numbers)
        self.models = []
        for number in numbers:
            torch.manual_seed(number)
            stage = Stage(number, is_tied=case.get("tied") and number in {0, count - 1})
            if seed > 1:
                for weight in (one for one in stage.parameters() if one.requires_grad):
                    nn.init.normal_(weight)
            if case.get("sharded") == 3:
                cut = ColwiseParallel(output_layouts=Replicate())
                parallelize_module(stage, mesh["cut"], {"layers.*": cut})
            if case.get("copied"):
                stage = DistributedDataParallel(stage, process_group=mesh.get_group("data"))
            elif mesh is not None:
                fully_shard(stage, mesh=mesh["data"])
            self.models.append(stage)
        stages = [
            pipelining.PipelineStage(model, number, count, torch.device("cpu"), group=group)
            for model, number in zip(self.models, numbers, strict=True)
        ]
        self.is_first, self.is_last = 0 in numbers, count - 1 in numbers
        given = stages[0] if is_single else stages
        self.schedule = kind(given, case.get("batches", 4), loss_fn=nn.functional.mse_loss)
        self.optimizers = [
            LEARNERS[n % 2]([w for w in model.parameters() if w.requires_grad])
            for n, model in enumerate(self.models)
        ]
        self.rates = [torch.optim.lr_scheduler.StepLR(one, 2, 0.7) for one in self.optimizers]
        order = torch.Generator().manual_seed(5)
        self.loader = DataLoader(Pairs(), 8, shuffle=True, generator=order, drop_last=True)
        if case.get("dealt"):
            copies, number = mesh.size(1), mesh.get_local_rank("data")
            sampler = DistributedSampler(Pairs(48), copies, number, seed=5)
            self.loader = DataLoader(sampler.dataset, 24 // copies, sampler=sampler)
        for draw in (random.seed, np.random.seed, torch.manual_seed):
            # Ranks that share layers draw the same.
            draw(seed + rank // (2 if case.get("sharded") == 3 else 1))
        self.inputs = []
        is_one = len(self.models) == 1 and not case.get("lists")
        model = self.models[0] if is_one else self.models
        optimizer = self.optimizers[0] if is_one else self.optimizers
        self.protect(
            as_engine(None, model=model, optimizer=optimizer, settings=None, step=0),
            payload,
            data=self.loader if self.is_first or self.is_last else (),
            also=with_schedule(None, None),
        )

    def log_of(self, engine):
        log = IterationLog(self.hear)
        watch_inputs(engine, log)
        return log

    def hear(self, event):
        if type(event).__name__ == "IterationBegun":
            self.inputs.append([event.iteration, event.inputs.batch, event.inputs.random["torch"]])

    def loop(self):
        if self.case.get("untold"):
            return iter(range(STEPS))
        return self.protection.steps(STEPS)

    def train(self):
        batches = iter(chain.from_iterable(self.loader for _ in range(STEPS)))
        for step in self.loop():
            if self.case.get("whole"):
                self.wholes[step] = whole_state(self.models, self.optimizers)
            losses = []
            features, target = next(batches) if self.is_first or self.is_last else (None, None)
            given = (features,) if self.is_first else ()
            wanted = {"target": target, "losses": losses} if self.is_last else {}
            self.schedule.step(*given, **wanted)
            for table in self.tables():
                dist.all_reduce(table.grad)  # as a script keeps tied tables in step
            for number, optimizer in enumerate(self.optimizers):
                if not (self.case.get("skips") and number == 1 and step == 2):
                    optimizer.step()
                optimizer.zero_grad()
            for rate in self.rates:
                rate.step()
            weights = [w for model in self.models for w in model.parameters()]
            norm = sum(local_part(w.detach()).double().square().sum().item() for w in weights)
            buffers = [
                one.double().sum().item() for model in self.models for one in model.buffers()
            ]
            norm += sum(table.sum().item() for table in self.tables())
            drawn = [torch.rand(1).item(), random.random()]
            seen = [one.hex() for one in (norm, *drawn, *buffers, *(x.item() for x in losses))]
            self.losses.setdefault(step + 1, []).append(seen)
            if self.case.get("evaluates") and step == 2:
                self.evaluate(given, wanted)
        if not self.case.get("unprotected"):
            self.protection.finish()

    def tables(self):
        bare = (getattr(model, "module", model) for model in self.models)
        return [one.table for one in bare if one.table is not None]

    def evaluate(self, given, wanted):
        """In the mode of training, so that dropout draws; the schedule turns, and turns back."""
        with torch.no_grad():
            self.schedule.eval(*given, **wanted)

    def found(self):
        return {"tables": [table.tolist() for table in self.tables()], "inputs": self.inputs}

    def found_protected(self):
        return {"uneven": self.state.framework.uneven, "place": self.state.framework.place}
