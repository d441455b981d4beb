"""What `protect` is given and what it gives, as far as either side relies on it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn


class ZeroEngine(Protocol):
    """What `deepspeed.initialize` returns first, under ZeRO stage 1, 2 or 3."""

    @property
    def module(self) -> nn.Module:
        """The model."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def global_rank(self) -> int:
        """This process's rank."""

    @property
    def global_steps(self) -> int:
        """Optimizer steps done so far."""

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next `step` updates the weights."""

    def step(self) -> object:
        """Take part in an optimizer step, after `backward`."""


class Stateful(Protocol):
    """What holds a position in the data, such as torchdata's StatefulDataLoader."""

    def state_dict(self) -> Mapping[str, object]:
        """The position."""

    def load_state_dict(self, state: dict[str, Any], /) -> object:
        """Go to a position that `state_dict` gave."""


class Protected(Protocol):
    """What `protect` returns."""

    @property
    def step(self) -> int:
        """Iterations that were done when `protect` returned: 0, or the version that it restored."""

    def log(self, **values: float) -> None:
        """Attach values, such as the loss, to the iteration that is computed, or was just done.

        Called before `engine.step()`, they are also kept in the version, and a node that dies takes
        none of them along.
        """

    def pause(self, reason: str) -> AbstractContextManager[None]:
        """Say that this rank does long work of its own inside the `with` block.

        A worker that stands still for too long counts as hung and is started anew. Work between
        steps, such as an evaluation, has `idle_s` for each of its silences; inside this block any
        time is right, for this rank and for those that wait for it.

        Args:
            reason: What it does, for people: `with protected.pause("evaluation"):`.
        """
