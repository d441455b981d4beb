"""Provenance: versions, the commit, and the machine that something was made on."""

import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil

import gemini_lab

PACKAGE: Final = Path(gemini_lab.__file__)
_GIT_S: Final = 2.0
"""Nobody who starts a job waits longer for git, such as in a repository on a slow disk."""


def made_with(packages: Sequence[str], *, file: Path) -> dict[str, str]:
    """Return the versions of gemini-lab, Python and `packages`, and the commit of `file`, if any.

    A package that is not installed is left out.
    """
    found = {}
    for name in ("gemini-lab", *packages):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    found["python"] = platform.python_version()
    if commit := _commit(file):
        found["commit"] = commit
    return found


def machine() -> dict[str, Any]:
    """Return what the measurements were made on, and how busy it was."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1_min": os.getloadavg()[0],
    }


def _commit(file: Path) -> str:
    """Return the commit that git has of a file; empty if it has none."""
    if not _git(file.parent, "ls-files", "--", file.name):  # the folder may lie in a repository
        return ""
    changed = " with changes" if _git(file.parent, "status", "--porcelain", "--", ".") else ""
    return _git(file.parent, "rev-parse", "--short=12", "HEAD") + changed


def _git(folder: Path, *arguments: str) -> str:
    """Return what git says, stripped; empty where there is no git or no repository."""
    # To look must not lock the index that its user works with, nor start a program that the
    # repository's own settings name.
    options = ["--no-optional-locks", "-C", str(folder), "-c", "core.fsmonitor=false"]
    try:
        ended = subprocess.run(
            ["git", *options, *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
