"""A rank's own shard on its way from live tensors into the slab."""

import ctypes
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch

from gemini_lab.memory.slab import WriteBuffer, chunk_digest
from gemini_lab.memory.slab_form import Bytes, ChunkDigest
from gemini_lab.transfer.device_queues import Lanes, Mark
from gemini_lab.transfer.version import OutgoingVersion

CACHED_BYTES: Final = 2**20
"""What is copied at a time, so that its checksum finds it in the core's cache."""
_AHEAD: Final = 2
"""Chunks that a device's lane is given before the first of them has come."""
_SEALERS: Final = 4
"""Threads that seal what a device copied: its bus is faster than the checksums of one thread."""


class LocalCopy:
    """Fills a rank's own buffer from live tensors, chunk by chunk, and seals each chunk.

    Args:
        lanes: The device's, if the tensors are on one; the next chunk is then copied by its local
            lane while threads of this copy's own seal those before.
        may_go_on: Called before each chunk; raises where the copy is to be broken off.

    Attributes:
        elapsed_s: Seconds spent so far.
    """

    def __init__(
        self,
        version: OutgoingVersion,
        own: WriteBuffer,
        *,
        lanes: Lanes | None = None,
        may_go_on: Callable[[], None] = lambda: None,
    ) -> None:
        self.payload_bytes = version.payload_bytes
        self.elapsed_s = 0.0
        self._pieces = [(o, t.detach().view(torch.uint8)) for o, t in version.pieces if t.numel()]
        self._own = own
        self._chunk_bytes = own.chunk(0).nbytes
        self._lanes = lanes
        self._may_go_on = may_go_on
        self._filled: deque[tuple[Bytes, Mark]] = deque()  # chunks, each with its lane's mark
        self._next_piece = 0
        self._done = 0

    def up_to(self, end_bytes: int) -> None:
        """Copy and seal what is missing of the first `end_bytes` of the payload."""
        started_s = time.perf_counter()
        last = -(-min(end_bytes, self.payload_bytes) // self._chunk_bytes)
        if self._lanes is None:
            while self._done < last:
                self._may_go_on()
                self._copy_sealed(self._done)
                self._done += 1
        else:
            # xxhash releases the GIL, so that threads seal in parallel.
            with ThreadPoolExecutor(_SEALERS, thread_name_prefix="gemini-seal") as sealers:
                seals = [sealers.submit(self._seal, *one) for one in self._arrived(last)]
            for seal in seals:
                seal.result()
        self.elapsed_s += time.perf_counter() - started_s

    def _copy_sealed(self, number: int) -> None:
        """Fill a chunk from this machine's memory, and seal it on the way."""
        start = number * self._chunk_bytes
        chunk = self._own.chunk(number)[: self.payload_bytes - start]
        digest = ChunkDigest()
        for at in range(0, chunk.nbytes, CACHED_BYTES):
            part = chunk[at : at + CACHED_BYTES]
            self._fill(torch.from_numpy(part), start + at)
            digest.update(part)
        self._own.seal_chunk(number, digest.value)

    def _arrived(self, last: int) -> Iterator[tuple[int, Bytes]]:
        """Yield the missing chunks before number `last`, each once a lane has copied it."""
        assert self._lanes is not None
        while self._done < last:
            self._may_go_on()
            while self._done + len(self._filled) < min(last, self._done + _AHEAD):
                self._filled.append(self._begin(self._done + len(self._filled)))
            chunk, mark = self._filled[0]
            self._lanes.finish(mark)
            self._filled.popleft()
            self._done += 1
            yield self._done - 1, chunk

    def _seal(self, number: int, chunk: Bytes) -> None:
        self._own.seal_chunk(number, chunk_digest(chunk))

    def _begin(self, number: int) -> tuple[Bytes, Mark]:
        """Queue the copy of a chunk in a lane; the returned mark says when it is done."""
        assert self._lanes is not None
        start = number * self._chunk_bytes
        chunk = self._own.chunk(number)[: self.payload_bytes - start]
        self._fill(torch.from_numpy(chunk), start)
        return chunk, self._lanes.mark("local")

    def _fill(self, room: torch.Tensor, start: int) -> None:
        """Fill `room` with the payload's bytes from `start` on."""
        end = start + room.numel()
        while self._next_piece < len(self._pieces):
            offset, piece = self._pieces[self._next_piece]
            low, high = max(start, offset), min(end, offset + piece.numel())
            if low < high:
                self._copy(room[low - start : high - start], piece[low - offset : high - offset])
            if offset + piece.numel() > end:
                return  # the rest of this piece belongs to the next chunk
            self._next_piece += 1

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if self._lanes is None:
            # By one thread, as training has the others; and not by numpy, as a tensor that it has
            # seen cannot be resized any more.
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
        else:
            self._lanes.copy("local", target, source)
