"""The hook in an engine's step: what is done before an update changes the state, and after it."""

from collections.abc import Callable
from typing import Any, Protocol

from gemini_lab.engine.contract import ZeroEngine


class StepHook(Protocol):
    """What is called on training's thread, in every iteration."""

    def begin_forward(self) -> None:
        """The model begins to compute; once a micro-batch."""

    def before_update(self) -> float:
        """The weights are about to change.

        Returns:
            Seconds that training was made to wait here.
        """

    def after_update(self, waited_s: float) -> None:
        """The weights have changed, and with them the engine's state as a whole."""


def hook_step(engine: ZeroEngine, hook: StepHook) -> Callable[[], None]:
    """Have the engine's `step` call the hook around updates; other micro-batches pass unnoticed.

    Returns:
        Takes the hook off again.
    """
    inner: Callable[..., Any] = engine.step

    def step(*args: Any, **kwargs: Any) -> Any:
        is_update = engine.is_gradient_accumulation_boundary()  # the step itself goes on from it
        waited_s = hook.before_update() if is_update else 0.0
        result = inner(*args, **kwargs)
        if is_update:
            hook.after_update(waited_s)
        return result

    forward = engine.module.register_forward_pre_hook(lambda *_: hook.begin_forward())
    engine.step = step  # type: ignore[method-assign]

    def unhook() -> None:
        forward.remove()
        engine.step = inner  # type: ignore[method-assign]

    return unhook
