"""Training loops with habits that a recovery could get wrong, each as people write it.

    gemini-lab check tests/cluster/habits.py NAME          # as it is found in scripts
    gemini-lab check tests/cluster/habits.py NAME told     # with what is missing handed over

docs/evidence/tried.md has the verdict on each; test_habits.py asks for all of them again.
"""

import copy
import random
import sys
import tempfile

import deepspeed
import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import gemini_lab

STEPS = 100_000  # a check ends the run long before
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": 1},
    "steps_per_print": STEPS,
}


class Samples(Dataset):
    """The same each time."""

    def __init__(self, size=40):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.sin(torch.arange(6.0) * (index + 1))


def network():
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))


def start(model=None, optimizer=None, **more):
    """An engine, with the same weights on all ranks and other random numbers on each."""
    deepspeed.init_distributed(verbose=False)
    torch.manual_seed(1)
    model = network() if model is None else model
    config = CONFIG if optimizer is None else {**CONFIG, "optimizer": None}
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[*model.parameters()],
        optimizer=optimizer,
        config={name: value for name, value in config.items() if value is not None},
        **more,
    )
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(2 + engine.global_rank)
    return engine


def train(engine, protected, batch, beside=()):
    """An iteration; of what stands beside the model it says where that is."""
    loss = engine(batch).square().mean()
    engine.backward(loss)
    norms = {"norm beside": norm(beside)} if beside else {}
    protected.log(loss=loss.item(), **norms)
    engine.step()


def norm(tensors):
    """As a number that is another one when a bit of them is, more often than not."""
    return sum(tensor.detach().double().square().sum().item() for tensor in tensors)


def loop(protected, *, told):
    """As the guide says, or over a range."""
    return protected.steps(STEPS) if told else range(protected.step, STEPS)


def endless(loader):
    while True:
        yield from loader


# -- batches ---------------------------------------------------------------------------------------


def prefetched(told):
    """As nanoGPT: the next batch is drawn before `backward`."""
    engine = start()
    ahead = {"batch": torch.randn(4, 6)}
    protected = gemini_lab.protect(engine, client_state=ahead if told else None)
    for _ in loop(protected, told=told):
        loss = engine(ahead["batch"]).square().mean()
        ahead["batch"] = torch.randn(4, 6)
        engine.backward(loss)
        protected.log(loss=loss.item())
        engine.step()


def shuffled(told):
    """A DataLoader that nobody named."""
    engine = start()
    loader = DataLoader(Samples(), batch_size=4, shuffle=True)
    protected = gemini_lab.protect(engine, data=loader if told else None)
    batches = endless(loader)
    for _ in protected.steps(STEPS):
        train(engine, protected, next(batches))


def sampled(told):
    """A DistributedSampler that hears of each epoch, in a loader that nobody named."""
    engine = start()
    loader = DataLoader(Samples(), batch_size=4, sampler=DistributedSampler(Samples()))

    def epochs():
        while True:
            yield from loader
            loader.sampler.set_epoch(loader.sampler.epoch + 1)

    protected = gemini_lab.protect(engine, data=loader if told else None)
    batches = epochs()
    for _ in protected.steps(STEPS):
        train(engine, protected, next(batches))


def training_data(told):
    """DeepSpeed's own loader, which nobody named."""
    engine = start(training_data=Samples())
    protected = gemini_lab.protect(engine, data=engine.training_dataloader if told else None)
    for _ in protected.epochs(STEPS) if told else range(STEPS):
        for batch in engine.training_dataloader:
            train(engine, protected, batch)


def early_iterator(told):
    """A loader's iterator that was made before `protect`."""
    engine = start()
    loader = DataLoader(Samples(4 * STEPS), batch_size=4, shuffle=True)
    early = iter(loader)
    protected = gemini_lab.protect(engine, data=loader)
    batches = iter(loader) if told else early
    for _ in protected.steps(STEPS):
        train(engine, protected, next(batches))


def early_stateful(told):
    """The same of a StatefulDataLoader."""
    engine = start()
    loader = StatefulDataLoader(Samples(4 * STEPS), batch_size=4, shuffle=True)
    early = None if told else iter(loader)
    protected = gemini_lab.protect(engine, data=loader)
    batches = iter(loader) if told else early
    for _ in protected.steps(STEPS):
        train(engine, protected, next(batches))


def left_of(loader, done):
    return (batch for number, batch in enumerate(loader) if number >= done)


def skipped_by_hand(told):
    """What was done is skipped by the script itself; the model has dropout."""
    engine = start()
    loader = DataLoader(Samples(4 * STEPS), batch_size=4)
    protected = gemini_lab.protect(engine, data=loader if told else ())
    for _ in protected.epochs(1) if told else range(1):
        for batch in loader if told else left_of(loader, protected.step):
            train(engine, protected, batch)


def skipped_twice(told):
    """The same, but the loader was found and is at its place already."""
    engine = start()
    loader = DataLoader(Samples(4 * STEPS), batch_size=4)
    protected = gemini_lab.protect(engine)
    for _ in protected.epochs(1) if told else range(1):
        for batch in loader if told else left_of(loader, protected.step):
            train(engine, protected, batch)


def counted_from(place, loader):
    for batch in loader:
        yield place["batch"], batch
        place["batch"] += 1


def enumerated(told):
    """A learning rate by the place in the epoch, which `enumerate` counts."""
    engine = start()
    loader, place = DataLoader(Samples(2 * STEPS), batch_size=4), {"batch": 0}
    protected = gemini_lab.protect(engine, data=loader, client_state=place if told else None)
    for _ in protected.epochs(2):
        place["batch"] = 0
        for number, batch in counted_from(place, loader) if told else enumerate(loader):
            engine.optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)
            train(engine, protected, batch)


# -- generators ------------------------------------------------------------------------------------


def torch_generator(told):
    """A generator of torch's of the script's own."""
    engine = start()
    own = torch.Generator().manual_seed(engine.global_rank)
    protected = gemini_lab.protect(engine, also={"rng": own} if told else None)
    for _ in protected.steps(STEPS):
        train(engine, protected, torch.randn(4, 6, generator=own))


def numpy_generator(told):
    """One of NumPy's."""
    engine = start()
    own = np.random.default_rng(engine.global_rank)
    protected = gemini_lab.protect(engine, also={"rng": own} if told else None)
    for _ in protected.steps(STEPS):
        train(engine, protected, torch.from_numpy(own.random((4, 6), dtype=np.float32)))


def evaluated(told):
    """An evaluation after the step that draws random numbers."""
    engine = start()
    protected = gemini_lab.protect(engine)
    for _ in loop(protected, told=told):
        train(engine, protected, torch.randn(4, 6))
        with torch.no_grad():
            engine(torch.randn(4, 6))


# -- what is made of updates -----------------------------------------------------------------------


def schedule(told):
    """A schedule that the script steps and nobody named."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine = start(model, optimizer)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    protected = gemini_lab.protect(engine, also={"decay": decay} if told else None)
    for _ in protected.steps(STEPS):
        train(engine, protected, torch.randn(4, 6))
        decay.step()


def schedules(told):
    """Two of them."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine = start(model, optimizer)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=30)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    also = {"rise": rise, "decay": decay} if told else None
    protected = gemini_lab.protect(engine, also=also)
    for _ in protected.steps(STEPS):
        train(engine, protected, torch.randn(4, 6))
        rise.step()
        decay.step()


def averaged(told):
    """Weights averaged by torch's AveragedModel, which no loss looks at."""
    engine = start()
    ema = AveragedModel(engine.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    protected = gemini_lab.protect(engine, also={"ema": ema} if told else None)
    for _ in protected.steps(STEPS):
        train(engine, protected, torch.randn(4, 6), [*ema.parameters()] if told else [])
        ema.update_parameters(engine.module)


def averaged_by_hand(told):
    """The same over a deep copy, through `.data`, as many repositories do."""
    engine = start()
    ema = copy.deepcopy(engine.module).requires_grad_(False)
    protected = gemini_lab.protect(engine, also={"ema": ema} if told else None)
    for _ in protected.steps(STEPS):
        train(engine, protected, torch.randn(4, 6), [*ema.parameters()] if told else [])
        for mean, weight in zip(ema.parameters(), engine.module.parameters(), strict=True):
            mean.data.mul_(0.9).add_(weight.data, alpha=0.1)


def averaged_in_a_dict(told):
    """The same in a dictionary of tensors."""
    engine = start()
    ema = {name: weight.detach().clone() for name, weight in engine.module.named_parameters()}
    protected = gemini_lab.protect(engine, also={"ema": ema} if told else None)
    for _ in protected.steps(STEPS):
        train(engine, protected, torch.randn(4, 6), [*ema.values()] if told else [])
        for name, weight in engine.module.named_parameters():
            ema[name].mul_(0.9).add_(weight.detach(), alpha=0.1)


class Student(nn.Module):
    """Learns from an average of itself, which is a part of the model."""

    def __init__(self):
        super().__init__()
        self.student = network()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, batch):
        return self.student(batch) - self.teacher(batch) + 1.0

    def average(self):
        for mean, weight in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mean.data.mul_(0.9).add_(weight.data, alpha=0.1)


def teacher(told):
    """Frozen weights of the model that the script changes."""
    model = Student()
    engine = start(model)
    protected = gemini_lab.protect(engine, also={"teacher": model.teacher} if told else None)
    for _ in protected.steps(STEPS):
        train(engine, protected, torch.randn(4, 6))
        model.average()


# -- others that train -----------------------------------------------------------------------------


def second_engine(told):
    """As in a GAN: another engine trains; told, both models are parts of one."""
    pair = nn.ModuleDict({"generator": network(), "critic": network()})
    engine = start(pair if told else pair["generator"])
    other = None if told else start(pair["critic"])
    protected = gemini_lab.protect(engine)
    for _ in protected.steps(STEPS):
        batch = torch.randn(4, 6)
        critic = pair["critic"] if told else other
        loss = critic(batch).square().mean() + pair["generator"](batch).square().mean()
        protected.log(loss=loss.item())
        if other is not None:
            other.backward(other(batch).square().mean())
            other.step()
            loss = engine(batch).square().mean()
        engine.backward(loss)
        engine.step()


def second_protect(_told):
    """Each of two engines is given to `protect`."""
    engines = start(), start()
    for engine in engines:
        gemini_lab.protect(engine)


def second_model(told):
    """Another model and its torch optimizer, which no logged loss looks at."""
    engine = start()
    critic = network()
    optimizer = torch.optim.AdamW(critic.parameters(), lr=0.01)
    named = {"critic": critic, "its optimizer": optimizer} if told else None
    protected = gemini_lab.protect(engine, also=named)
    for _ in protected.steps(STEPS):
        batch = torch.randn(4, 6)
        critic(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        train(engine, protected, batch, [*critic.parameters()] if told else [])


# -- the loop --------------------------------------------------------------------------------------


def from_zero(told):
    """`range(N)` where `range(protected.step, N)` is meant."""
    engine = start()
    protected = gemini_lab.protect(engine)
    for _ in protected.steps(STEPS) if told else range(STEPS):
        train(engine, protected, torch.randn(4, 6))


def callback(told):
    """A Trainer's callback that counts, and acts on its count."""
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from gemini_lab.adapters.transformers import protect_trainer

    class Scaling(TrainerCallback):
        """Lowers the learning rate with its count."""

        def __init__(self):
            self.steps = 0

        def on_step_end(self, *_, optimizer, **__):
            self.steps += 1
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 / self.steps

    class Telling(Scaling):
        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state):
            self.steps = state["steps"]

    texts = [{"input_ids": torch.arange(8) * n % 50, "labels": torch.arange(8)} for n in range(64)]
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        deepspeed={name: CONFIG[name] for name in CONFIG if "zero" in name}
        | {"train_micro_batch_size_per_gpu": "auto"},
        use_cpu=True,
        per_device_train_batch_size=1,
        max_steps=STEPS,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    config = GPT2Config(
        vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    scaling = Telling() if told else Scaling()
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=texts, callbacks=[scaling])
    protect_trainer(trainer)
    trainer.train()


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    torch.manual_seed(1)  # some habits make their model first, and each process has another seed
    globals()[name](rest == ["told"])
