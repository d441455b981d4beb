"""What Python does when a script has ended, in a worker whose process ends without it.

A worker's interpreter is not taken apart (see `engine.process_exit`), so threads that the script
waits for and handlers that it registered with `atexit`, such as those that write a last file, have
their turn here, with an end to it.
"""

import atexit
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from gemini_lab.engine.process_exit import leave

LIMIT_S: Final = 60.0
"""For the script's threads and handlers, all together."""


def keep_parents_things() -> None:
    """What the warm parent is to tidy up at its own end is not this process's to tidy up."""
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]  # noqa: SLF001
    for info in registry.values():
        info.atexit = False


def end_as_python_does(go_on: Callable[[], object], *, limit_s: float = LIMIT_S) -> None:
    """Wait for the script's threads and call what it registered with `atexit`, last first.

    Args:
        go_on: What this process does afterwards. It is called by another thread, and this process
            ends then, where that takes longer than the limit.
        limit_s: For all of them.
    """

    def give_up() -> None:
        print(  # noqa: T201 - in the script's output, where its author looks
            f"gemini_lab: threads of the script, or what it registered with atexit, still ran "
            f"{limit_s:.0f} s after its end; it ends without them",
            file=sys.stderr,
            flush=True,
        )
        go_on()
        leave(0)

    late = threading.Timer(limit_s, give_up)
    late.daemon = True
    late.start()
    # Python has no other way in to either; it calls both at an interpreter's end.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    late.cancel()
