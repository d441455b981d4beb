"""The contract of `protect`: what it takes and returns, as far as either side relies on it."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

StateDict = dict[str, Any]
"""State by name, as `state_dict` methods give it: plain values, tensors, containers of these."""
StateView = Mapping[str, Any]
"""The same, only read."""


class Engine(Protocol):
    """A model that is trained, whoever drives it."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def global_rank(self) -> int: ...

    @property
    def global_steps(self) -> int: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    @property
    def lr_scheduler(self) -> object | None:
        """The schedule that the engine steps itself."""

    @property
    def training_dataloader(self) -> object | None:
        """The loader that the engine made itself."""


class ZeroEngine(Engine, Protocol):
    """The engine that `deepspeed.initialize` returns, under ZeRO stage 1, 2 or 3."""

    def is_gradient_accumulation_boundary(self) -> bool:
        """Return whether the next `step` updates the weights, if DeepSpeed manages accumulation."""

    def managed_gradient_accumulation(self) -> bool:
        """Return whether it does; otherwise each `step` updates them."""

    def step(self) -> object: ...


class Stateful(Protocol):
    """An object with a state of its own, such as a StatefulDataLoader or averaged weights."""

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state: StateDict, /) -> object: ...


@runtime_checkable
class Resharding(Protocol):
    """A data source that can give its position for another world size."""

    def reshard_state_dict(
        self, states: Sequence[StateView], *, rank: int, world_size: int
    ) -> StateView:
        """Return the argument of `load_state_dict` for one rank of a world size.

        Args:
            states: What `state_dict` gave on each of the ranks that there were.
            rank: This one.
            world_size: How many there are now.
        """


Source = Stateful | DataLoader[object]
"""What holds the position in the data."""
Keepable = (
    Stateful
    | torch.Generator
    | np.random.Generator
    | np.random.RandomState
    | random.Random
    | Mapping[str, object]
)
"""What can travel with every version by a name of its own; a mapping must be a dict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldChange:
    """That a version was loaded which another number of ranks had made."""

    ranks_then: int
    ranks_now: int


class Protected(Protocol):
    """The handle that `protect` returns."""

    @property
    def world_changed(self) -> WorldChange | None:
        """Return whether this start goes on from a version of another number of ranks; None if not.

        Then the global batch is what the script makes of it: DeepSpeed's stays what it was where
        `train_batch_size` is given, and micro-batches are dealt to the ranks there are.
        """

    @property
    def step(self) -> int:
        """Return the number of iterations that were done when `protect` returned.

        The version that was restored, or those of a checkpoint that the script loaded itself.
        """

    def steps(self, total: int, /) -> Iterator[int]:
        """Run the script's loop, `for step in protected.steps(total)`, until so many are done.

        It gives the number of steps done so far. At its top one iteration ends and the next
        begins: what the script did before is in the version, what follows is done again after a
        failure. So schedules, averages, counters, evaluations and random numbers count wherever
        they stand in the loop, and none counts twice.

        A script may have several loops, also one in another. What it does before the one that made
        the restored version leaves no trace: `gemini_lab.engine.script_loops` has the rules.
        """

    def epochs(self, total: int, /) -> Iterator[int]:
        """Run the outer of two loops: `for epoch in protected.epochs(total)`.

        The inner one is `for batch in loader`, over the first of `data`. It gives the epoch's
        number from 0, and after a failure the epoch that was under way; the loader goes on in it.
        An iteration ends when the loader is asked for the next batch, and an epoch's last one when
        the next epoch asks for its first: an evaluation in between is done again with it.
        """

    def log(self, **values: float) -> None:
        """Attach values, such as the loss, to the iteration that is computed, or was just done.

        Called before the optimizer's step, they are also kept in the version, and a node that dies
        takes none of them along.
        """

    def rewind(self, steps: int, *, skip: bool = True) -> None:
        """Take training back, when its loop comes to the top, without a restart.

        Every rank calls it in the same pass, with the same numbers: after the optimizer's step, or
        in plain PyTorch also in its place. All that a version keeps is as it was: model, optimizer,
        schedule, random states, `client_state`, `also`. The pass that follows is that of the
        earlier iteration, and `protected.steps` gives its number.

        Args:
            steps: How many of the iterations that are done by now are taken back. Where not every
                version is kept, it may be more: see `keep_in_memory`.
            skip: Whether data go on: what was read since does not come again. Otherwise the same
                batches follow, as far as the loaders are still in the epoch in which they were.

        Raises:
            UnsupportedError: It is no loop over `protected.steps` or `protected.epochs`.
            ConfigError: Fewer iterations are done.
        """

    def pause(self, reason: str) -> AbstractContextManager[None]:
        """Say that this rank does long work of its own inside the `with` block.

        A worker that stands still for too long counts as hung and is started anew. Work between
        steps, such as an evaluation, has `idle_s` for each of its silences; inside this block any
        time is right, for this rank and for those that wait for it.

        Args:
            reason: What it does, for people: `with protected.pause("evaluation"):`.
        """
