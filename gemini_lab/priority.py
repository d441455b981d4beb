"""Who comes first where processors are short: training's threads, before those that serve them.

Every thread keeps its share of the time: nothing starves, no lease runs out on a busy machine. What
is left out is that a thread which wakes takes the processor from one that trains: it waits until
that one pauses, or for the rest of its slice, some milliseconds. This is Linux's `SCHED_BATCH`,
which needs no privilege. Elsewhere, or where somebody chose another policy, nothing is changed.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def give_way() -> None:
    """Have this thread interrupt nobody from now on, nor what it starts."""
    if sys.platform == "linux":
        _change(os.SCHED_OTHER, os.SCHED_BATCH)


def take_turns() -> None:
    """Have this thread, and what it starts, come to a processor as any other."""
    if sys.platform == "linux":
        _change(os.SCHED_BATCH, os.SCHED_OTHER)


@contextmanager
def giving_way() -> Iterator[None]:
    """In it, this thread gives way, and what is started meanwhile does for good."""
    give_way()
    try:
        yield
    finally:
        take_turns()


if sys.platform == "linux":

    def _change(before: int, after: int) -> None:
        with suppress(OSError):  # some sandboxes let nobody choose
            if os.sched_getscheduler(0) == before:
                os.sched_setscheduler(0, after, os.sched_param(0))
