"""An event loop in a thread of its own, beside a program that knows nothing of asyncio."""

import asyncio
import concurrent.futures
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

Result = TypeVar("Result")
END_S: Final = 5.0
Work = Coroutine[Any, Any, None]


class LoopThread:
    """Runs coroutines and callbacks on one thread, for as long as the `with` block lasts."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="gemini-lab", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._end)
        self._thread.join(timeout=END_S)

    def spawn(self, work: Coroutine[Any, Any, Result]) -> "concurrent.futures.Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def finish(self, work: Coroutine[Any, Any, Result], *, timeout_s: float) -> Result:
        """Wait for what `work` gives; not to be called on the loop's own thread.

        Raises:
            TimeoutError: It takes longer than `timeout_s`.
        """
        return self.spawn(work).result(timeout_s)

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(act, *arguments)

    def call_later(self, delay_s: float, act: Callable[..., object], *arguments: object) -> None:
        self.call(self._loop.call_later, delay_s, act, *arguments)

    def call_every(self, period_s: float, act: Callable[[], object]) -> None:
        """Call `act` on the thread again and again, until the thread ends.

        What goes wrong with it is said once, and it is called again.
        """

        async def repeat() -> None:
            told = set()
            while True:
                await asyncio.sleep(period_s)
                try:
                    act()
                except Exception as error:  # noqa: BLE001 - no caller waits for it
                    if repr(error) not in told:
                        traceback.print_exc()
                    told.add(repr(error))

        self.spawn(repeat())

    def _end(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.call_soon(self._loop.stop)  # after the tasks have heard of it
