"""The progress of each rank, and the pace of all."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from statistics import median
from types import MappingProxyType
from typing import Final

from gemini_lab.settings import Settings

WINDOW: Final = 64
SLOWER: Final = 10.0
"""A worker may stand still in a step for this many times the median iteration."""


class Slowest:
    """A number of each rank, which mostly rises, and the least of them all.

    Ranks that train together are at few different numbers. How many are at each is counted, so
    that a step of one rank costs the same with four ranks and with thousands.

    Args:
        numbers: Of each rank that has one.
    """

    def __init__(self, numbers: Mapping[int, int] = MappingProxyType({})) -> None:
        self.of = dict(numbers)
        self._ranks_at = Counter(self.of.values())

    def __len__(self) -> int:
        return len(self.of)

    @property
    def number(self) -> int:
        """The least number; there has to be a rank."""
        return min(self._ranks_at)

    def note(self, rank: int, number: int) -> None:
        """Note the number of a rank."""
        before = self.of.get(rank)
        if before is not None:
            self._ranks_at[before] -= 1
            if not self._ranks_at[before]:
                del self._ranks_at[before]
        self.of[rank] = number
        self._ranks_at[number] += 1


class Progress:
    """The newest iteration of every rank."""

    def __init__(self) -> None:
        self._newest = Slowest()
        self._durations: deque[float] = deque(maxlen=WINDOW)

    @property
    def is_known(self) -> bool:
        """Whether ranks have been started."""
        return bool(len(self._newest))

    @property
    def done(self) -> int:
        """The newest iteration that every rank has finished."""
        return self._newest.number

    def restart(self, ranks: Iterable[int], *, iteration: int) -> None:
        """Note that all ranks start after `iteration`."""
        self._newest = Slowest(dict.fromkeys(ranks, iteration))

    def note(self, rank: int, iteration: int, *, duration_s: float) -> None:
        """Note that a rank has finished an iteration."""
        self._newest.note(rank, iteration)
        self._durations.append(duration_s)

    def go_back(self, rank: int, iteration: int) -> None:
        """Note that a rank has rewound to an iteration."""
        self._newest.note(rank, iteration)

    def step_limit_s(self, settings: Settings) -> float | None:
        """Return how long a worker may stand still in a step; `None` while no pace is known."""
        if not self._durations:
            return None
        return max(settings.min_progress_s, SLOWER * median(self._durations))
