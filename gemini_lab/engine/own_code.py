"""What of all code in a process is the script's own: neither Python's, nor installed, nor ours.

Nor what torch.compile makes of a model: it is written into a folder, and imported from there.
"""

import os
import sys
import sysconfig
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

import torch

from gemini_lab.engine.imports import installed_places

_OURS: Final = f"{Path(__file__).parents[1]}/"
_COMPILED: Final = "TORCHINDUCTOR_CACHE_DIR"
_KEPT_OTHERWISE: Final = (type, Enum, BaseException, torch.optim.Optimizer, torch.Tensor)


@cache
def is_own_file(name: str) -> bool:
    """Whether the code of a file is the script's own."""
    if name.startswith(("<", _OURS)):
        return False
    file = str(Path(name).resolve())
    return not file.startswith(_places()) and not _is_compiled(file)


def _is_compiled(file: str) -> bool:
    """Whether it lies where torch.compile writes, which the variable says once that has begun."""
    folder = os.environ.get(_COMPILED)
    return folder is not None and file.startswith(f"{Path(folder).resolve()}/")


def is_own_type(kind: type) -> bool:
    """Whether a class is the script's own, and its objects may hold what nobody else keeps."""
    return _is_own_module(kind.__module__) and not issubclass(kind, _KEPT_OTHERWISE)


@cache
def _is_own_module(name: object) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None) if isinstance(name, str) else None
    return isinstance(file, str) and is_own_file(file)


@cache
def _places() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    python = {f"{Path(paths[name]).resolve()}/" for name in ("stdlib", "platstdlib")}
    return (*installed_places(), *python)
