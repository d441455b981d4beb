"""How far each rank is, and which of them have been silent for too long."""

from collections import deque
from collections.abc import Collection, Iterable
from statistics import median
from typing import Final

from gemini_lab.settings import Settings

WINDOW: Final = 64
SLOWER: Final = 10.0
"""An iteration may take this many times the median before its worker counts as hung."""


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

    def limit_s(self, settings: Settings, *, is_running: bool) -> float:
        """How long a rank may be silent; the first iteration after a start may take longer."""
        if is_running and self._durations:
            return max(settings.min_progress_s, SLOWER * median(self._durations))
        return settings.start_s

    def hung(self, at_s: float, limit_s: float, *, finished: Collection[int]) -> dict[int, float]:
        """The ranks that hold up the others, and for how long each was silent.

        A rank that waits in a collective is silent too. So nobody is hung until all are silent,
        and then those are that have done the fewest iterations.
        """
        waiting = [rank for rank in self._newest if rank not in finished]
        silent = {rank: at_s - self._newest[rank][1] for rank in waiting}
        if not silent or min(silent.values()) <= limit_s:
            return {}
        least = min(self._newest[rank][0] for rank in waiting)
        return {rank: silent[rank] for rank in waiting if self._newest[rank][0] == least}
