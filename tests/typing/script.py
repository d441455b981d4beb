"""The README's training script as a type checker reads it; nothing here runs."""

import deepspeed
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

import gemini_lab
from gemini_lab.engine.contract import Protected, Stateful, ZeroEngine


def script(model: nn.Module, loader: Stateful, *, steps: int) -> None:
    """The README's training script."""
    engine, *_ = deepspeed.initialize(model=model, config="ds_config.json")
    protected = gemini_lab.protect(engine, data=loader)
    for step in protected.steps(steps):
        loss = engine(step)
        engine.backward(loss)
        protected.log(loss=loss.item())
        engine.step()


def script_with_small_state(engine: ZeroEngine, loaders: list[Stateful]) -> Protected:
    """State of the script's own, of any type, and several sources of data."""
    best = {"loss": 3.5}
    return gemini_lab.protect(engine, data=loaders, client_state=best)


def script_in_plain_pytorch(model: nn.Module, loader: DataLoader[torch.Tensor]) -> None:
    """The README's other script."""
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    protected = gemini_lab.protect(
        model=model, optimizer=optimizer, scheduler=scheduler, data=loader, settings={"replicas": 2}
    )
    batches = iter(loader)
    for _ in protected.steps(9):
        loss = model(next(batches)).sum()
        loss.backward()
        optimizer.step()


class Loader:
    """A position in the data of one's own making."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        """The position."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go there."""
        self.position = state["position"]


def script_with_what_torch_has(engine: ZeroEngine, loader: DataLoader[int]) -> int:
    """A plain loader, generators, averaged weights; epochs, and a loop of the script's own."""
    average, counts = nn.Linear(1, 1), {"seen": 0}
    here, there = torch.Generator(), np.random.default_rng(1)
    protected = gemini_lab.protect(
        engine,
        data=loader,
        also={"here": here, "there": there, "average": average, "counts": counts},
    )
    for epoch in protected.epochs(3):
        protected.log(epoch=epoch)
    return sum(range(protected.step, 9))


def script_with_its_own_loader(engine: ZeroEngine) -> int:
    """No base class is asked for."""
    protected: Protected = gemini_lab.protect(engine, data=Loader())
    return protected.step


def wrong_uses(engine: ZeroEngine, loader: Loader) -> None:
    """Each line is an error to the checker; were it none, it would say that the mark is unused."""
    gemini_lab.protect("engine")  # type: ignore[arg-type]
    gemini_lab.protect(engine, data=[1, 2])  # type: ignore[list-item]
    gemini_lab.protect(engine, loader)  # type: ignore[call-arg, arg-type]
    protected = gemini_lab.protect(engine)
    protected.log(loss="much")  # type: ignore[arg-type]
    protected.step = 3  # type: ignore[misc]
    protected.steps("all")  # type: ignore[arg-type]
    gemini_lab.protect(engine, also=[loader])  # type: ignore[arg-type]
