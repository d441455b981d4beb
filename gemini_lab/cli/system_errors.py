"""What the system refused a command: what was asked, what stood against it, and a way out."""

import errno
from typing import Final

from gemini_lab.cli.exits import Exit

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
"""What another time may allow."""


def said_of(error: OSError) -> str:
    """The sentence for an error of which no command knows more."""
    what = error.strerror or str(error) or type(error).__name__
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    where = f"{' and '.join(names)}: " if names else ""
    way_out = _WAY_OUT.get(error.errno or 0, "mend that, and give the command again")
    return f"the system refuses: {where}{what}; {way_out}"


def exit_of(error: OSError) -> Exit:
    """With what a command ends that met it."""
    return Exit.AGAIN if error.errno in _MAY_PASS else Exit.REFUSED
