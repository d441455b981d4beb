"""Iterations after which training holds until the run's owner lets it go on.

A reader of a lab acts when the text says so, and not when the clock does. The owner of a local run
names the iterations in the workers' environment, and writes into a file how far training may go.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from gemini_lab.errors import ConfigError, shown
from gemini_lab.units import LARGEST

HOLDS: Final = "GEMINI_LAB_HOLDS"
"""The variable of a worker that names the iterations, and then the file."""
LOOK_S: Final = 0.05
MOST: Final = 100
MOST_BYTES: Final = 20
"""Of the file: one number."""


@dataclass(frozen=True, slots=True)
class HoldingPoints:
    """The iterations of one run, and the file that lets training pass."""

    iterations: tuple[int, ...] = ()  # ascending
    # It has the newest iteration that training may pass; without it there is none.
    file: Path = Path("may-pass")

    @classmethod
    def at(cls, wanted: int | Sequence[int]) -> Self:
        """Check what a user asks for: an iteration, or a list of at most a hundred."""
        asked = list(wanted) if isinstance(wanted, Sequence) else [wanted]
        if len(asked) > MOST or not all(
            isinstance(each, int) and not isinstance(each, bool) and 1 <= each <= LARGEST
            for each in asked
        ):
            raise ConfigError(
                f"hold_at={shown(wanted)}; give an iteration such as 50, or a list of at most "
                f"{MOST}, each 1 or more"
            )
        return cls(tuple(sorted({*asked})))

    @classmethod
    def of_worker(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return those of the run that this process works for; most runs have none."""
        iterations, _, file = environment.get(HOLDS, "").partition(" ")
        return cls(tuple(map(int, filter(None, iterations.split(",")))), Path(file))

    def below(self, folder: Path) -> Self:
        return replace(self, file=folder / self.file)

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of the run's workers."""
        if not self.iterations:
            return {}
        return {HOLDS: f"{','.join(map(str, self.iterations))} {self.file.absolute()}"}

    @property
    def next(self) -> int | None:
        """Return the first iteration that training may not pass yet."""
        if not self.iterations or not self.file.parent.is_dir():
            return None  # the run's folder was removed: no owner could let training go on
        passed = 0
        with suppress(OSError, ValueError), self.file.open("rb") as file:
            passed = int(file.read(MOST_BYTES))
        return next((each for each in self.iterations if each > passed), None)

    def let_pass(self, iteration: int) -> None:
        draft = self.file.with_suffix(".part")
        draft.write_text(str(iteration), encoding="ascii")
        draft.replace(self.file)  # a worker never reads half a number

    def wait(self, iteration: int) -> None:
        """Return when training may begin the iteration after this one."""
        while self.next == iteration:
            time.sleep(LOOK_S)
