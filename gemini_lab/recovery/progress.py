"""How far each rank is, and at what pace they go."""

from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Final

from gemini_lab.settings import Settings

WINDOW: Final = 64
SLOWER: Final = 10.0
"""A worker may stand still in a step for this many times the median iteration."""


class Progress:
    """The newest iteration of every rank, and when it ended."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, float]] = {}  # rank: (iteration, when)
        self._durations: deque[float] = deque(maxlen=WINDOW)

    @property
    def done(self) -> int:
        """The newest iteration that every rank has finished."""
        return min(iteration for iteration, _ in self._newest.values())

    def restart(self, ranks: Iterable[int], *, iteration: int, at_s: float) -> None:
        """All ranks begin, after `iteration`."""
        self._newest = dict.fromkeys(ranks, (iteration, at_s))

    def note(self, rank: int, iteration: int, *, at_s: float, duration_s: float) -> None:
        """A rank has finished an iteration."""
        self._newest[rank] = (iteration, at_s)
        self._durations.append(duration_s)

    def step_limit_s(self, settings: Settings) -> float | None:
        """How long a worker may stand still in a step; `None` while no pace is known."""
        if not self._durations:
            return None
        return max(settings.min_progress_s, SLOWER * median(self._durations))
