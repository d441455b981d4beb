"""A worker's end of a version maker, the process that makes versions of a shard kept here."""

import subprocess
import threading
from contextlib import suppress
from typing import Final

import numpy as np

from gemini_lab.engine.idleness import Idleness
from gemini_lab.errors import GeminiError
from gemini_lab.job import python_command
from gemini_lab.memory.room import Room
from gemini_lab.memory.slab import ReadBuffer, Slab, WriteBuffer
from gemini_lab.memory.slab_form import Bytes, Words
from gemini_lab.recovery.messages import MakerReady, MakeVersion, Message, Refused, VersionMade
from gemini_lab.wire.local import LocalChannel

IDLE_S: Final = 60.0
"""A process that has not answered and uses no processor for so long hangs."""
_LOOK_S: Final = 2.0


class VersionMaker:
    """Makes versions of one shard in a process of its own, which ends with this one.

    Training's main thread makes it: the process ends with the thread that started it.

    Args:
        slab: Keeps the shard's versions.
        difference_bytes: How large the differences are.
        chunk_bytes: Of the room for them.
        kind: The class of the optimizer.

    Attributes:
        room: Where differences are received.
        is_lost: Whether the process is gone.

    Raises:
        CapacityError: Memory is short.
    """

    def __init__(
        self,
        slab: Slab,
        *,
        difference_bytes: int,
        chunk_bytes: int,
        kind: str,
    ) -> None:
        self.room = Room.create(difference_bytes, chunk_bytes=chunk_bytes)
        self.is_lost = False
        self._slab = slab
        self._is_up = False
        self._starting = threading.Lock()  # any thread may ask whether it is ready
        self._channel, theirs = LocalChannel.pair()
        fds = (theirs.fileno(), slab.fd, self.room.fd)
        try:
            self._process = subprocess.Popen(
                python_command("gemini_lab.engine.gradients.maker_process", *fds, kind),
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # its libraries' greetings
            )
        finally:
            theirs.close()

    @property
    def is_ready(self) -> bool:
        """Whether it has imported what it needs."""
        self.wait_until_ready(0.0)
        return self._is_up and not self.is_lost

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return when it is ready, is lost, or has taken so long."""
        with self._starting:
            if not (self._is_up or self.is_lost):
                with suppress(GeminiError):  # then it is lost
                    self._is_up = isinstance(self._heard(timeout_s), MakerReady)

    def begin(self, base: ReadBuffer, into: WriteBuffer) -> None:
        """Ask it to make a version of the one before, and of what lies in the room."""
        self._channel.send(
            MakeVersion(
                base_bytes=self._place(np.asarray(base.data)),
                into_bytes=self._place(into.data),
                payload_bytes=base.info.payload_bytes,
                chunk_bytes=self._slab.chunk_bytes,
            )
        )

    def finish(self) -> Words:
        """The checksums of what was made.

        Raises:
            GeminiError: It could not be made, or its process is gone.
        """
        idleness = Idleness(self._process.pid)
        while (heard := self._heard(_LOOK_S)) is None:
            if idleness.look() > IDLE_S:
                self.close()
                raise GeminiError(f"the process that makes it did nothing for {IDLE_S:.0f} s")
        if isinstance(heard, Refused):
            raise heard.to_error()
        if not isinstance(heard, VersionMade):
            raise GeminiError(f"the process that makes it answered {type(heard).__name__}")
        return np.array(heard.digests, np.uint64)

    def close(self) -> None:
        """End the process."""
        if not self.is_lost:
            self.is_lost = True
            self._channel.close()
            self._process.kill()
            self._process.wait()
            self.room.close()

    def _heard(self, timeout_s: float) -> Message | None:
        """What it says next; None if it says nothing for so long.

        Raises:
            GeminiError: It is gone.
        """
        if not self._channel.waits(timeout_s):
            return None
        heard = self._channel.receive()
        if heard is None:
            self.close()
            code = self._process.returncode
            raise GeminiError(f"the process that makes it ended ({-code if code < 0 else code})")
        return heard[0]

    def _place(self, part: Bytes) -> int:
        """Where in the slab this part of it begins."""
        return int(part.ctypes.data - self._slab.memory.ctypes.data)
