"""Tells user code from the standard library, installed packages and gemini_lab.

Nor what torch.compile makes of a model: it is written into a folder, and imported from there.
"""

import os
import sys
import sysconfig
from enum import Enum
from functools import cache
from pathlib import Path
from types import CellType, FunctionType
from typing import Final

import torch

from gemini_lab.engine.executed_code import installed_places

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


def variables_around(function: FunctionType) -> dict[str, object]:
    """Variables of the functions around one, and of its module, of which its code speaks."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    outer = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    own = (name for name in code.co_names if name in function.__globals__)
    return outer | {name: function.__globals__[name] for name in own if name not in outer}


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - nothing else tells
    except ValueError:
        return False
    return True


@cache
def _is_own_module(name: object) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None) if isinstance(name, str) else None
    return isinstance(file, str) and is_own_file(file)


@cache
def _places() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    python = {f"{Path(paths[name]).resolve()}/" for name in ("stdlib", "platstdlib")}
    return (*installed_places(), *python)
