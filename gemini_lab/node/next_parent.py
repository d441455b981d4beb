"""The next warm parent: beside the present one it imports what the job's launcher has named."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from gemini_lab.job import HASH_SEED, python_command
from gemini_lab.recovery.messages import ParentReady, Preload, Preloaded
from gemini_lab.wire.local import LocalChannel

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

    Args:
        order: What it is to import beside that; nothing where it starts for another hash seed.
        warm: Whether it imports first what all workers need.
        hash_seed: With which it starts.
        on_note: Called with what a person should know.

    Attributes:
        process, channel: It.
        is_ready: Whether workers can be forked from it.
        modules: What it imports beside what all workers need.
    """

    def __init__(
        self,
        order: Preload,
        *,
        warm: bool,
        hash_seed: int,
        on_note: Callable[[str], object],
    ) -> None:
        self.process, self.channel = start_parent(warm=warm, hash_seed=hash_seed)
        self.modules = order.modules
        self.is_ready = False
        self._order, self._on_note = order, on_note
        asyncio.get_running_loop().add_reader(self.channel, self._read)

    def hand_over(self) -> tuple["subprocess.Popen[bytes]", LocalChannel]:
        """It is the present one from now on: who calls this reads its channel."""
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
