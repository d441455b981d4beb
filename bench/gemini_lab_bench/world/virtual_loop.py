"""An event loop on a virtual clock, and the simulated processes whose code runs on it.

A callback belongs to the process in whose context it was scheduled. The loop holds callbacks of a
stopped process back until it goes on, as SIGSTOP does, and drops those of a killed one: no
`finally` of it runs, as none does after SIGKILL.
"""

import asyncio
import contextvars
import heapq
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

_PROCESS: Final[contextvars.ContextVar["VirtualProcess | None"]] = contextvars.ContextVar(
    "process", default=None
)


class StandstillError(RuntimeError):
    """No process has anything left to do, and nothing is on its way: the simulation hangs."""


class VirtualProcess:
    """A simulated process, whose code runs in its `context`.

    Attributes:
        name: For people.
        is_gone: Whether it was killed.
        runs: Whether it does anything now.
        cpu_s: Processor time that its code took, if the loop is metered.
    """

    def __init__(self, name: str, loop: "VirtualLoop") -> None:
        self.name, self.is_gone, self.runs = name, False, True
        self.cpu_s = 0.0
        self.context = contextvars.Context()
        self.context.run(_PROCESS.set, self)
        self._loop = loop
        self.handlers: dict[int, tuple[Any, ...]] = {}  # by signal
        self._stops: set[str] = set()
        self._held: deque[_Handle] = deque()
        self._tasks: list[asyncio.Task[Any]] = []  # else a killed one's would be collected, and end
        self._most_tasks = 100

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as this process's."""
        task = self._loop.create_task(work, context=self.context)
        task.add_done_callback(self._loop.note_end, context=self.context)
        return task

    def keep(self, task: "asyncio.Task[Any]") -> None:
        """Hold a task of this process until the simulation ends."""
        self._tasks.append(task)
        if len(self._tasks) > self._most_tasks:
            self._tasks = [one for one in self._tasks if not one.done()]
            self._most_tasks = max(100, 2 * len(self._tasks))

    def kill(self) -> None:
        """End it at once."""
        self.is_gone, self.runs = True, False
        self._held.clear()

    def stop(self, why: str) -> None:
        """Stop it, as a signal or a debugger does; it may be stopped for several reasons."""
        self._stops.add(why)
        self.runs = False

    def go_on(self, why: str) -> None:
        """Continue it, unless another reason to stop is left."""
        self._stops.discard(why)
        self.runs = not (self.is_gone or self._stops)
        if not self._stops:
            self._loop.release(self._held)

    def hold(self, handle: "_Handle") -> None:
        """Keep a callback until this process goes on; a killed one's is dropped."""
        if not self.is_gone:
            self._held.append(handle)

    def end_for_good(self) -> Generator["asyncio.Task[Any]", None, None]:
        """Yield its open tasks, for the end of the simulation, in which all code may run."""
        self.is_gone, self.runs = False, True
        self._stops.clear()
        self._loop.release(self._held)
        for task in self._tasks:
            if not task.done():
                yield task


def this_process() -> "VirtualProcess | None":
    """Return the process whose code runs now; `None` for the world's own."""
    return _PROCESS.get()


class _Handle:
    """A callback that waits for its turn, or for its time; asyncio's own looks at more."""

    __slots__ = ("_args", "_callback", "_context", "_loop")

    def __init__(
        self,
        loop: "VirtualLoop",
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop

    def cancel(self) -> None:
        """Never call it."""
        self._callback, self._args = None, ()

    def run(self) -> None:
        """Call it, unless its process is stopped or gone."""
        callback = self._callback
        if callback is None:
            return
        process = self._context.get(_PROCESS)
        if process is not None and not process.runs:
            process.hold(self)
            return
        began_s = time.thread_time() if self._loop.is_metered else 0.0
        try:
            self._context.run(callback, *self._args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio does
            told = {"message": f"Exception in callback {callback}", "exception": error}
            self._loop.call_exception_handler(told)
        if began_s and process is not None:
            process.cpu_s += time.thread_time() - began_s


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose clock stands still while anything is to be done, and then jumps.

    Attributes:
        network: Opens and accepts the connections of its processes.
        failures: What no code caught.
        is_over: Whether nothing is done any more: what is collected may still call.
        is_metered: Whether the processor time of each process is measured.
    """

    def __init__(self) -> None:
        super().__init__()
        self.network: Any = None
        self.failures: list[str] = []
        self.is_over = self.is_metered = False
        self._now_s, self._timers_made = 0.0, 0
        self._ready: deque[_Handle] = deque()
        self.call_soon_threadsafe = self.call_soon  # type: ignore[assignment]  # there are no threads
        self._timers: list[tuple[float, int, _Handle]] = []
        self.nowhere = contextvars.Context()
        self.set_exception_handler(self._note_failure)
        self.set_task_factory(_kept_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        """Do all that is to be done now; if nothing is, jump to the next timer."""
        ready, timers = self._ready, self._timers
        if not ready:
            if not timers:
                raise StandstillError("no timer is left")
            self._now_s = max(self._now_s, timers[0][0])
            while timers and timers[0][0] <= self._now_s:
                ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            ready.popleft().run()

    def release(self, held: deque[_Handle]) -> None:
        """Run callbacks that were held back."""
        self._ready.extend(held)
        held.clear()

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        handle = _Handle(self, callback, args, context)
        if not self.is_over:
            self._ready.append(handle)
        return handle

    def close(self) -> None:
        self.is_over = True
        super().close()

    def _check_closed(self) -> None:
        """Accept calls of what is collected after the end."""

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        handle = _Handle(self, callback, args, context)
        self._timers_made += 1  # of two that are due together the older one comes first
        heapq.heappush(self._timers, (when, self._timers_made, handle))
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Handle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def after(self, delay_s: float, act: Callable[..., object], *args: Any) -> _Handle:
        """Do something later that no process does: a network's, a store's or a kernel's act."""
        return self.call_at(self._now_s + delay_s, act, *args, context=self.nowhere)

    def soon(
        self, process: "VirtualProcess | None", act: Callable[..., object], *args: Any
    ) -> None:
        """Have a process act, once it runs."""
        self.call_soon(act, *args, context=self.nowhere if process is None else process.context)

    # As far as asyncio's streams and agents call them:

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        process = this_process()
        assert process is not None
        process.handlers[sig] = (callback, *args)

    async def create_connection(self, *given: Any) -> Any:  # type: ignore[override]
        factory, host, port = given
        return await self.network.connect(factory, host, port)

    async def create_server(self, *given: Any) -> Any:  # type: ignore[override]
        factory, host, port = given
        return self.network.listen(factory, host, port)

    async def run_in_executor(self, *given: Any) -> Any:  # type: ignore[override]
        """Call a function at once: there are no threads."""
        _, function, *arguments = given
        return function(*arguments)

    def note_end(self, task: "asyncio.Task[None]") -> None:
        """Note with what a process's work failed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(f"{type(error).__name__}: {error}")

    def _note_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        if self.is_over:
            return
        error = context.get("exception")
        self.failures.append(f"{context.get('message')}: {type(error).__name__}: {error}")


def _kept_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> "asyncio.Task[Any]":
    task = asyncio.Task(work, loop=loop, context=context)
    process = this_process() if context is None else context.get(_PROCESS)
    if process is not None:
        process.keep(task)
    return task
