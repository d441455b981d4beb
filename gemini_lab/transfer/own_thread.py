"""A thread for calls that go on beside training, and that nobody waits for when a script ends.

Python waits at its end for the threads of `concurrent.futures`, also for one that waits for a peer
which is gone, as it may after a version was broken off.
"""

import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class OwnThread:
    """Does calls in the order in which they are given, until it is ended or dropped.

    `begin` is called there first; if it fails, all calls fail so.
    """

    def __init__(self, name: str, begin: Callable[[], object] = lambda: None) -> None:
        self._calls: Calls = SimpleQueue()
        self._thread = threading.Thread(
            target=_work, args=[self._calls, begin], name=name, daemon=True
        )
        # Not at exit: the thread is a daemon, and must not be woken while the interpreter ends.
        weakref.finalize(self, self._calls.put, None).atexit = False

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Run a call on the thread; return its future. Only one thread submits."""
        future: Future[Result] = Future()
        self._calls.put((future, call))
        if not self._thread.ident:
            self._thread.start()
        return future

    def end(self, *, wait: bool) -> None:
        """Do what was given, and nothing more; with `wait`, return when that is done."""
        self._calls.put(None)
        if wait and self._thread.ident:
            self._thread.join()


def _work(calls: Calls, begin: Callable[[], object]) -> None:
    begun: Future[object] = Future()
    _do(begun, begin)
    while (given := calls.get()) is not None:
        future, call = given
        if (error := begun.exception()) is not None:
            future.set_exception(error)
        else:
            _do(future, call)
        del given, future, call  # they hold a version's tensors


def _do(future: Future[Result], call: Callable[[], Result]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - for whoever asks for the result
        _forget_frames(error)
        future.set_exception(error)
    else:
        future.set_result(result)
    del future, call  # the error has this frame, and the future the error


def _forget_frames(error: BaseException | None) -> None:
    """Free the locals of an error's frames, which its future would keep."""
    seen = set[int]()  # errors may be each other's context
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__context__ if error.__cause__ is None else error.__cause__
