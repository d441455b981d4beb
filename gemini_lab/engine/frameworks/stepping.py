"""The hooks in an engine: where an iteration begins to compute, and around its update."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from gemini_lab.engine.contract import ZeroEngine


def next_step_updates(engine: ZeroEngine) -> bool:
    """Whether the next call of the engine's `step` changes the weights.

    DeepSpeed counts micro-batches by the calls, or is told (as Accelerate does, which calls `step`
    for the last of them alone), or leaves it to the caller: then each call is an update.
    """
    return not engine.managed_gradient_accumulation() or engine.is_gradient_accumulation_boundary()


class StepHook(Protocol):
    """The hook that training's thread calls in every iteration."""

    @property
    def counts(self) -> bool:
        """Whether the iteration under way counts, and is not thrown away."""

    @property
    def remarks(self) -> Sequence[str]:
        """Return the remarks to the user, which may explain a later failure."""

    def begin_forward(self) -> None:
        """The model begins to compute for an update, or its step is called; often an iteration."""

    def before_update(self) -> float:
        """The weights are about to change.

        Returns:
            Seconds that training was made to wait here.
        """

    def before_writing(self) -> None:
        """The weights are about to be written, and to stay what they are: this is no update."""

    def after_update(self, waited_s: float) -> None:
        """The weights have changed, and with them the engine's state as a whole."""


def hook_step(
    engine: ZeroEngine,
    hook: StepHook,
    *,
    on_boundary: Callable[[], None] = lambda: None,
    on_update: Callable[[], None] = lambda: None,
) -> Callable[[], None]:
    """Install the hook around the engine's updates; evaluations and other steps pass unnoticed.

    An evaluation is a forward pass without gradients, or in another mode than training's.

    Args:
        engine: DeepSpeed's.
        hook: Whom it calls.
        on_boundary: Called before an update, once all gradients are there.
        on_update: Called after an update, before the hook is.

    Returns:
        Takes the hook off again.
    """
    inner: Callable[..., Any] = engine.step
    module = engine.module
    trains_in_mode = module.training

    def begin_forward(*_: object) -> None:
        if torch.is_grad_enabled() and module.training == trains_in_mode:
            hook.begin_forward()

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal trains_in_mode
        trains_in_mode = module.training
        hook.begin_forward()  # also where the model is not called as a whole
        is_update = next_step_updates(engine)
        if is_update:
            on_boundary()
        waited_s = hook.before_update() if is_update else 0.0
        result = inner(*args, **kwargs)
        if is_update:
            on_update()
            hook.after_update(waited_s)
        return result

    # Before DeepSpeed's own hooks: those already call collectives of the iteration that begins.
    forward = module.register_forward_pre_hook(begin_forward, prepend=True)
    engine.step = step  # type: ignore[method-assign]

    def unhook() -> None:
        forward.remove()
        engine.step = inner  # type: ignore[method-assign]

    return unhook
