"""A limit for functions of a person's own that are called in the very process that made them.

On nodes there are none: what is called there has a process to itself, see `node.own_root`.
"""

import contextlib
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_AT_ONCE_S: Final = 1e-6, 1e-4
_SOON_S: Final = 1e-3


class TooLong(BaseException):
    """An answer took too long; no error, which whoever is asked might catch."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the block after so many seconds.

    A signal interrupts the block, so this needs the main thread, in which cells and agents run; in
    another thread there is no limit. A loop that catches everything meets the next signal while it
    does so, and one that is not caught at last.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_late = is_over = False
    user = sys._getframe(2)  # noqa: SLF001 - who limits the block: nobody in the block is above it

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as handlers are called
        nonlocal is_late
        if is_over:
            return
        if is_late and _is_leaving(frame, user):
            signal.setitimer(signal.ITIMER_REAL, _SOON_S)
            return
        is_late = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(*_AT_ONCE_S))
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
        if is_late:
            raise TooLong
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_leaving(frame: FrameType | None, user: FrameType) -> bool:
    """Whether the block may be on its way out already, to who limits it."""
    while frame is not None and frame.f_code.co_filename in {contextlib.__file__, __file__}:
        if frame is user:
            return True
        frame = frame.f_back
    return frame is None or frame is user
