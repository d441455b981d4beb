"""Ranks that are slower than the others: a score from how long each works in an iteration.

All ranks of a job end an iteration together, because those that are ready wait for the last one.
So durations name nobody. The time for which a training thread computes, or wants a processor, does:
the others wait while a slow rank works. What slows all ranks alike changes no score.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

WINDOW: Final = 16
"""Iterations that are judged together."""
MOST_SLOW: Final = 13
"""A rank is slow that is behind in so many of them: a stall of a few proves nothing."""
FEWEST_SLOW: Final = 3
"""It is no longer once it is behind in no more than these."""
RATIO: Final = 1.5
"""Behind: it works for so many times as long as the median of the other ranks."""
SHARE: Final = 0.2
"""And by this share of the iteration: it is what the others wait for."""
LEAST_S: Final = 0.005
WARM_UP: Final = 3
"""Iterations after a start that count for nothing: caches fill, and compilers work."""
MOST_PENDING: Final = 64
"""Iterations that some rank has not told of; older ones are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """A rank that became slow, or is no longer.

    Attributes:
        work_s: Its median work in an iteration, of those in which it was behind.
        others_s: The same of the median of the other ranks.
        duration_s: The median iteration.
        behind: In how many of them it was behind.
        is_over: Whether it is no longer slow.
    """

    rank: int
    iteration: int
    work_s: float
    others_s: float
    duration_s: float
    behind: int
    is_over: bool


class SlowRanks:
    """Judges each iteration once all ranks have told how long they worked in it.

    Memory: `WINDOW` numbers a rank.
    """

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, ranks: int) -> None:
        """Forget everything, because so many ranks begin."""
        self._ranks = ranks
        self._pending: dict[int, dict[int, tuple[float, float]]] = {}
        self._judged = 0
        self._window: deque[tuple[float, Sequence[float], Sequence[float]]] = deque(maxlen=WINDOW)
        self._slow: set[int] = set()

    def take(
        self, rank: int, iteration: int, *, work_s: float, duration_s: float
    ) -> list[Slowness]:
        """Note a rank's iteration; return which ranks became slow with it, or are no longer.

        Args:
            rank: The rank.
            iteration: Its number.
            work_s: How long its training thread computed, or wanted to.
            duration_s: How long the iteration took.
        """
        if not 0 <= rank < self._ranks or self._ranks == 1:
            return []
        told = self._pending.setdefault(iteration, {})
        told[rank] = (work_s, duration_s)
        if len(told) < self._ranks:
            if len(self._pending) > MOST_PENDING:
                del self._pending[min(self._pending)]
            return []
        del self._pending[iteration]
        return self._judge(iteration, told)

    def _judge(self, iteration: int, told: Mapping[int, tuple[float, float]]) -> list[Slowness]:
        self._judged += 1
        works_s = [told[rank][0] for rank in range(self._ranks)]
        if self._judged <= WARM_UP or min(works_s) <= 0:  # a machine that does not tell
            return []
        duration_s = median(one for _, one in told.values())
        self._window.append((duration_s, works_s, medians_of_others(works_s)))
        behind = Counter(
            rank
            for all_s, mine_s, others_s in self._window
            for rank in range(self._ranks)
            if is_behind(mine_s[rank], others_s[rank], all_s)
        )
        slow = {rank for rank, count in behind.items() if count >= MOST_SLOW}
        over = {rank for rank in self._slow if behind[rank] <= FEWEST_SLOW}
        changed = sorted((slow - self._slow) | over)
        self._slow = (self._slow | slow) - over
        return [self._told(rank, iteration, behind[rank]) for rank in changed]

    def _told(self, rank: int, iteration: int, behind: int) -> Slowness:
        seen = [(all_s, mine_s[rank], others_s[rank]) for all_s, mine_s, others_s in self._window]
        shown = [one for one in seen if is_behind(one[1], one[2], one[0])] or seen
        return Slowness(
            rank=rank,
            iteration=iteration,
            work_s=median(mine_s for _, mine_s, _ in shown),
            others_s=median(others_s for _, _, others_s in shown),
            duration_s=median(all_s for all_s, _, _ in shown),
            behind=behind,
            is_over=rank not in self._slow,
        )


def is_behind(work_s: float, others_s: float, duration_s: float) -> bool:
    """Return whether a rank works so long that the others wait for it."""
    return work_s >= RATIO * others_s and work_s - others_s >= max(SHARE * duration_s, LEAST_S)


def medians_of_others(numbers: Sequence[float]) -> list[float]:
    """Return, for each number, the median of all others; there are two numbers or more.

    It sorts once, so that it costs little more for thousands of ranks than one median does.
    """
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    found, rest = [0.0] * len(numbers), len(numbers) - 1
    low, high = (rest - 1) // 2, rest // 2  # the middle places without one number
    for place, rank in enumerate(order):
        a, b = (numbers[order[at if at < place else at + 1]] for at in (low, high))
        found[rank] = (a + b) / 2
    return found
