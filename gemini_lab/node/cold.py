"""A worker's process that is not forked from a warm parent: it imports all by itself.

    python -m gemini_lab.node.cold CHANNEL LISTENER START

All three are descriptors; the last one's file has the `WorkerStart`.

The collector of garbage is off from before the first of some 3,000 modules is imported: it would
look at what they made again and again, and find that all of it is in use. `work` turns it on.
"""

import gc
import os
import sys


def main() -> None:
    """Import, then work as a forked one does."""
    gc.disable()
    import msgspec  # noqa: PLC0415

    from gemini_lab.engine.own_code import process_code  # noqa: PLC0415

    process_code.follow_imports()
    from gemini_lab.node.worker import work  # noqa: PLC0415
    from gemini_lab.recovery.messages import WorkerStart  # noqa: PLC0415

    channel, listener, told = sys.argv[1:]
    with os.fdopen(int(told), "rb") as file:
        file.seek(0)
        start = msgspec.json.decode(file.read(), type=WorkerStart)
    # Not `sys.exit`: `work` has run exit handlers, with a limit; an interpreter's end has none.
    os._exit(
        work(
            start,
            int(channel),
            None if listener == "None" else int(listener),
        )
    )


if __name__ == "__main__":
    main()
