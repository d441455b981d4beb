"""SIGHUP: the end of a command whose terminal closes."""

import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


def on_hangup(act: Handler) -> None:
    """Call `act` when the terminal closes, unless SIGHUP is ignored, as under `nohup`."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return

    def hang_up(number: int, frame: FrameType | None) -> None:
        leave_terminal()
        act(number, frame)

    signal.signal(signal.SIGHUP, hang_up)


@contextmanager
def silent_without_terminal() -> Iterator[None]:
    """End the block if its output goes to a closed terminal, and write there no more."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        leave_terminal()


def leave_terminal() -> None:
    """Discard what would go to the terminal from now on; files still get it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        if stat.S_ISCHR(os.fstat(fd).st_mode):  # a closed terminal is no "tty" any more
            os.dup2(nowhere, fd)
    os.close(nowhere)
