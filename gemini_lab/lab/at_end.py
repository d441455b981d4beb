"""What is still open when its program ends is closed then, in time.

`atexit` would come too late: threads take no more work by then, and to end a lab takes some. A
program's own traceback stands there by then and stays the last of what it says: what could not be
closed is told only where there is none, for nodes end by themselves without their lab.
"""

import concurrent.futures.thread  # noqa: F401 - its own ending is to come after this one
import os
import sys
import threading
from collections.abc import Callable
from typing import Final

_open: Final[dict[Callable[[], None], int]] = {}
"""What closes each, and the process that is to call it: a forked one ends by itself."""


def close_at_end(close: Callable[[], None]) -> None:
    """Have `close` called when this program ends, however it does, unless it is killed."""
    _open[close] = os.getpid()


def forget(close: Callable[[], None]) -> None:
    """It need not be called any more."""
    _open.pop(close, None)


def _close_all() -> None:
    for close, process in reversed(_open.copy().items()):
        if process == os.getpid():
            try:
                close()
            except Exception as error:  # noqa: BLE001 - the process's edge: told, the others close
                _say(error)


def _say(error: Exception) -> None:
    if not hasattr(sys, "last_value"):  # of the traceback that Python has shown
        sys.stderr.write(
            f"gemini_lab: a lab was not closed in order: {type(error).__name__}: {error}; "
            "its nodes end by themselves within seconds\n"
        )


# Python has no public name for this; its own pools of threads end by it.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]  # noqa: SLF001
