"""The fewest faults with which a run still fails (delta debugging: Zeller, Hildebrandt, 2002)."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)


def shrink(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> tuple[Item, ...]:
    """Return as few of `items`, in their order, as taking away reaches while it still fails.

    Halves are taken away first, then quarters, at last single ones, until no single one of what is
    left can go.

    Args:
        items: With all of them it fails; that is not tried again.
        fails: Whether it fails with these; asked once for each of them.
    """
    left = tuple(items)
    fine: set[tuple[Item, ...]] = {left}  # what need not be tried again, too
    size = max(1, len(left) // 2)
    while left:
        before = left
        start = 0
        while start < len(left):
            fewer = left[:start] + left[start + size :]
            if fewer not in fine and fails(fewer):
                left = fewer
            else:
                fine.add(fewer)
                start += size
        if size == 1 and left == before:
            break
        size = max(1, size // 2)
    return left
