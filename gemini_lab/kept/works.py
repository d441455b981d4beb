"""Handles of collectives in groups that can be broken off: see `groups`."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import distributed_c10d as c10d

_Work: Any = c10d.Work


class Judge(Protocol):
    """A collective's group, which decides what a failure means."""

    def wait_for(self, work: Any) -> None: ...

    def fail(self, error: RuntimeError) -> None:
        """Raise the error, unless a rank is lost."""

    def promise(self, work: Any, otherwise: list[torch.Tensor]) -> Any: ...


class DoneWork(_Work):  # type: ignore[misc]
    """A finished collective that left its tensors as they were."""

    def __init__(self, args: Sequence[Any]) -> None:
        super().__init__()
        self._args = args

    def wait(self, timeout: timedelta | None = None) -> bool:
        del timeout
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return _results(self._args)

    def _source_rank(self) -> int:
        return 0  # no rank sent anything

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(_results(self._args))
        return future


class LoneWork:
    """A handle of which Gloo cannot limit the wait: a thread waits for it.

    The thread may wait until Gloo's timeout, but writes nothing once the connections are shut.
    """

    def __init__(self, work: Any) -> None:
        self._work = work
        self._is_over = threading.Event()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def wait(self, timeout: timedelta) -> bool:
        """Wait for the collective; raise a RuntimeError if it failed, or is not over in time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, daemon=True)
            self._thread.start()
        if not self._is_over.wait(timeout.total_seconds()):
            raise RuntimeError(f"the collective is not over within {timeout.total_seconds():g} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._is_over.is_set()

    def settle(self, within_s: float) -> None:
        """Wait until the collective is over or the time is up, after which it writes nothing."""
        if self._thread is not None:
            self._is_over.wait(within_s)

    def _wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            self._error = error
        self._is_over.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class Watched(_Work):  # type: ignore[misc]
    """A collective under way; its group decides what a failure means."""

    def __init__(
        self, work: Any, group: Judge, args: Sequence[Any], done: Callable[[], None]
    ) -> None:
        super().__init__()
        self._work, self._group, self._args, self._done = work, group, args, done

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            if timeout:  # C++ passes 0 for no limit
                self._work.wait(timeout)
            else:
                self._group.wait_for(self._work)
        except RuntimeError as error:
            self._group.fail(error)
            self._work = DoneWork(self._args)
        else:
            self._done()
        return True

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        return self._work.result()

    def _source_rank(self) -> int:
        return int(self._work._source_rank())  # noqa: SLF001 - torch has no other name for it

    def get_future(self) -> Any:
        return self._group.promise(self._work, _results(self._args))


class Promise:
    """A future of which the first outcome counts; `otherwise` is that of a broken call."""

    def __init__(self, otherwise: Any) -> None:
        self.future: Any = torch.futures.Future()
        self.otherwise = otherwise
        self._is_over = threading.Lock()

    def keep(self, value: Any) -> None:
        """Set the future's value, unless it has an outcome."""
        if self._is_over.acquire(blocking=False):
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        """Set the future's error, unless it has an outcome."""
        if self._is_over.acquire(blocking=False):
            self.future.set_exception(error)


def _results(args: Sequence[Any]) -> list[torch.Tensor]:
    """Return the value of a collective's future, from the collective's arguments."""
    first = args[0] if args else []
    if isinstance(first, torch.Tensor):
        return [first]
    return list(first) if isinstance(first, list | tuple) else []
