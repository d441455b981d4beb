"""Trains tiny models in plain PyTorch on a few gloo ranks, which `zero_server` forks.

The models and loops are as hard to bring back as people write them. Versions are kept by `Keeper`,
in the place of a lab; all else is what `protect` does.
"""

import random
import runpy
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pipeline_ranks
import script_start
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gemini_lab.engine.arguments import as_engine, with_schedule
from gemini_lab.engine.frameworks.optimizer_state import local_part
from gemini_lab.engine.frameworks.tensors import is_dtensor

STEPS = 7
EXAMPLE = SimpleNamespace(
    **runpy.run_path(str(Path(__file__).parents[2] / "docs" / "examples" / "train_2d.py"))
)


class Numbers(Dataset):
    """Features made from their index, and a random part."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.sin(torch.arange(1.0, 7.0) * (index + 1)) + 0.1 * torch.randn(6)


class Model(nn.Module):
    """Odd sizes, dropout, a batch norm, tied and frozen weights; layers used in another order."""

    WIDTH = 13

    def __init__(self):
        super().__init__()
        width = self.WIDTH
        self.last = nn.Linear(width, 1)  # registered first: gradients come in another order
        self.first = nn.Linear(6, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.middle = nn.Linear(width, width, bias=False)
        self.again = nn.Linear(width, width)
        self.again.weight = self.middle.weight
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)

    def forward(self, features):
        hidden = self.norm(torch.tanh(self.first(features)))
        hidden = self.middle(self.drop(self.frozen(hidden)))
        return self.last(torch.tanh(self.again(hidden)) * self.scale).square().mean()


class Late(Model):
    """Makes a buffer, and gives another its size, when it first computes; its norm is to freeze."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", None)
        self.register_buffer("least", torch.tensor([]))

    def forward(self, features):
        if self.center is None:
            self.center = features.detach().mean(0)
            self.least.resize_(6).copy_(features.detach().amin(0))
        return super().forward(features - self.center - self.least)


class Words(Model):
    """Its first layer looks up words, and gives sparse gradients."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6, sparse=True)

    def forward(self, features):
        return super().forward(self.words((features[:, 0].abs() * 5).long() % 11) + features)


class Counting(torch.optim.SGD):
    """An optimizer of somebody's own: it calls its base's step, and counts in an attribute."""

    def __init__(self, weights, lr):
        super().__init__(weights, lr=lr, momentum=0.9)
        torch.optim.SGD(weights, lr=lr)  # so that torch calls hooks for both steps
        self.taken = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.mul_(1 - 1e-3 * (self.taken % 3))
        return super().step(closure)


class FromStart(torch.optim.Optimizer):
    """Keeps where a weight began, in one number where that is all zeros, as Prodigy does."""

    def __init__(self, weights, lr):
        super().__init__(weights, {"lr": lr, "moved": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["p0"] = weight.clone() if weight.any() else torch.tensor(0.0)
                    state["mean"] = torch.zeros_like(weight)
                state["mean"].mul_(0.9).add_(weight.grad, alpha=0.1)
                group["moved"] += (weight - state["p0"]).abs().mean().item()
                weight.add_(state["mean"], alpha=-group["lr"] * (1 + group["moved"]))


class Halved(nn.Module):
    """Its state cannot be put back on the second rank."""

    def load_state_dict(self, state, **how):
        if dist.get_rank() == 1:
            raise KeyError("half")
        return super().load_state_dict(state, **how)


OPTIMIZERS = {
    "FromStart": lambda weights: FromStart(weights, lr=0.05),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.01, amsgrad=True),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01),
    "fused AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01, fused=True),
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.05),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
    "Adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.05),
    "RMSprop": lambda weights: torch.optim.RMSprop(weights, lr=0.01, momentum=0.5, centered=True),
    "Adafactor": lambda weights: torch.optim.Adafactor(weights, lr=0.01),
    "NAdam": lambda weights: torch.optim.NAdam(weights, lr=0.01),
    "Counting": lambda weights: Counting(weights, lr=0.02),
    "Muon": lambda weights: torch.optim.Muon(weights, lr=0.02),
    "LBFGS": torch.optim.LBFGS,
}


def parallel(kind, model, **how):
    """The model as its ranks share it."""
    if kind == "DDP":
        return DistributedDataParallel(model, **how)
    if kind == "FSDP2":
        fully_shard(model.first)
        return fully_shard(model, **how)
    if kind == "HSDP":  # sharded over two ranks, replicated over two pairs
        return fully_shard(
            model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
        )
    if kind == "DDP of pairs":  # two models, each on two ranks
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
        return DistributedDataParallel(model, process_group=mesh.get_group("copies"), **how)
    if kind == "CP x FSDP2":  # sharded over all ranks
        model.mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "context"))
        return fully_shard(model, mesh=model.mesh._flatten("all"))
    if kind.startswith("TP"):
        shape, names = (dist.get_world_size() // 2, 2), ("data", "tensor")
        if kind == "TP x HSDP":  # pairs hold the same, and shard it over one rank
            shape, names = (shape[0], 1, 2), ("copies", "parts", "tensor")
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        plan = {
            "first": ColwiseParallel(output_layouts=Replicate()),
            "frozen": RowwiseParallel(input_layouts=Replicate()),
            "last": RowwiseParallel(input_layouts=Replicate()),
        }
        if isinstance(model, EXAMPLE.Model):
            plan = EXAMPLE.PLAN
        parallelize_module(model, mesh["tensor"], plan)
        if kind == "TP x HSDP":
            return fully_shard(model, mesh=mesh["copies", "parts"])
        return fully_shard(model, mesh=mesh["data"]) if kind == "TP x FSDP2" else model
    return model


def place_in_mesh(weight, rank):
    """Where a rank's part of a weight is; the same for ranks that hold the same."""
    if not is_dtensor(weight):
        return rank
    mesh = weight.device_mesh
    place = zip(weight.placements, mesh.get_coordinate(), strict=True)
    return mesh.mesh.tolist(), [None if one.is_replicate() else at for one, at in place]


def by_mesh(weights):
    """Weights that torch can add up the norms of: those of one device mesh, or of none."""
    found = {}
    for weight in weights:
        found.setdefault(getattr(weight, "device_mesh", None), []).append(weight)
    return found.values()


class Wide(Model):
    """Sizes that four or six share evenly, as FSDP2 asks of weights that are cut already."""

    WIDTH = 24


class Matrices(Wide):
    """It trains matrices alone, as Muon does, and none of a single row."""

    def __init__(self):
        super().__init__()
        for weight in self.parameters():
            if weight.ndim != 2 or len(weight) == 1:
                weight.requires_grad_(False)


class Context(Model):
    """Its ranks share each sample: each looks from its own part at the keys of all of it."""

    mesh = None

    def forward(self, features):
        sample = features.view(-1, 1, 6, 1)
        shared = context_parallel(
            self.mesh["context"], buffers=[sample], buffer_seq_dims=[2], no_restore_buffers={sample}
        )
        with shared, sdpa_kernel(SDPBackend.MATH):  # the only one that torch shares on CPUs
            own = sample * self.scale
            seen = nn.functional.scaled_dot_product_attention(own, own, own)
        return super().forward(torch.cat([own, seen], dim=2).flatten(1))


class Other(Model):
    """Another model than other ranks have, with no weights frozen."""

    WIDTH = 9

    def __init__(self):
        super().__init__()
        self.frozen.requires_grad_(True)


class Critic:
    """A second model in DDP, with gradients that come in another order than its layers have."""

    def __init__(self, *, static_graph):
        self.bare = Model()
        self.model = DistributedDataParallel(self.bare, static_graph=static_graph)
        trained = [weight for weight in self.bare.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def train(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(3, 6)).backward()
        self.optimizer.step()
        self.schedule.step()

    def norm(self):
        weights = [weight.detach().double().square().sum() for weight in self.bare.parameters()]
        return sum(weight.item() for weight in weights)


class Averages:
    """Of a sharded model: in another one, and by name in a dict."""

    def __init__(self, kind, model):
        self.model = parallel(kind, Model()).requires_grad_(False)
        self.by_name = {name: torch.zeros_like(w) for name, w in model.named_parameters()}

    def update(self, model):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                for mean in (self.model.get_parameter(name), self.by_name[name]):
                    mean.mul_(0.9).add_(weight, alpha=0.1)

    def norm(self):
        means = [*self.model.parameters(), *self.by_name.values()]
        return sum(mean.to_local().double().square().sum().item() for mean in means)


class Job(script_start.Start):
    """One start of a training script."""

    def __init__(self, case, *, rank, seed, wanted=(), payload=None):
        super().__init__(case, wanted)
        self.rank = rank
        for draw in (random.seed, np.random.seed, torch.manual_seed):
            draw(1)  # the same weights everywhere, and in every start: frozen ones are compared
        kinds = {
            "sparse": Words,
            "late": Late,
            "wide": Wide,
            "context": Context,
            "matrices": Matrices,
            "example": EXAMPLE.Model,
        }
        if case["parallel"] == "DDP of pairs" and rank % 2:
            kinds = {"parallel": Other}
        model = next((kind for name, kind in kinds.items() if case.get(name)), Model)()
        if case.get("zeros"):
            nn.init.zeros_(model.last.weight)
        torch.manual_seed(seed)
        if seed > 1:  # another start: what it begins with must not matter
            for weight in model.parameters():
                if weight.requires_grad:
                    nn.init.normal_(weight)
        self.compiled = 0
        self.model = parallel(case["parallel"], model, **case.get("how", {}))
        if case.get("compiles"):
            self.model = torch.compile(self.model, backend=self.compile)
        trained = [w for w in self.model.parameters() if w.requires_grad]
        if rank in case.get("fewer", ()):
            trained = trained[1:]
        self.optimizer = OPTIMIZERS[case["optimizer"]](trained)
        if case.get("thawed"):  # after the second step; the optimizer has them from the start
            self.model.first.requires_grad_(False)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        is_cut = case["parallel"].startswith(("TP", "CP"))
        rows = dist.get_world_size() // 2 if is_cut else 0
        shares = {"num_replicas": rows, "rank": rank // 2} if is_cut else {}
        sampler = DistributedSampler(Numbers(), **shares) if dist.is_initialized() else None
        batch = case.get("batch", 2)
        self.loader = DataLoader(Numbers(), batch, sampler=sampler, shuffle=not sampler)
        # Ranks that share a tensor's parts compute the same, so they drop out the same.
        column = rank // 2 if is_cut else rank
        for draw in (random.seed, np.random.seed, torch.manual_seed):
            draw(seed + column)
        is_half = case.get("half", False)
        self.autocast = torch.autocast("cpu", torch.float16, enabled=is_half)
        self.scaler = torch.amp.GradScaler("cpu", 2.0**30, growth_interval=2, enabled=is_half)
        self.compute_before(case.get("before"))
        if case.get("evaluated"):  # after which FSDP2 keeps whole weights
            with torch.no_grad():
                self.model(torch.ones(2, 6))
        critic = case.get("critic")
        self.critic = Critic(static_graph=critic == "static") if critic else None
        is_averaged = case.get("averaged", False)
        self.averages = Averages(case["parallel"], self.model) if is_averaged else None
        self.protect(
            as_engine(None, model=self.model, optimizer=self.optimizer, settings=None, step=0),
            payload,
            data=() if case.get("alone") and rank else self.loader,
            also=with_schedule({"scaler": self.scaler, **self.beside()}, self.schedule),
        )

    def compute_before(self, what):
        """What scripts compute before `protect`, in another order than training does."""
        for number in range({None: 0, "twice": 2}.get(what, 1)):
            bare = self.model.module
            first = bare.first(torch.ones(2, 6)).square().mean()
            (self.model(torch.ones(2, 6)) + first * number).backward()
            if what == "step":
                self.optimizer.step()
            self.optimizer.zero_grad()

    def compile(self, graph, _inputs):
        self.compiled += 1
        return graph

    def train(self):
        if self.case.get("example"):  # whose words are no numbers
            return
        accumulate = self.case.get("accumulation", 1)
        if self.case.get("alone"):
            next(self.protection.epochs(1))
        batches, until_broken = self.batches(), self.case.get("break_ranks", 0)
        for step in self.protection.steps(STEPS):
            if self.case.get("whole"):
                self.wholes[step] = pipeline_ranks.whole_state([self.model], [self.optimizer])
            self.optimizer.zero_grad()
            if self.case.get("thawed") and step == 2:
                self.model.first.requires_grad_(True)
            if self.case.get("late") and step == 2:
                self.model.module.norm.eval()
            if self.critic is not None:
                self.critic.train()
            total = 0.0
            for micro in range(accumulate):
                is_last = micro == accumulate - 1
                held = nullcontext() if is_last else self.held()
                with held:
                    with self.autocast:
                        loss = self.model(next(batches))
                    self.scaler.scale(loss).backward()
                total += loss.item()
            self.scaler.unscale_(self.optimizer)
            dense = [w for w in self.model.parameters() if w.grad is None or not w.grad.is_sparse]
            norm = sum(local_part(nn.utils.clip_grad_norm_(one, 1.0)) for one in by_mesh(dense))
            if until_broken:
                until_broken -= 1
                self.break_ranks(now=not until_broken)
            self.scaler.step(self.optimizer)  # it leaves steps out, after an overflow
            self.scaler.update()
            if self.averages is not None:
                self.averages.update(self.model)
            beside = [one.norm().hex() for one in (self.critic, self.averages) if one is not None]
            self.losses.setdefault(step + 1, []).append([total.hex(), float(norm).hex(), *beside])
            self.schedule.step()
        if not self.case.get("unprotected"):
            self.protection.finish()

    def beside(self):
        """A second model, whose schedule nobody names, or averages."""
        if self.averages is not None:
            return {"averages": self.averages.model, "by name": self.averages.by_name}
        critic = self.critic
        if self.case.get("halved"):
            return {"halved": Halved()}
        return {} if critic is None else {"critic": critic.bare, "its optimizer": critic.optimizer}

    def held(self):
        """Gradients are not added up over the ranks inside."""
        return self.model.no_sync() if self.case["parallel"] == "DDP" else nullcontext()

    def break_ranks(self, *, now):
        if now and dist.get_rank() == 1:
            with torch.no_grad():
                next(self.model.parameters()).grad.mul_(1.01)

    def batches(self):
        while True:
            yield from self.loader
            sampler = self.loader.sampler
            if isinstance(sampler, DistributedSampler):
                sampler.set_epoch(sampler.epoch + 1)

    def found(self):
        return {"compiled": self.compiled}

    def found_protected(self):
        framework = self.state.framework
        trained = [pair for pair in framework.module.named_parameters() if pair[1].requires_grad]
        # Each weight by what it is of, so that ranks that hold the same count it once.
        held = {
            f"{name} {[*getattr(w, 'placements', ())]} {place_in_mesh(w, self.rank)}": local_part(
                w
            ).nbytes
            for name, w in trained
        }
        return {"held": held, "local": sum(local_part(w).nbytes for w in framework.trained())}


def work(request, rank):
    kind = pipeline_ranks.Job if "schedule" in request["case"] else Job
    script_start.work(request, rank, kind)


def begin(request, rank):
    """As a script begins: one process needs no group."""
    if request["ranks"] > 1:
        store = dist.FileStore(f"{request['folder']}/store-{request['number']}", request["ranks"])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=request["ranks"])
