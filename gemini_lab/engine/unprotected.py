"""What `protect` gives where there is no lab."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from gemini_lab.engine.arguments import numbers_of, require_rewind, require_total
from gemini_lab.engine.contract import Engine
from gemini_lab.engine.frameworks.torch_engine import TorchEngine
from gemini_lab.engine.update_watch import UpdateWatch
from gemini_lab.errors import UnsupportedError
from gemini_lab.limits import require_text


class Unprotected:
    """The engine runs without a lab: nothing is kept, and loops run as they would with one."""

    world_changed = None

    def __init__(self, engine: Engine) -> None:
        self.step = int(engine.global_steps)
        self._engine = engine
        self._watch: UpdateWatch | None = None
        if isinstance(engine, TorchEngine):
            self._watch = UpdateWatch(
                engine.optimizer,
                [weight for group in engine.optimizer.param_groups for weight in group["params"]],
                lambda: engine.global_steps,
                ends=engine.settings.get("on_unkept_updates") != "warn",
            )
            engine.before_update = self._watch.begin_update
            engine.after_update = self._watch.end_update

    def steps(self, total: int, /) -> Iterator[int]:
        """Until so many optimizer steps are done; refused where none will be, as in a lab."""
        require_total("steps", total)
        return self._steps(total)

    def _steps(self, total: int) -> Iterator[int]:
        while self._engine.global_steps < total:
            if self._watch is not None:
                self._watch.reach_top()
            yield int(self._engine.global_steps)

    def epochs(self, total: int, /) -> Iterator[int]:
        """All of them."""
        require_total("epochs", total)
        return iter(range(total))

    def log(self, **values: float) -> None:
        """Nobody listens; what would be refused in a lab is refused here."""
        numbers_of(values)

    def rewind(self, steps: int, *, skip: bool = True) -> None:
        """There is nothing to go back to."""
        require_rewind(steps, skip)
        raise UnsupportedError(
            f"protected.rewind({steps}, skip={skip}): this script was not started by "
            "`gemini-lab run`, so no version is kept to which training could go back"
        )

    def pause(self, reason: str) -> AbstractContextManager[None]:
        """Nobody watches."""
        require_text("the pause's reason", reason)
        return nullcontext()
