"""The next warm parent: it imports what the job's launcher has named, beside the present one.

A process may be forked as long as it has one thread and no device. So a process that
imports for others looks at itself afterwards, and says why it must not be forked, if it must not.
"""

import asyncio
import gc
import importlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gemini_lab.engine.own_code import foreign_modules, installed_places
from gemini_lab.job import HASH_SEED, python_command
from gemini_lab.recovery.messages import ParentReady, Preload, Preloaded
from gemini_lab.wire.local import LocalChannel

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
        for name in order.modules:  # one that does not import here is left to the script
            with suppress(Exception, SystemExit):
                importlib.import_module(name)
    # As in `warm`: what is frozen stays on pages that all workers share.
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


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in the block, and exactly those of before after it."""
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _threads() -> int:
    """Return the number of threads that a fork would lose."""
    if not _TASKS.exists():
        return threading.active_count()
    found = 0
    for task in _TASKS.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended since it was listed
            found += (task / "comm").read_text().strip() not in _SURVIVE_A_FORK
    return found


def _state() -> dict[str, object]:
    """Return what imports must leave as it was, by its name in an error."""
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


CLOSE_S: Final = 5.0


def start_parent(*, warm: bool, hash_seed: int) -> tuple["subprocess.Popen[bytes]", LocalChannel]:
    """Start a warm parent that forks workers with this hash seed.

    Returns:
        It, and the agent's end of its channel.

    Raises:
        OSError: No process can be started, or no descriptor is free.
    """
    ours, theirs = LocalChannel.pair()
    try:
        process = subprocess.Popen(
            python_command("gemini_lab.node.warm", theirs.fileno(), int(warm)),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env={**os.environ, HASH_SEED: str(hash_seed)},
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


class NextParent:
    """A warm parent in the making; on the agent's event loop.

    Attributes:
        process, channel: It.
    """

    def __init__(
        self,
        # What it is to import beside that; nothing where it starts for another hash seed.
        order: Preload,
        *,
        warm: bool,  # whether it imports first what all workers need
        hash_seed: int,  # with which it starts
        on_note: Callable[[str], object],  # called with what a person should know
    ) -> None:
        self.process, self.channel = start_parent(warm=warm, hash_seed=hash_seed)
        self.modules = order.modules  # what it imports beside what all workers need
        self.is_ready = False  # whether workers can be forked from it
        self._order, self._on_note = order, on_note
        asyncio.get_running_loop().add_reader(self.channel, self._read)

    def hand_over(self) -> tuple["subprocess.Popen[bytes]", LocalChannel]:
        """Return it as the present parent; the caller reads its channel from now on."""
        asyncio.get_running_loop().remove_reader(self.channel)
        return self.process, self.channel

    def close(self) -> None:
        """End it."""
        if self.process.returncode is not None:
            return
        asyncio.get_running_loop().remove_reader(self.channel)
        self.channel.close()
        self.process.kill()
        self.process.wait(CLOSE_S)
        self.is_ready = False

    def _read(self) -> None:
        messages, is_open = self.channel.poll()
        for message, _ in messages:
            if isinstance(message, ParentReady):
                self.channel.send(self._order)
            elif isinstance(message, Preloaded):
                self._hear(message)
        if not is_open and self.process.returncode is None:
            self._on_note("the process that imports for the next start ended; it starts as before")
            self.close()

    def _hear(self, said: Preloaded) -> None:
        if said.problem:
            self._on_note(f"preload={','.join(self.modules)} is left to each start: {said.problem}")
            self.close()
            return
        self.is_ready = True
        if not self.modules:
            return
        self._on_note(
            f"the next start finds {said.modules} modules of preload imported already, which took "
            f"{said.seconds:.1f} s"
        )
