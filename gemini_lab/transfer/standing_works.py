"""Collectives under way in groups that can be broken off: see `standing_groups`."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import distributed_c10d as c10d

_Work: Any = c10d.Work


class Judge(Protocol):
    """The group that a collective is of."""

    def wait_for(self, work: Any) -> None:
        """Wait for it."""

    def fail(self, error: RuntimeError) -> None:
        """Go on if a rank is lost, otherwise raise the error."""

    def promise(self, work: Any, otherwise: list[torch.Tensor]) -> Any:
        """A future of it."""


class Done(_Work):  # type: ignore[misc]
    """A collective that is over, and has left its tensors as they were."""

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

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(_results(self._args))
        return future


class Watched(_Work):  # type: ignore[misc]
    """A collective under way, whose failure is the group's to judge."""

    def __init__(
        self,
        work: Any,
        group: Judge,
        args: Sequence[Any],
        done: Callable[[], None],
        *,
        is_message: bool,
    ) -> None:
        super().__init__()
        self._work, self._group, self._args, self._done = work, group, args, done
        self._is_message = is_message

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            if timeout:  # none is 0 where C++ waits
                self._work.wait(timeout)
            elif self._is_message:  # whose whole group Gloo closes when a wait is not over in time
                self._work.wait()
            else:
                self._group.wait_for(self._work)
        except RuntimeError as error:
            self._group.fail(error)
        else:
            self._done()
        return True

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def get_future(self) -> Any:
        return self._group.promise(self._work, _results(self._args))


class Promise:
    """A future that is fulfilled once.

    Args:
        otherwise: Its value where none comes.
    """

    def __init__(self, otherwise: Any) -> None:
        self.future: Any = torch.futures.Future()
        self.otherwise = otherwise
        self._is_over = threading.Lock()

    def keep(self, value: Any) -> None:
        """Fulfil it, unless it is over."""
        if self._is_over.acquire(blocking=False):
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        """Have who waits for it get the error, unless it is over."""
        if self._is_over.acquire(blocking=False):
            self.future.set_exception(error)


def _results(args: Sequence[Any]) -> list[torch.Tensor]:
    """What the future of a collective gives, of the arguments that it was called with."""
    first = args[0] if args else []
    if isinstance(first, torch.Tensor):
        return [first]
    return list(first) if isinstance(first, list | tuple) else []
