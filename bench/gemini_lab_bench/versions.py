"""What something is made with, and on: versions, the commit, the machine."""

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil

import gemini_lab

_GIT_S: Final = 10.0


def made_with(packages: Sequence[str]) -> dict[str, str]:
    """Versions of package, Python and `packages`; the commit, where the package lies in git."""
    found = {"gemini-lab": _version("gemini-lab"), "python": platform.python_version()}
    if commit := _commit(Path(gemini_lab.__file__).parent):
        found["commit"] = commit
    return found | {name: _version(name) for name in packages}


def machine() -> dict[str, Any]:
    """Return what the measurements were made on, and how busy it was."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1_min": os.getloadavg()[0],
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit(folder: Path) -> str:
    """Return the commit of the package in `folder`; empty outside of its repository."""
    if not _git(folder, "ls-files", "__init__.py"):  # another repository's folder, or none
        return ""
    changed = " with changes" if _git(folder, "status", "--porcelain", "--", ".") else ""
    return _git(folder, "rev-parse", "--short=12", "HEAD") + changed


def _git(folder: Path, *arguments: str) -> str:
    """Return what git says, stripped; empty where there is no git or no repository."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""
