"""What this machine must have for some kinds of faults, and why it has not."""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab_bench.chaos import namespaces, sockets, store
from gemini_lab_bench.chaos.clock import COMPILER
from gemini_lab_bench.chaos.kinds import KINDS, Means

DISK_TOOLS: Final = ("mkfs.ext4", "mount", "fsfreeze")


def why_no_disk() -> str | None:
    """Return why the persistent tier cannot have a disk of its own here; `None` if it can."""
    if os.geteuid() != 0:
        return "a disk of its own for the persistent tier needs root"
    if missing := [tool for tool in DISK_TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not found; install e2fsprogs and util-linux"
    return None


def why_no_network() -> str | None:
    """Return why nodes cannot have networks of their own here; `None` if they can."""
    if os.geteuid() != 0:
        return "networks of their own for the nodes need root"
    return namespaces.why_not()


def why_no_clock() -> str | None:
    """Return why nodes cannot have clocks of their own here; `None` if they can."""
    if shutil.which(COMPILER) is None:
        return f"clocks of their own for the nodes need a C compiler, and there is no `{COMPILER}`"
    return None


def lacking() -> dict[Means, str]:
    """Return what cannot be had on this machine, and why."""
    found: dict[Means, str | None] = {
        "disk": why_no_disk(),
        "network": why_no_network(),
        "clock": why_no_clock(),
        "store": store.why_not(),
        "sockets": sockets.why_not(),
    }
    return {means: reason for means, reason in found.items() if reason is not None}


def possible(
    kinds: Sequence[str], *, without: Mapping[Means, str]
) -> tuple[tuple[str, ...], list[str]]:
    """Return those of `kinds` that can be struck without some means, and why others cannot."""
    can = tuple(kind for kind in kinds if KINDS[kind].needs not in without)
    reasons = []
    for means, reason in without.items():
        if names := [kind for kind in kinds if KINDS[kind].needs == means]:
            reasons.append(f"{', '.join(names)}: {reason}")
    return can, reasons


def check(kinds: Sequence[str], *, without: Mapping[Means, str]) -> None:
    """Refuse kinds that cannot be struck.

    Raises:
        ConfigError: Some cannot; the message says why.
    """
    _, reasons = possible(kinds, without=without)
    if reasons:
        raise ConfigError(f"cannot strike {'; '.join(reasons)}; leave them out of --kinds")
