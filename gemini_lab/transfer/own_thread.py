"""A thread for calls that go on beside training, and that nobody waits for when a script ends.

Python waits at its end for the threads of `concurrent.futures`, also for one that waits for a peer
which is gone, as it may after a version was broken off.
"""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")
Calls = SimpleQueue[Callable[[], None] | None]


class OwnThread:
    """Does calls in the order in which they are given, until it is ended or dropped.

    Args:
        name: What it is called in lists of threads.
        begin: Called there first; where it fails, all calls fail so.
    """

    def __init__(self, name: str, begin: Callable[[], object] = lambda: None) -> None:
        self._calls: Calls = SimpleQueue()
        self._thread = threading.Thread(target=_work, args=[self._calls], name=name, daemon=True)
        begun: Future[object] = Future()
        self._begun = begun
        self._calls.put(lambda: _keep(begun, begin))
        weakref.finalize(self, self._calls.put, None).atexit = False

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Have a call done; gives what it comes to. One thread submits."""
        begun, future = self._begun, Future[Result]()

        def after_begin() -> Result:
            begun.result()
            return call()

        self._calls.put(lambda: _keep(future, after_begin))
        if not self._thread.ident:
            self._thread.start()
        return future

    def end(self, *, wait: bool) -> None:
        """Do what was given, and nothing more.

        Args:
            wait: Return when that is done.
        """
        self._calls.put(None)
        if wait and self._thread.ident:
            self._thread.join()


def _work(calls: Calls) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it holds a version's tensors


def _keep(future: Future[Result], call: Callable[[], Result]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - for whoever asks for the result
        future.set_exception(error)
    else:
        future.set_result(result)
