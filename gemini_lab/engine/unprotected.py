"""What `protect` gives where there is no lab."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from gemini_lab.engine.arguments import numbers_of, require_rewind, require_total
from gemini_lab.engine.contract import Engine
from gemini_lab.errors import UnsupportedError
from gemini_lab.limits import require_text


class Unprotected:
    """The engine runs without a lab: nothing is kept, and loops run as they would with one."""

    world_changed = None

    def __init__(self, engine: Engine) -> None:
        self.step = int(engine.global_steps)
        self._engine = engine

    def steps(self, total: int, /) -> Iterator[int]:
        """Until so many optimizer steps are done."""
        require_total("steps", total)
        return self._steps(total)

    def _steps(self, total: int) -> Iterator[int]:
        while self._engine.global_steps < total:
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
