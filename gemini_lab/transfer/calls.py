"""Training's collectives as a seam sees them: a call's times, and a handle that tells its end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gemini_lab.profiler.observe import IterationRecord
from gemini_lab.profiler.profile import CollectiveRecord
from gemini_lab.transfer.clocks import Clock


@dataclass(slots=True)
class Call:
    """One collective under way or ended; stamps are the clock's, and none without recording."""

    name: str
    size_bytes: int
    start: Any
    iteration: int
    end: Any = None


class FollowedWork:
    """A handle whose `wait` also waits for the emulated link, and tells the seam."""

    def __init__(self, work: Any, release_s: float, done: Callable[[], None]) -> None:
        self._work = work
        self._release_s = release_s
        self._done = done

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As the backend's handle, then until the link has carried the bytes."""
        result = self._work.wait(*args, **kwargs)
        sleep_until(self._release_s)
        self._done()
        return result

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return bool(self._work.is_completed()) and time.monotonic() >= self._release_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def handle_of(result: Any) -> Any:
    """What can be waited for in what a collective returned, or `None`."""
    last = result[-1] if isinstance(result, list) and result else result
    return last if hasattr(last, "wait") else None


def sleep_until(at_s: float) -> None:
    """Return at that time of `time.monotonic`."""
    while (left_s := at_s - time.monotonic()) > 0:
        time.sleep(left_s)


def iteration_record(
    clock: Clock, *, start: Any, update: Any, end: Any, calls: Sequence[Call]
) -> IterationRecord:
    """An iteration of these calls.

    Args:
        clock: Gave the stamps.
        start: When the iteration began.
        update: When its update began; `None` if it had none.
        end: When it ended; calls that have not ended by then end here.
        calls: In order.
    """
    since = clock.between_s
    length_s = since(start, end)
    collectives = tuple(
        CollectiveRecord(
            name=call.name,
            size_bytes=call.size_bytes,
            start_s=since(start, call.start),
            end_s=length_s if call.end is None else since(start, call.end),
        )
        for call in calls
    )
    update_s = length_s if update is None else since(start, update)
    return IterationRecord(collectives=collectives, iteration_s=length_s, update_s=update_s)
