"""Scripts of several loops, with code around them that runs again on restored state."""

import random
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from loops import Noisy, endless, network
from rewind_loops import engine_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from gemini_lab.engine.frameworks.stepping import UpdateWatch
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.protection import UnprotectedLoops
from gemini_lab.shard.codec import encode


class Alone(UnprotectedLoops):
    """As under plain torchrun."""

    def finish(self):
        pass


class Trained:
    """A model under DDP, or alone, and all that a loop of it needs."""

    def __init__(
        self, job, *, alone=False, loader=DataLoader, kind=torch.optim.AdamW, bare=None, **kept
    ):
        torch.manual_seed(1)
        self.bare = network(nn.BatchNorm1d(12)) if bare is None else bare()
        self.model = self.bare if alone else DistributedDataParallel(self.bare)
        self.optimizer = kind(self.model.parameters(), lr=0.01)
        for draw in (random.seed, np.random.seed, torch.manual_seed):
            draw(7 + dist.get_rank())
        if "also" in kept:
            kept["also"] = kept["also"](self)
        found = kept.pop("data", None)
        self.loader = loader(Noisy(), batch_size=8, shuffle=True) if found is None else found
        self.job, self.said = job, []
        job.found["said"] = self.said
        engine = TorchEngine(self.model, self.optimizer)
        if job.case == "plain":
            self.protected = job.protection = Alone(engine)
        else:
            self.protected = job.protect(engine, data=self.loader, **kept)
        self.engine = engine

    def update(self, batch, *, counts=True):
        loss = self.model(batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if counts:
            rate = self.optimizer.param_groups[0]["lr"]
            self.job.note(self.engine.global_steps, loss.detach(), rate)
        return loss.detach()

    def evaluate(self):
        """It draws, and tells a number: it is of the iteration that ended."""
        with torch.no_grad():
            self.said.append(float(self.model(torch.randn(8, 6)).mean()).hex())

    def begin_phase(self):
        """What is wrong if it is done twice, or on top of a later version."""
        for state in self.optimizer.state.values():
            state["exp_avg"].mul_(-0.5)
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5
        with torch.no_grad():
            self.bare[0].weight.data.add_(0.01)  # as torch does not see it

    def end(self, *tensors):
        tensors = [*tensors, *self.model.state_dict().values()]
        states = [self.optimizer.state[weight] for weight in self.model.parameters()]
        tensors += [one[name] for one in states for name in sorted(one)]
        trains = [weight.requires_grad for weight in self.model.parameters()]
        drawn = [random.random(), float(np.random.rand()), torch.rand(()).item()]  # noqa: NPY002
        state = encode([[one.clone() for one in tensors], trains, drawn])
        self.job.found["end"] = state.hex()


def phases(job):
    """A search for a rate first; a second phase with other momentum, rate and weights."""
    made = Trained(job)
    for _ in range(2):
        made.update(torch.randn(4, 6), counts=False)
    batches = endless(made.loader)
    for _ in made.protected.steps(6):
        made.update(next(batches))
    made.evaluate()
    made.begin_phase()
    for _ in made.protected.steps(10):
        made.update(next(batches))
    made.evaluate()
    made.end()


def frozen(job):
    """The second phase trains the last layer alone; a third one ends early."""
    made = Trained(job, alone=True)
    for _ in made.protected.steps(4):
        made.update(torch.randn(4, 6))
    made.bare[0].requires_grad_(False)
    made.optimizer.state.clear()
    for step in made.protected.steps(20):
        made.update(torch.randn(4, 6))
        if step == 6:
            break
    made.bare[0].requires_grad_(True)
    for _ in made.protected.steps(10):
        made.update(torch.randn(4, 6))
    made.end()


def epochs(job, loader=DataLoader):
    """Each epoch's last loss is told after an evaluation; then come epochs of another phase."""
    made = Trained(job, loader=loader)
    loss = None
    for phase in range(2):
        for epoch in made.protected.epochs(2):
            for batch in made.loader:
                loss = made.update(batch)
            made.evaluate()
            made.said.append([phase, epoch, float(loss).hex()])
        made.begin_phase()
    made.end()


def inner(job):
    """Loops over steps in one over epochs, as many as there are epochs."""
    made = Trained(job)
    batches = endless(made.loader)
    for epoch in made.protected.epochs(3):
        made.begin_phase()
        for _ in made.protected.steps(4 * (epoch + 1)):
            made.update(next(batches))
        made.evaluate()
    made.end()


def peeked(job):
    """It looks at a batch first; its own iterator is made before its loop, and made anew in it."""
    made = Trained(job)
    look = iter(made.loader)
    next(look)
    batches = iter(made.loader)
    for step in made.protected.steps(8):
        if step == 5:
            batches = iter(made.loader)
        made.update(next(batches))
    made.end()


def peeked_at(job):
    """It keeps the iterator of its look; its own is made by its first pass."""
    made = Trained(job)
    look = iter(made.loader)
    next(look)
    batches = endless(made.loader)
    for _ in made.protected.steps(8):
        made.update(next(batches))
    next(look)
    made.end()


def peeked_in_epochs(job):
    """It looks at a batch as each epoch begins."""
    made = Trained(job)
    for _ in made.protected.epochs(2):
        next(iter(made.loader))
        for batch in made.loader:
            made.update(batch)
    made.end()


def stateful_epochs(job):
    """The same with a loader that says its position itself."""
    epochs(job, StatefulDataLoader)


class Sam(torch.optim.AdamW):
    """The guide's, also for weights that are shared out; and as Lightning calls it."""

    @torch.no_grad()
    def step(self, closure=None):
        weights = [one for group in self.param_groups for one in group["params"]]
        if closure is not None:
            before = [one.clone() for one in weights]
            for one in weights:
                one.add_(one.grad, alpha=0.05)
            with torch.enable_grad():
                closure()
            for one, values in zip(weights, before, strict=True):
                one.copy_(values)
        super().step()


class Lookahead:
    """Slow weights around an optimizer, which it has inside of another object."""

    def __init__(self, optimizer):
        self.optimizer, self.done = SimpleNamespace(optimizer=optimizer), 0
        self.weights = [one for group in optimizer.param_groups for one in group["params"]]
        self.slow = [one.detach().clone() for one in self.weights]

    @torch.no_grad()
    def step(self):
        self.optimizer.optimizer.step()
        self.done += 1
        if self.done % 3 == 0:
            for slow, fast in zip(self.slow, self.weights, strict=True):
                fast.copy_(slow.lerp_(fast, 0.5))

    def state_dict(self):
        return {"slow": self.slow, "done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]
        for slow, kept in zip(self.slow, state["slow"], strict=True):
            slow.copy_(kept)


def two_passes(job):
    """Sharpness-aware minimization, whose step computes again."""
    made = Trained(job, kind=Sam)
    batches = endless(made.loader)

    def one_pass(batch):
        made.optimizer.zero_grad()
        loss = made.model(batch).square().mean()
        loss.backward()
        return loss

    for _ in made.protected.steps(10):
        batch = next(batches)
        loss = one_pass(batch)
        made.optimizer.step(lambda: one_pass(batch))  # noqa: B023 - called within the pass
        job.note(made.engine.global_steps, loss.detach())
    made.end()


def slow_weights(job):
    """A lookahead around the optimizer, in two parts."""
    parts = {}

    def also(made):
        parts["lookahead"] = Lookahead(made.optimizer)
        return parts

    made = Trained(job, also=also)
    outer = parts["lookahead"]
    batches = endless(made.loader)
    for _ in made.protected.steps(10):
        loss = made.model(next(batches)).square().mean()
        made.optimizer.zero_grad()
        loss.backward()
        outer.step()
        job.note(made.engine.global_steps, loss.detach(), *(one.norm() for one in outer.slow))
    made.end()


def accumulated(job):
    """Five passes of six make no update; each is followed by an evaluation."""
    made = engine_of({"engine": job.case, "accumulation": 6})
    said = job.found["said"] = []

    def watch(state):
        framework = state.framework
        return UpdateWatch(
            framework.optimizers,
            framework.trained(),
            lambda: state.version,
            emit=lambda event: said.append(str(event)),
        )

    protected = job.protect(made.protected_one, update_watch=watch)
    zero = getattr(made, "engine", None)
    model = made.model if zero is None else zero
    passes = 0
    for _ in protected.steps(4):
        loss = model(torch.randn(4, 6)).square().mean()
        if zero is not None:
            zero.backward(loss)
            zero.step()
        else:
            loss.backward()
            if passes % 6 == 5:
                made.optimizer.step()
                made.optimizer.zero_grad()
        with torch.no_grad():
            model(torch.randn(4, 6))
        passes += 1
    job.found["passes"] = passes


LOOPS = {
    f"again {loop.__name__}": loop
    for loop in (
        *(phases, frozen, epochs, stateful_epochs, inner, peeked, peeked_at, peeked_in_epochs),
        *(accumulated, two_passes, slow_weights),
    )
}
