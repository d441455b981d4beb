"""Which machine this is, and which process: what two names of one have in common."""

import os
import socket
import uuid
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = Path("/proc/self/ns/net")
_PIDS: Final = Path("/proc/self/ns/pid")
_STATE, _STARTED = 0, 19  # places in /proc/PID/stat, after the program's name


def machine_identity() -> str:
    """The same for processes of one machine, and another one on any other, until it starts again.

    Containers with a network of their own have one each: they are hosts to all the others, and who
    starts several on one machine knows.
    """
    if _BOOT.exists() and _NETWORK.exists():
        return f"{_BOOT.read_text().strip()} {_NETWORK.readlink()}"
    return f"{uuid.getnode():x} {socket.gethostname()}"  # no Linux


def process_identity() -> str:
    """Return what names this process, for `has_ended` on its machine; empty without Linux."""
    if not _PIDS.exists():
        return ""
    return f"{_place()} {os.getpid()} {_stat(os.getpid())[_STARTED]}"


def has_ended(identity: str) -> bool:
    """Return whether a process is gone for certain; of another machine's that is not known.

    Args:
        identity: Its own word, of `process_identity`.
    """
    try:
        place, pid, started = identity.rsplit(" ", 2)
        if place != _place():
            return False
        stat = _stat(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (ValueError, OSError):
        return False
    return stat[_STARTED] != started or stat[_STATE] in {"Z", "X"}


def _place() -> str:
    """This machine, and in it the numbers that its processes have here."""
    return f"{machine_identity()} {_PIDS.readlink()}"


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on: its name may have any letters."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
