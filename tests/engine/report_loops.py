"""Loops after what people reported of starts from a checkpoint that went on with other numbers."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from again_loops import Trained
from loops import endless
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

ROWS = torch.sin(torch.arange(40.0)[:, None] * torch.arange(1.0, 7.0)[None])


def run_epochs(made, *, epochs=3):
    for _ in made.protected.epochs(epochs):
        for batch in made.loader:
            made.update(batch["x"] if isinstance(batch, dict) else batch)
    made.end()


def spectral(job):
    """Weights that are made of others, by vectors that each pass refines."""

    def bare():
        first = parametrizations.spectral_norm(nn.Linear(6, 12))
        second = parametrizations.weight_norm(nn.Linear(12, 12))
        return nn.Sequential(first, nn.Tanh(), second, nn.BatchNorm1d(12, momentum=None))

    run_epochs(Trained(job, bare=bare))


def streamed(job, *, buffer=None):
    """A stream that, once loaded, begins each later epoch where it was loaded."""
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"x": ROWS.tolist()}).to_iterable_dataset(num_shards=2)
    stream = (
        stream.with_format("torch")
        if buffer is None
        else stream.with_format("torch").shuffle(seed=7, buffer_size=buffer)
    )
    run_epochs(Trained(job, data=StatefulDataLoader(stream, batch_size=4)))


def buffered(job):
    """A stream whose state leaves its shuffle buffer out."""
    streamed(job, buffer=8)


class Packed(IterableDataset):
    """Rows of several documents each; what does not fit waits in the generator's frame."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        left = []
        while self.at < 40:
            left += [ROWS[self.at]] * (1 + self.at % 3)
            self.at += 1
            while len(left) >= 4:
                yield torch.stack(left[:4])
                left = left[4:]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def packed(job):
    """A stream that packs, and whose state leaves out what waits."""
    run_epochs(Trained(job, data=StatefulDataLoader(Packed(), batch_size=None)), epochs=2)


class Drawn(Sampler):
    """Draws from clusters of samples, by a generator of its own."""

    def __init__(self):
        self.generator_of_clusters = np.random.default_rng(5 + dist.get_rank())

    def __iter__(self):
        for _ in range(20):
            cluster = self.generator_of_clusters.choice(4)
            yield int(10 * cluster + self.generator_of_clusters.integers(10))

    def __len__(self):
        return 20


def clusters(job):
    """A curriculum's sampler, whose own generator makes the order."""
    run_epochs(Trained(job, data=DataLoader(ROWS, batch_size=4, sampler=Drawn())))


class Average(nn.Module):
    """An average that begins quickly: its decay follows a count, which is a plain number."""

    def __init__(self, model):
        super().__init__()
        self.weights = nn.ParameterList([one.detach().clone() for one in model.parameters()])
        self.weights.requires_grad_(False)
        self.updates = 0

    def update(self, model):
        self.updates += 1
        decay = min(0.99, self.updates / (10 + self.updates))
        for one, now in zip(self.weights, model.parameters(), strict=True):
            one.lerp_(now.detach(), 1 - decay)


def counted_average(job):
    """An average in `also` whose count of updates no state_dict says."""
    kept = {}

    def also(made):
        kept["ema"] = Average(made.bare)
        return kept

    made = Trained(job, also=also)
    batches = endless(made.loader)
    for _ in made.protected.steps(12):
        made.update(next(batches))
        kept["ema"].update(made.bare)
    made.end(*kept["ema"].weights)


class Repeated(Sampler):
    """A sampler without an end."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class Infinite(DataLoader):
    """A loader that keeps its workers: one iterator, made with it, gives all epochs."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


def infinite(job, *, workers=0):
    run_epochs(
        Trained(job, loader=lambda data, **more: Infinite(data, num_workers=workers, **more))
    )


def infinite_workers(job):
    infinite(job, workers=1)


def late_schedule(job):
    """The schedule is made after `protect`, of the rate that the optimizer has then."""
    made = Trained(job)
    begun = made.optimizer.param_groups[0]["lr"]
    schedule = torch.optim.lr_scheduler.LambdaLR(made.optimizer, lambda at: 0.1 + begun / (1 + at))
    batches = endless(made.loader)
    for _ in made.protected.steps(12):
        made.update(next(batches))
        schedule.step()
    made.end()


class Narrow(torch.optim.Optimizer):
    """Keeps moments of half the weights' width, to which torch's `load_state_dict` would cast."""

    def __init__(self, weights, lr):
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["moment"] = torch.zeros_like(weight, dtype=torch.bfloat16)
                state["moment"].mul_(0.9).add_(weight.grad)
                weight.sub_(group["lr"] * state["moment"].float())


def narrow_moments(job):
    run_epochs(Trained(job, kind=Narrow))


class Worker:
    """Seeds what workers draw by numpy's generator, as the tutorial has it."""

    def __call__(self, number):
        np.random.seed((torch.initial_seed() + number) % 2**32)  # noqa: NPY002


class Augmented(Dataset):
    """Samples with noise by numpy's generator."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return ROWS[index] + float(np.random.rand())  # noqa: NPY002


def seeded_workers(job):
    """Workers' own numpy generators, seeded for each epoch."""
    loader = DataLoader(
        Augmented(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=Worker()
    )
    run_epochs(Trained(job, data=loader))


def lazy(job):
    """Parts that take their form from the first batch, which is seen before DDP is made."""

    def bare():
        model = nn.Sequential(nn.LazyLinear(12), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(1))
        with torch.no_grad():
            model(ROWS[:8])
        return model

    run_epochs(Trained(job, bare=bare))


def scaled(job):
    """A gradient scaler that leaves an update out, and whose scale grows afterwards."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2)
    made = Trained(job)
    batches = endless(made.loader)
    for _ in made.protected.steps(12):
        loss = made.model(next(batches)).square().mean()
        made.optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(made.optimizer)
        scaler.update()
        made.job.note(made.engine.global_steps, loss.detach(), scaler.get_scale())
    made.end()


LOOPS = {
    f"report {loop.__name__}": loop
    for loop in (
        *(spectral, streamed, buffered, packed, clusters, counted_average, infinite),
        *(infinite_workers, late_schedule, narrow_moments, seeded_workers, lazy, scaled),
    )
}
