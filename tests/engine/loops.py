"""Training loops as people write them, each with what is hard to bring back around its step.

A loop gets `protect`, which is the real one but for the lab: versions are kept by `Keeper`.
"""

import importlib
import random
from pathlib import Path

import numpy as np
import torch
from deepspeed import initialize
from keeper import Keeper, SlabKeeper, protect
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gemini_lab.engine.discovery import gather
from gemini_lab.engine.rewinding import Rewinder
from gemini_lab.engine.script_loops import place_in
from gemini_lab.engine.state.data_rehearsal import rehearse_data
from gemini_lab.engine.state.engine_state import EngineState

STEPS = 12


class Job:
    """One start of a loop: its protection, what it computed, and what its author is told."""

    def __init__(self, *, wanted, payload, version, folder, case=None):
        self.keeper = Keeper(wanted)
        self.payload = payload
        self.version = version
        self.folder = folder
        self.remarks = []
        self.losses = {}
        self.protection = None
        self.case = case
        self.found = {}
        self.rewinds = []

    def protect(self, engine, *, data=None, client_state=None, also=None, guard=None, **more):
        script = gather(
            engine, data=data, client_state=client_state, also=also, remark=self.remarks.append
        )
        state = self.state = EngineState(engine, script=script)
        small = {} if self.payload is None else state.load(self.payload)
        if self.payload is None:
            state.rehearse(bytearray(state.layout.payload_bytes))
            self.remarks += rehearse_data(script)
        rewinder = None
        if isinstance(self.keeper, SlabKeeper):
            self.keeper.lay_out(state.layout)
            rewinder = Rewinder(
                state, self.keeper.slab, self.keeper, guard=guard, emit=self.rewinds.append
            )
        self.protection = protect(
            state,
            self.keeper,
            place=place_in(small),
            rewinder=rewinder,
            remark=self.remarks.append,
            rehearse=lambda: state.rehearse(bytearray(state.layout.payload_bytes)),
            **{name: make(state) for name, make in more.items()},
        )
        return self.protection

    def update(self, engine, loss, *more):
        """Backward and step; the loss, and whatever else must come back, bit for bit."""
        engine.backward(loss)
        engine.step()
        self.note(engine.global_steps, loss.detach(), *more)

    def note(self, step, *values):
        """What must come back, bit for bit; the last such for a step counts."""
        self.losses[step] = [float(one).hex() for one in values]


def settings(**more):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **more,
    }


class Noisy(Dataset):
    """Samples that are augmented with each kind of random number."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        sample = torch.sin(torch.arange(6.0) * index) + 0.1 * torch.randn(6)
        return sample * random.choice([1, 2]) + float(np.random.rand())  # noqa: NPY002


def network(*layers):
    return nn.Sequential(nn.Linear(6, 12), *layers, nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))


def prefetching(job):
    """As nanoGPT: the next batch is drawn before `backward`, and the top of the loop evaluates."""
    model = network()
    engine, *_ = initialize(model=model, model_parameters=[*model.parameters()], config=settings())

    def get_batch():
        return torch.randn(4, 6)

    ahead = {"batch": get_batch()}
    protected = job.protect(engine, client_state=ahead)
    for step in protected.steps(STEPS):
        for group in engine.optimizer.param_groups:
            group["lr"] = 0.01 / (1 + step)
        if step % 3 == 0:
            evaluate(engine, get_batch())
        loss = engine(ahead["batch"]).square().mean()
        ahead["batch"] = get_batch()
        job.update(engine, loss)


def nested(job):
    """As DeepSpeed's cifar10 example: epochs over DeepSpeed's own loader, evaluated after each."""
    model = network(nn.BatchNorm1d(12))
    engine, _, loader, _ = initialize(
        model=model,
        model_parameters=[*model.parameters()],
        training_data=Noisy(),
        config=settings(),
    )
    others = DataLoader(Noisy(), batch_size=8, shuffle=True)
    protected = job.protect(engine)
    for _epoch in protected.epochs(3):
        for batch in loader:
            job.update(engine, engine(batch).square().mean())
            if engine.global_steps % 2:  # a count from `enumerate` begins anew
                evaluate(engine, next(iter(others)))
        evaluate(engine, *others)


def everything(job):
    """Schedule, average, generator and counter by hand, workers that draw, a drawing evaluation."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = initialize(model=model, optimizer=optimizer, config=settings(optimizer={}))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    ema = AveragedModel(engine.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    generators = {"torch": torch.Generator().manual_seed(5), "numpy": np.random.default_rng(5)}
    counts = {"evaluations": 0}
    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)
    protected = job.protect(
        engine, data=loader, client_state=counts, also={"ema": ema, **generators}
    )
    batches = endless(loader)
    for step in protected.steps(STEPS):
        batch = next(batches) + torch.randn(6, generator=generators["torch"])
        loss = engine(batch + generators["numpy"].random()).square().mean()
        weights = zip(ema.module.parameters(), engine.module.parameters(), strict=True)
        drift = sum((averaged - now).abs().sum().item() for averaged, now in weights)
        job.update(engine, loss, drift, optimizer.param_groups[0]["lr"], counts["evaluations"])
        schedule.step()
        ema.update_parameters(engine.module)
        if step % 3 == 1:
            with torch.no_grad():  # in training's mode: dropout draws
                engine(batch)
            counts["evaluations"] += 1


def ranged(job):
    """A loop over a range; its sampler is told the epoch, its schedule is found by itself."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = initialize(model=model, optimizer=optimizer, config=settings(optimizer={}))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    sampler = DistributedSampler(Noisy())
    loader = DataLoader(Noisy(), batch_size=5, sampler=sampler)

    def told():
        while True:
            yield from loader
            sampler.set_epoch(sampler.epoch + 1)

    protected = job.protect(engine)
    batches = told()
    for _step in range(protected.step, STEPS):
        loss = engine(next(batches)).square().mean()
        job.update(engine, loss, optimizer.param_groups[0]["lr"])
        schedule.step()


def growing(job):
    """Right after the third update, an update gets two micro-batches."""
    model = network()
    engine, *_ = initialize(model=model, model_parameters=[*model.parameters()], config=settings())
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    protected = job.protect(engine, data=loader)
    batches = endless(loader)
    for step in protected.steps(STEPS):
        while engine.global_steps == step:
            loss = engine(next(batches)).square().mean()
            engine.backward(loss)
            engine.step()
            job.note(step + 1, loss.detach())
        if engine.global_steps == 3:
            engine.set_train_batch_size(2 * engine.train_batch_size())


def beside(job):
    """Averages and a second model that are not handed over, and a teacher that stands still."""
    model = network()
    teacher = network().requires_grad_(False)
    engine, *_ = initialize(model=model, model_parameters=[*model.parameters()], config=settings())
    ema = AveragedModel(engine.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    critic = nn.Bilinear(6, 6, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    protected = job.protect(engine)
    for _ in protected.steps(STEPS):
        batch = torch.randn(4, 6)
        critic(batch, batch).sum().backward()
        optimizer.step()
        loss = (engine(batch) - teacher(batch)).square().mean()
        job.update(engine, loss)
        ema.update_parameters(engine.module)


def evaluate(engine, *batches):
    engine.eval()
    with torch.no_grad():
        for batch in batches:
            engine(batch)
    engine.train()


def endless(loader):
    while True:
        yield from loader


LOOPS = {loop.__name__: loop for loop in (prefetching, nested, everything, ranged, growing, beside)}


def loop_of(request):
    """The one that a request names."""
    if request["loop"] in LOOPS:
        return LOOPS[request["loop"]]
    kinds = {
        "again": "again_loops",
        "lightning": "lightning_loops",
        "repeated": "update_loops",
        "report": "report_loops",
        "rewound": "rewind_loops",
        "verified": "verify_loops",
    }
    module = kinds.get(request["loop"].split()[0], "library_loops")
    return importlib.import_module(module).LOOPS[request["loop"]]


def train(request, rank, payload):
    """Run a loop on this rank; gives what it found, and the versions that were to be kept."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3 + rank)
    job = Job(
        wanted=request.get("wanted", ()),
        payload=payload,
        version=request.get("load"),
        folder=Path(request["folder"]) / f"run-{request['number']}",
        case=request.get("case"),
    )
    loop_of(request)(job)
    job.protection.finish()
    return {"losses": job.losses, "remarks": job.remarks, **job.found}, job.keeper.payloads
