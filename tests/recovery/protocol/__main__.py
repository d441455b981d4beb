"""Explore for so many seconds, from a seed on; print the smallest schedule that breaks anything."""

import sys
import time

from .explorer import explore, shrink


def main(limit_s: float = 60.0, first_seed: int = 0) -> int:
    """Returns the exit status: 1 if something broke."""
    began_s = time.monotonic()
    found, tried = explore(first_seed=first_seed, limit_s=limit_s)
    elapsed_s = time.monotonic() - began_s
    print(f"{tried} schedules in {elapsed_s:.0f} s ({tried / elapsed_s:.0f} a second)")
    if found is None:
        return 0
    smallest = shrink(found)
    print(f"seed {found.seed} breaks: {smallest.text}\n{smallest.shape}\n{smallest.schedule}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*(float(n) for n in sys.argv[1:2]), *(int(n) for n in sys.argv[2:3])))
