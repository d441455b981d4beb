"""Work that goes on beside what a process does, and whose failures are said."""

import asyncio
from collections.abc import Callable, Coroutine


class Tasks:
    """The background work of a process; it ends with its owner.

    Args:
        on_failure: Hears of each that failed.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._running: set[asyncio.Task[None]] = set()  # the loop itself would not keep them

    def begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start `work`, beside everything else."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return task

    def cancel(self) -> None:
        """End all of them."""
        for task in list(self._running):
            task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
