"""The parts of a run's reducer, and the bounds of the numbers that they take in.

An impossible number is refused, so that it spoils no figure.
"""

from collections.abc import Sequence
from typing import Final

LARGEST: Final = 1 << 53
MOST_RANKS: Final = 100_000
MOST_KEPT: Final = 100_000
"""Of anything that is kept one by one; a log with more of it is not a run's."""


def whole(number: int) -> int:
    """Return a number that counts something.

    Raises:
        ValueError: It is absurd.
    """
    if not 0 <= number <= LARGEST:
        raise ValueError(f"no run has {number} of anything")
    return number


def is_lost(iteration: int, epoch: int, plans: Sequence[tuple[int, int]]) -> bool:
    """Return whether a later epoch than `epoch` started from before an iteration.

    `plans` has the epoch and the version of each start, in order of epochs.
    """
    for later, version in reversed(plans):
        if later <= epoch:
            return False
        if version < iteration:
            return True
    return False


def seconds(time_s: float) -> float:
    """Return a time, or a moment on a clock.

    Raises:
        ValueError: It is none that a clock shows.
    """
    if not -LARGEST <= time_s <= LARGEST:  # nor is it, for what is no number
        raise ValueError(f"no clock shows {time_s}")
    return time_s
