"""Imports in a warm parent what a job's launcher has named, for the next start.

A process may be forked as long as it has one thread and no device. So whoever imports for others
looks at itself afterwards, and says why it must not be forked, if it must not.
"""

import gc
import importlib
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gemini_lab.engine.imports import foreign_modules, installed_places
from gemini_lab.recovery.messages import Preload, Preloaded

_OURS: Final = f"{Path(__file__).parents[1]}/"
"""Our own code counts as installed, also where a developer's checkout is."""
_TASKS: Final = Path("/proc/self/task")
_SURVIVE_A_FORK: Final = {"jemalloc_bg_thd"}
"""Threads whose libraries see to forks by themselves: of the allocator that PyArrow brings."""


def preload(order: Preload) -> Preloaded:
    """Import all that can be; return how long it took, and what stands against forking."""
    began_s = time.monotonic()
    before, known = _state(), frozenset(sys.modules)
    with _environment(order.environment):
        _import_all(order.modules)
    gc.collect()
    gc.freeze()
    foreign = foreign_modules(known, sys.modules, (*installed_places(), _OURS))
    problem = f"they import {foreign[0]}, which is not installed" if foreign else ""
    for name, value in _state().items():
        if value != before[name]:
            problem = f"importing them changes {name}"
    return Preloaded(
        modules=len(frozenset(sys.modules) - known),
        seconds=time.monotonic() - began_s,
        problem=problem,
    )


def _import_all(names: Sequence[str]) -> None:
    """In their order; one that does not import here is left to the script."""
    for name in names:
        with suppress(Exception, SystemExit):
            importlib.import_module(name)


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """These variables inside the block, and exactly those of before after it."""
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _threads() -> int:
    """Those that a fork would lose."""
    if not _TASKS.exists():
        return threading.active_count()
    found = 0
    for task in _TASKS.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended since it was listed
            found += (task / "comm").read_text().strip() not in _SURVIVE_A_FORK
    return found


def _state() -> dict[str, object]:
    """What must be as it was, in words of an error."""
    found: dict[str, object] = {
        "the number of threads": _threads(),
        "Python's random state": random.getstate(),
        "the working directory": Path.cwd(),
    }
    if numpy := sys.modules.get("numpy"):
        found["NumPy's random state"] = str(numpy.random.get_state(legacy=False))
    if torch := sys.modules.get("torch"):
        found["torch's random state"] = torch.get_rng_state().numpy().tobytes()
        found["what is on a device"] = torch.cuda.is_initialized()
    return found
