"""Loops that go back: some batches make no numbers, and a run without them is to be equalled."""

import torch
import torch.distributed as dist
from deepspeed import initialize
from keeper import SlabKeeper
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.rewinding import encode_order
from gemini_lab.log.events import Rewound
from gemini_lab.recovery.guard import Guard
from gemini_lab.recovery.messages import GoBack

STEPS = 9
EPOCH = 24  # batches


class Listed(Dataset):
    """Batches by number, but those left out; the bad ones hold NaN."""

    def __init__(self, *, bad, without):
        self.numbers = [n for n in range(EPOCH + len(without)) if n not in without]
        self.bad = bad

    def __len__(self):
        return EPOCH

    def __getitem__(self, index):
        number = self.numbers[index]
        drawn = torch.Generator().manual_seed(100 * number + dist.get_rank())
        batch = torch.randn(4, 6, generator=drawn)
        return batch * float("nan") if number in self.bad else batch


def network(*, is_half=False):
    norm = nn.LayerNorm(13) if is_half else nn.BatchNorm1d(13)
    return nn.Sequential(nn.Linear(6, 13), norm, nn.ReLU(), nn.Dropout(0.3), nn.Linear(13, 1))


class Zero:
    """A DeepSpeed engine with a schedule, over some micro-batches."""

    def __init__(self, *, stage, accumulation, config):
        model = network(is_half=bool(config))
        self.engine, *_ = initialize(
            model=model,
            model_parameters=[*model.parameters()],
            config={
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": accumulation,
                "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20},
                "zero_force_ds_cpu_optimizer": False,
                "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
                "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}},
                **config,
            },
        )
        self.protected_one = self.engine
        self.accumulation = accumulation
        self.also = {}

    def update(self, batches, log):
        for _ in range(self.accumulation):
            batch = next(batches).to(next(self.engine.parameters()).dtype)
            loss = self.engine(batch).float().square().mean()
            self.engine.backward(loss)
            log(loss=loss.item())
            self.engine.step()
        return loss.detach()

    def rate(self):
        return self.engine.get_lr()[0]


class Torch:
    """A model under DDP or FSDP2, with a schedule of the script's."""

    def __init__(self, *, parallel):
        self.model = model = network()
        if parallel == "DDP":
            self.model = DistributedDataParallel(model)
        elif parallel == "FSDP2":
            fully_shard(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.protected_one = TorchEngine(self.model, self.optimizer)
        self.also = {"schedule": self.schedule}

    def update(self, batches, log):
        loss = self.model(next(batches)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        log(loss=loss.item())
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def rate(self):
        return self.schedule.get_last_lr()[0]


def engine_of(case):
    name, _, number = case["engine"].partition("-")
    if name != "ZeRO":
        return Torch(parallel=name)
    config = case.get("config", {})
    return Zero(stage=int(number), accumulation=case.get("accumulation", 1), config=config)


def rewound(job):
    """A loop that goes back as its case says: by a guard, by itself, or to do the same again."""
    case = job.case
    made = engine_of(case)
    guard = None
    if case["how"] == "guard":
        guard = Guard(rejects_not_finite=True, most_deviations=None)
    job.keeper = SlabKeeper(buffers=case.get("keep", 2) + 1)
    loader = DataLoader(
        Listed(bad=case.get("bad", ()), without=case.get("without", ())), batch_size=None
    )
    seen = {"passes": 0}
    protected = job.protect(
        made.protected_one, data=loader, client_state=seen, also=made.also, guard=guard
    )
    batches = iter(loader)
    passes = 0
    for step in protected.steps(STEPS):
        passes += 1
        seen["passes"] += 1
        loss = made.update(batches, protected.log)
        job.note(step + 1, loss, made.rate(), seen["passes"], torch.rand(()))
        if case["how"] == "script" and any_rank(not loss.isfinite()):
            protected.rewind(1)
        if case["how"] == "person" and passes == 5:
            order = GoBack(epoch=1, number=1, steps=case["steps"], skip=True)
            job.keeper.agreed_back = encode_order(order)  # as the others tell with version 5
        if case["how"] == "return" and passes == 6:
            protected.rewind(2, skip=False)
    job.found["passes"] = passes
    went = [one for one in job.rewinds if isinstance(one, Rewound)]
    job.found["rewinds"] = [[one.iteration, one.version] for one in went]
    job.found["refusals"] = [one.cause for one in job.rewinds if one not in went]


def any_rank(is_so):
    flag = torch.tensor(int(is_so))
    dist.all_reduce(flag)
    return bool(flag)


LOOPS = {"rewound": rewound}
