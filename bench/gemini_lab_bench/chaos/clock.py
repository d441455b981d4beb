"""Clocks of their own for the nodes of a run: one can be set without setting the machine's.

A small library, compiled when a run needs it and preloaded into all of the run's processes, adds
a step of its own to the wall clock of each session of processes, and a node is a session.
"""

import struct
import subprocess
from pathlib import Path
from typing import Final

from gemini_lab.errors import GeminiError

COMPILER: Final = "cc"
SOURCE: Final = Path(__file__).with_name("clock.c")
SESSIONS: Final = 1 << 16  # two that meet in one place share a clock
_STEP: Final = struct.Struct("=q")


class NodeClocks:
    """The wall clocks of a run's nodes.

    Args:
        folder: Where the library is to be.

    Raises:
        GeminiError: It cannot be compiled.
    """

    def __init__(self, folder: Path) -> None:
        self._steps = folder / "clocks"
        self._steps.write_bytes(bytes(SESSIONS * _STEP.size))
        self._library = folder / "clock.so"
        command = [COMPILER, "-shared", "-fPIC", "-O2", "-o", str(self._library), str(SOURCE)]
        done = subprocess.run([*command, "-ldl"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise GeminiError(f"cannot compile the nodes' clock: {done.stderr.strip()}")

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "GEMINI_LAB_CLOCKS": str(self._steps)}

    def step(self, session: int, step_s: int) -> None:
        """Set the clock of a session's processes, by so much from where it stands."""
        at = session % SESSIONS * _STEP.size
        with self._steps.open("r+b", buffering=0) as file:
            file.seek(at)
            (before,) = _STEP.unpack(file.read(_STEP.size))
            file.seek(at)
            file.write(_STEP.pack(before + step_s * 10**9))
