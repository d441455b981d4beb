"""Stages of torch.distributed.pipelining: their first pass is a trial, and no training.

A schedule calls each stage once before its first step, to learn the shapes of what it sends. torch
puts its own generator back afterwards, but neither buffers, such as a batch norm's, nor Python's
and NumPy's generators. A run that never failed makes that pass in its first iteration. So a process
that starts again, and makes it in another one, has to take its traces back.
"""

import functools
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from weakref import WeakSet

import torch
from torch import nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.parallel import DistributedDataParallel

from gemini_lab.engine.made_objects import made_objects
from gemini_lab.engine.private_names import require
from gemini_lab.engine.random_states import random_states, restore_random_states

_MODULE: Final = "torch.distributed.pipelining.stage"
_TRIAL: Final = "_forward_metadata_inference"
"""How torch calls that pass; it has no public name, and no hook of its own."""
_followed = WeakSet["StageTrials"]()
_under_way: list[Any] = []


def is_trial() -> bool:
    """Return whether a stage is called to learn shapes, on whichever thread."""
    return bool(_under_way)


class StageTrials:
    """The trial passes of one rank's models.

    A trial has a mode: whether it has a backward pass. A schedule makes another trial when it turns
    from training to evaluation, or back.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._made: list[bool | None] = [None] * len(models)  # the mode of the last trial here
        self._known: list[bool | None] = [None] * len(models)  # of a run that never failed
        self._parts = [{id(part) for part in model.modules()} for model in models]
        self._models = models
        module = sys.modules.get(_MODULE)
        if module is not None:
            _follow(module.PipelineStage)
            _followed.add(self)

    @property
    def stages(self) -> list[int]:
        """Return the numbers of the stages that the models are, as far as they were made by now."""
        kind: Any = getattr(sys.modules.get(_MODULE), "_PipelineStageBase", ())
        made: list[Any] = [one for one in made_objects() if isinstance(one, kind)]
        own = (stage for stage in made if self.number_of(stage.submod) is not None)
        return sorted({int(stage.stage_index) for stage in own})

    def capture(self) -> list[bool | None]:
        """Return the mode of each model's last trial; `None` if there was none."""
        return [
            made if known is None else known
            for made, known in zip(self._made, self._known, strict=True)
        ]

    def restore(self, modes: Sequence[bool | None]) -> None:
        """Expect trials that the run of a version had made, and this process has not.

        Args:
            modes: What `capture` gave; empty for a version that tells of none, as one cut anew.
        """
        modes = modes or [None] * len(self._made)
        self._known = [
            None if mode is made else mode for mode, made in zip(modes, self._made, strict=True)
        ]

    def number_of(self, stage: nn.Module) -> int | None:
        """Return which of the models a stage calls, or is a part of."""
        called = {id(part) for part in stage.modules()}
        found = (n for n, own in enumerate(self._parts) if not own.isdisjoint(called))
        return next(found, None)

    @contextmanager
    def within(self, number: int, *, has_backward: bool) -> Iterator[None]:
        """Run a trial in the block; it leaves no trace if a run that never failed makes none."""
        is_repeated = self._known[number] is has_backward
        self._made[number], self._known[number] = has_backward, None
        if not is_repeated:
            yield
            return
        random = random_states()
        buffers = [(one, one.detach().clone()) for one in self._models[number].buffers()]
        ddps = [p for p in self._models[number].modules() if isinstance(p, DistributedDataParallel)]
        syncs = [ddp.require_forward_param_sync for ddp in ddps]
        with ExitStack() as held:
            for ddp in ddps:
                # Else DDP expects gradients after it, and sums those of the first micro-batch.
                held.enter_context(ddp.no_sync())
            yield
        for ddp, does in zip(ddps, syncs, strict=True):
            ddp.require_forward_param_sync = does
        for buffer, before in buffers:
            # The trial's backward pass, which follows, needs no buffer's value, but no new count.
            with torch.no_grad(), _unsafe_preserve_version_counter(buffer):
                buffer.copy_(before)
        restore_random_states(random)


def _follow(kind: Any) -> None:
    """Wrap the trial pass of a class of stages, once."""
    require(kind, _TRIAL, package="torch")
    inner = getattr(kind, _TRIAL)
    if hasattr(inner, "__wrapped__"):
        return
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def trial(stage: Any, *args: Any, **named: Any) -> Any:
        has_backward = bool(signature.bind(stage, *args, **named).arguments.get("has_backward"))
        _under_way.append(stage)
        try:
            for trials in [*_followed]:
                number = trials.number_of(stage.submod)
                if number is not None:
                    with trials.within(number, has_backward=has_backward):
                        return inner(stage, *args, **named)
            return inner(stage, *args, **named)
        finally:
            _under_way.pop()

    setattr(kind, _TRIAL, trial)
