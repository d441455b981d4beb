"""When the terminal of a command closes (SIGHUP)."""

import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


def on_hangup(act: Handler) -> None:
    """Have this called when the terminal closes, unless that is to be ignored, as under `nohup`."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return

    def hang_up(number: int, frame: FrameType | None) -> None:
        leave_terminal()
        act(number, frame)

    signal.signal(signal.SIGHUP, hang_up)


@contextmanager
def silent_without_terminal() -> Iterator[None]:
    """End the block, and say nothing any more, where what it writes to is a closed terminal."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        leave_terminal()


def leave_terminal() -> None:
    """Have what is said from now on go nowhere, where it went to a terminal; files still get it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        if stat.S_ISCHR(os.fstat(fd).st_mode):  # a closed terminal is no "tty" any more
            os.dup2(nowhere, fd)
    os.close(nowhere)
