"""Progress of training within an iteration, for failures that strike within one."""

from collections import deque
from statistics import median
from typing import Final

ALMOST: Final = 0.999
"""An iteration that takes longer than those before it is not over yet."""
LENGTHS: Final = 5
"""How many iterations tell how long one takes; a recovery is in at most one of them."""


class Pace:
    """Follows the ends of iterations, and takes the one under way to be as long as the last ones.

    Before two have ended no length is known, and an iteration counts as just begun.
    """

    def __init__(self) -> None:
        self._done = 0
        self._ended_s = 0.0
        self._lengths_s: deque[float] = deque(maxlen=LENGTHS)

    def end(self, done: int, at_s: float) -> None:
        """`done` iterations are over at `at_s`, by any clock that runs on."""
        if done == self._done:
            return
        if done == self._done + 1 and self._done:  # the first one begins with the run's start
            self._lengths_s.append(at_s - self._ended_s)
        self._done, self._ended_s = done, at_s

    def at(self, now_s: float) -> float:
        """Iterations that are over, and how much of the next one."""
        length_s = median(self._lengths_s) if self._lengths_s else 0.0
        if length_s <= 0:
            return self._done
        return self._done + min(ALMOST, max(0.0, now_s - self._ended_s) / length_s)
