"""Exit codes, which batch systems and shells go by, and the sentences for system errors."""

import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Final


class Exit(IntEnum):
    """The exit codes of `gemini-lab`, listed for people in docs/reference/exit-codes.md."""

    FINISHED = 0
    FAILED = 1
    REFUSED = 2
    STOPPED = 3
    LATE = 4
    AGAIN = 75  # EX_TEMPFAIL of sysexits.h: "the user is invited to try again"
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_OF: Final[dict[str, Exit]] = {
    "script": Exit.FAILED,
    "divergence": Exit.FAILED,
    "not_finite": Exit.FAILED,
    "wrong_sums": Exit.FAILED,  # tried again on the same machines it would go wrong again
    "machines": Exit.AGAIN,
    "owner": Exit.STOPPED,
    "notice": Exit.AGAIN,
}
"""Exit code of a command that followed a run which failed, by `RunFailed.cause`."""

_PLACE: Final = "mend its permissions, or name another place"
_FULL: Final = "free space there, or name another place"
_PORT: Final = "name another port, or end who has it"
_WAY_OUT: Final = {
    errno.EACCES: _PLACE,
    errno.EPERM: _PLACE,
    errno.EROFS: "mount it writable, or name another place",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.ENOENT: "correct its name, or make the folder that it is to be in",
    errno.ENOTDIR: "a part of that path is a file: name another place",
    errno.EISDIR: "name a file in it",
    errno.EADDRINUSE: _PORT,
    errno.EADDRNOTAVAIL: "name an address of this machine",
    errno.ECONNREFUSED: "start who is to listen there, or name another address",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "end programs that hold many files open",
    errno.ENOMEM: "end programs that hold memory, or take a larger machine",
    errno.EAGAIN: "raise the limit on processes (ulimit -u), or end some",
}
_MAY_PASS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EADDRINUSE, errno.ECONNREFUSED, errno.EMFILE}
    | {errno.ENFILE, errno.ENOMEM, errno.EAGAIN}
)
"""Errors that may be gone at another time."""


def said_of(error: OSError) -> str:
    """Return the sentence for an error of which no command knows more."""
    what = error.strerror or str(error) or type(error).__name__
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    where = f"{' and '.join(names)}: " if names else ""
    way_out = _WAY_OUT.get(error.errno or 0, "mend that, and give the command again")
    return f"the system refuses: {where}{what}; {way_out}"


def exit_of(error: OSError) -> Exit:
    """Return the exit code of a command that met this error."""
    return Exit.AGAIN if error.errno in _MAY_PASS else Exit.REFUSED


# -- signals ---------------------------------------------------------------------------------------


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
