"""Which machine this is: what two of its names have in common."""

import socket
import uuid
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = Path("/proc/self/ns/net")


def machine_identity() -> str:
    """The same for processes of one machine, and another one on any other, until it starts again.

    Containers with a network of their own have one each: they are hosts to all the others, and who
    starts several on one machine knows.
    """
    if _BOOT.exists() and _NETWORK.exists():
        return f"{_BOOT.read_text().strip()} {_NETWORK.readlink()}"
    return f"{uuid.getnode():x} {socket.gethostname()}"  # no Linux
