"""The hooks around an engine's updates, and a watch for changes of its weights that are none.

An optimizer that is made after `protect`, or weights that the script writes by hand, make no
versions, and a loop over steps would never end. Passes without any change are no fault: gradients
are accumulated, a scaler leaves updates out, an environment is played.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gemini_lab.engine.contract import ZeroEngine
from gemini_lab.engine.frameworks.optimizer_state import local_part
from gemini_lab.errors import UnsupportedError
from gemini_lab.log import events


def next_step_updates(engine: ZeroEngine) -> bool:
    """Return whether the next call of the engine's `step` changes the weights.

    DeepSpeed counts micro-batches by the calls, or is told (as Accelerate does, which calls `step`
    for the last of them alone), or leaves it to the caller: then each call is an update.
    """
    return not engine.managed_gradient_accumulation() or engine.is_gradient_accumulation_boundary()


Hook = TypeVar("Hook", bound=Callable[..., Any])


def uncompiled(hook: Hook) -> Hook:
    """Keep `torch.compile` out of a hook in a model or an optimizer that a script compiles.

    Every hook that we install goes through this. A compiled one would run while it is traced, and
    be traced again with each iteration's number.

    Called after an optimizer was made, which has imported the compiler: that takes a second.
    """
    left: Hook = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return left


class StepHook(Protocol):
    """The hook that training's thread calls in every iteration."""

    @property
    def counts(self) -> bool:
        """Return whether the iteration under way counts, and is not thrown away."""

    @property
    def remarks(self) -> Sequence[str]:
        """Return the remarks to the user, which may explain a later failure."""

    def begin_forward(self) -> None:
        """Begin to compute for an update, or to step; called often in an iteration."""

    def before_update(self) -> float:
        """Prepare for an update of the weights.

        Returns:
            Seconds that training was made to wait here.
        """

    def before_writing(self) -> None:
        """Prepare for a write that changes no weight: this is no update."""

    def after_update(self, waited_s: float) -> None:
        """Note that the weights, and so the whole of the engine's state, have changed."""


def hook_step(
    engine: ZeroEngine,  # DeepSpeed's
    hook: StepHook,  # whom it calls
    *,
    # Called before an update, once all gradients are there.
    on_boundary: Callable[[], None] = lambda: None,
    on_update: Callable[[], None] = lambda: None,  # called after an update, before the hook is
    afterwards: Callable[[], None] = lambda: None,  # called after an update, when the hook has been
) -> Callable[[], None]:
    """Install the hook around the engine's updates; evaluations and other steps pass unnoticed.

    An evaluation is a forward pass without gradients, or in another mode than training's.

    Returns:
        Takes the hook off again.
    """
    is_pipeline = bool(getattr(engine, "pipeline_parallelism", False))
    # The schedule of a pipeline never calls `step`, but what that ends with, for updates alone.
    name = "_take_model_step" if is_pipeline else "step"
    inner: Callable[..., Any] = getattr(engine, name)
    module = engine.module
    # An evaluation before a version leaves its mode to the start that restores that version.
    modes = {True, module.training}

    @uncompiled
    def begin_forward(*_: object) -> None:
        if torch.is_grad_enabled() and module.training in modes:
            hook.begin_forward()

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal modes
        modes = {module.training}
        hook.begin_forward()  # also where the model is not called as a whole
        is_update = is_pipeline or next_step_updates(engine)
        if is_update:
            on_boundary()
        waited_s = hook.before_update() if is_update else 0.0
        result = inner(*args, **kwargs)
        if is_update:
            on_update()
            hook.after_update(waited_s)
            afterwards()
        return result

    # Before DeepSpeed's own hooks: those already call collectives of the iteration that begins.
    forward = module.register_forward_pre_hook(begin_forward, prepend=True)
    setattr(engine, name, step)

    def unhook() -> None:
        forward.remove()
        setattr(engine, name, inner)

    return unhook


SAID_AFTER: Final = 3
ENDS_AFTER: Final = 30
"""So many changes in a row, without an update of the protected optimizer between them."""
COMPARED_EVERY: Final = 10
"""So many passes in a row without an update: then bytes of the weights are compared. Torch does not
count what a CUDA graph writes that was captured before `protect`, or a write through `.data`."""
UNCOUNTED: Final = (
    "writes that torch does not count (a CUDA graph made before `protect`, or `.data`)"
)
SAMPLED: Final = 32  # weights at most, 16 elements each


class UpdateWatch:
    """Counts changes of the weights that are no update; called by training's thread."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        weights: Iterable[torch.Tensor],
        version: Callable[[], int],
        *,
        emit: Callable[[events.AnyEvent], None] = lambda _: None,
        ends: bool = True,  # whether too many such changes end the run
    ) -> None:
        self._weights = [*weights]
        self._ids = {id(weight) for weight in self._weights}
        self._protected = " and ".join(type(one).__name__ for one in optimizers)
        self._optimizers = {id(one) for one in optimizers}
        self._version, self._emit, self._ends = version, emit, ends
        self._is_on = False  # before training, a rate may be searched for
        self._is_updating = False
        self._is_explained = True  # what has changed since the loop's last top
        self._in_a_row = 0
        self._passes = 0  # since anything was seen to change the weights
        self._sample: list[torch.Tensor] = []
        self._counts: list[int] = []
        self._hook: Any = register_optimizer_step_post_hook(uncompiled(self._see))

    def begin_update(self) -> None:
        """Count what other optimizers do from here on as a part of the protected one's update."""
        self._is_on = self._is_updating = True

    def end_update(self) -> None:
        self._is_updating, self._is_explained = False, True
        self._in_a_row = 0

    def reach_top(self) -> None:
        """Compare the weights' counts of writes, at the top of the script's loop.

        Raises:
            UnsupportedError: The weights have changed too often without an update.
        """
        self._is_on, counts = True, self._count()
        if not self._is_explained and counts != self._counts:
            self._note("the script itself")
            self._is_explained = True
        self._passes = 0 if self._is_explained else self._passes + 1
        if self._passes and self._passes % COMPARED_EVERY == 0:
            self._compare()
        self._counts, self._is_explained = counts, False
        if self._ends and self._in_a_row >= ENDS_AFTER:
            raise UnsupportedError(
                f"the weights have changed {self._in_a_row} times in a row without an update of "
                f"the {self._protected} that `protect` was given: the newest version is "
                f"{self._version()}, and protected.steps would never end; give `protect` the "
                "optimizer that trains, and make no other one for its weights afterwards; "
                'where two train the same in turn, have "on_unkept_updates": "warn"'
            )

    def begin_anew(self) -> None:
        """Begin to count again: a version was put back at the loop's top."""
        self._counts, self._is_explained, self._in_a_row = self._count(), False, 0
        self._passes = 0

    def close(self) -> None:
        self._hook.remove()

    def _see(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if not self._is_on or self._is_updating or id(optimizer) in self._optimizers:
            return
        groups = optimizer.param_groups
        if any(id(weight) in self._ids for group in groups for weight in group["params"]):
            self._is_explained = True  # by this
            self._note(f"another {type(optimizer).__name__}")

    def _compare(self) -> None:
        """Note whether sampled bytes of the weights have changed since the last call in a row."""
        before, self._sample = self._sample, []
        for weight in self._weights[:: -(-len(self._weights) // SAMPLED) or 1]:
            part = local_part(weight).reshape(-1)
            middle = part[part.numel() // 2 :][:16].clone()
            self._sample.append(middle.view(torch.uint8))  # NaN differs from itself
        if self._passes > COMPARED_EVERY and not all(map(torch.equal, before, self._sample)):
            self._note(UNCOUNTED, COMPARED_EVERY)

    def _note(self, by: str, changes: int = 1) -> None:
        before, self._in_a_row = self._in_a_row, self._in_a_row + changes
        if before < SAID_AFTER <= self._in_a_row:
            event = events.UpdatesUnkept(
                version=self._version(), by=by, optimizer=self._protected, ends=self._ends
            )
            warnings.warn(f"gemini_lab: {event}", stacklevel=2)
            self._emit(event)

    def _count(self) -> list[int]:
        """Return how often torch has seen each of the weights written."""
        # torch has no public name for the count of writes, by which autograd finds stale tensors.
        return [0 if one.is_inference() else one._version for one in self._weights]  # noqa: SLF001
