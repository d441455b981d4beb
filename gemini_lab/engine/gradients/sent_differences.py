"""The parts of `"replicate": "gradients"`: a recorder of own steps, makers of others' versions."""

import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from gemini_lab.engine.gradients.update_recorder import UpdateRecorder
from gemini_lab.engine.process_exit import Idleness
from gemini_lab.engine.state.engine_state import EngineState
from gemini_lab.errors import GeminiError
from gemini_lab.job import python_command
from gemini_lab.memory.room import Room
from gemini_lab.memory.slab import ReadBuffer, Slab, WriteBuffer
from gemini_lab.memory.slab_form import Bytes, Words
from gemini_lab.recovery.messages import MakerReady, MakeVersion, Message, Refused, VersionMade
from gemini_lab.settings import Settings
from gemini_lab.transfer.differences import Differences
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.version import Peers, Wire
from gemini_lab.wire.local import LocalChannel

IDLE_S: Final = 60.0
"""A process that has not answered and uses no processor for so long hangs."""
_LOOK_S: Final = 2.0


class VersionMaker:
    """Makes versions of one shard in a process of its own, which ends with this one.

    Training's main thread makes it: the process ends with the thread that started it.

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
        # Where differences are received.
        self.room = Room.create(difference_bytes, chunk_bytes=chunk_bytes)
        self.is_lost = False  # whether the process is gone
        self._slab = slab
        self._is_up = False
        self._starting = threading.Lock()  # any thread may ask whether it is ready
        self._channel, theirs = LocalChannel.pair()
        fds = (theirs.fileno(), slab.fd, self.room.fd)
        try:
            # PR_SET_PDEATHSIG ties it to the thread that starts it: so training's main thread does.
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
        """Return whether it has imported what it needs."""
        self.wait_until_ready(0.0)
        return self._is_up and not self.is_lost

    @property
    def pid(self) -> int:
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
        """Return the checksums of the version; raise a GeminiError if it was not made."""
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
        if not self.is_lost:
            self.is_lost = True
            self._channel.close()
            self._process.kill()
            self._process.wait()
            self.room.close()

    def _heard(self, timeout_s: float) -> Message | None:
        """Return its next message, `None` if none comes in time; a GeminiError means it is gone."""
        if not self._channel.waits(timeout_s):
            return None
        heard = self._channel.receive()
        if heard is None:
            self.close()
            code = self._process.returncode
            raise GeminiError(f"the process that makes it ended ({-code if code < 0 else code})")
        return heard[0]

    def _place(self, part: Bytes) -> int:
        return int(part.ctypes.data - self._slab.memory.ctypes.data)


def recorder_of(state: EngineState, settings: Settings) -> UpdateRecorder | None:
    """Return the recorder of this rank's steps, if the settings want one and there are peers.

    Raises:
        UnsupportedError: They want it, and nobody could make such steps again.
        CapacityError: Memory is short.
    """
    if settings.replicate != "gradients" or settings.scheme == "none" or settings.replicas == 1:
        return None
    return UpdateRecorder(
        state.framework,
        state.layout,
        small_bytes=len(state.capture_small()),
        chunk_bytes=settings.chunk_bytes,
    )


def sent_differences(
    recorder: UpdateRecorder, group: CheckpointGroup, slab: Slab, peers: Peers, settings: Settings
) -> tuple[Sequence[int], Callable[[Wire], Differences]]:
    """Start the processes that make versions here; all ranks call it together.

    Returns:
        Bytes that each rank sends of a version, and what makes the sender for a wire.
    """
    sizes_bytes = [size for (size,) in group.all_gather([recorder.room.data.nbytes])]
    makers = {
        rank: VersionMaker(
            slab,
            difference_bytes=sizes_bytes[rank],
            chunk_bytes=settings.chunk_bytes,
            kind=recorder.kind,
        )
        for rank in peers.receives_from
    }

    def over(wire: Wire) -> Differences:
        full_every = settings.full_copy_every
        return Differences(
            wire, peers, slab, own=recorder.room, makers=makers, full_every=full_every
        )

    return sizes_bytes, over
