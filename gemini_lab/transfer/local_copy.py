"""A rank's own shard on its way from live tensors into the slab."""

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import torch

from gemini_lab.memory.slab import WriteBuffer, chunk_digest
from gemini_lab.memory.slab_form import ChunkDigest
from gemini_lab.transfer.device_queues import Lanes, Mark
from gemini_lab.transfer.version import OutgoingVersion
from gemini_lab.units import MIB

CACHED_BYTES: Final = 2**20
"""What is copied at a time, so that its checksum finds it in the core's cache."""
SPAN_BYTES: Final = 32 * MIB
"""What a device copies at a time: on an H200 within 1 % of the bus's rate, and 4 MiB within 3 %."""
_SEALERS: Final = 8
"""Threads that seal what a device copied. On an H200's host one seals 6 GB/s, four 21 GB/s, eight
37 GB/s, and the bus brings 55 GB/s."""


class LocalCopy:
    """Fills a rank's own buffer from live tensors, chunk by chunk, and seals each chunk.

    A device copies everything by its local lane as soon as it is told to, so that training waits
    for the bus and not for checksums; threads of this copy's own seal what has come.
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
        self._chunk_bytes = own.chunk_bytes
        self._lanes = lanes
        self._may_go_on = may_go_on
        self._next_piece = 0
        self._done = 0  # chunks, or a device's spans of chunks
        self._in_span = max(1, SPAN_BYTES // self._chunk_bytes)
        self._seals: list[Future[None]] = []  # of a device's spans
        self._sealers: ThreadPoolExecutor | None = None
        self._last: Mark | None = None

    def begin(self) -> None:
        """Begin to copy everything if it lies on a device; in CPU memory do nothing yet."""
        if self._lanes is None or self._sealers is not None:
            return
        self._sealers = ThreadPoolExecutor(
            _SEALERS, "gemini-seal", initializer=self._lanes.enter_thread
        )
        count = -(-self.payload_bytes // self._chunk_bytes)
        for first in range(0, count, self._in_span):
            self._may_go_on()
            span = range(first, min(first + self._in_span, count))
            start, end = span.start * self._chunk_bytes, span.stop * self._chunk_bytes
            room = self._own.data[start : min(end, self.payload_bytes)]
            self._fill(torch.from_numpy(room), start)
            self._last = self._lanes.mark("local")
            self._seals.append(self._sealers.submit(self._seal, span, self._lanes, self._last))

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
            self.begin()
            while self._done * self._in_span < last:
                self._may_go_on()
                self._seals[self._done].result()
                self._done += 1
        self.elapsed_s += time.perf_counter() - started_s

    def close(self) -> None:
        """Break off what is under way; afterwards nothing of this writes to the slab."""
        if self._lanes is None or self._sealers is None:
            return
        self._sealers.shutdown(cancel_futures=True)
        if self._last is not None:
            self._lanes.finish(self._last)

    def _copy_sealed(self, number: int) -> None:
        """Fill a chunk from this machine's memory, and seal it on the way."""
        start, chunk = number * self._chunk_bytes, self._own.chunk(number)
        digest = ChunkDigest()
        for at in range(0, chunk.nbytes, CACHED_BYTES):
            part = chunk[at : at + CACHED_BYTES]
            self._fill(torch.from_numpy(part), start + at)
            digest.update(part)
        self._own.seal_chunk(number, digest.value)

    def _seal(self, span: range, lanes: Lanes, mark: Mark) -> None:
        """Seal chunks, once the lane has copied them; xxhash releases the GIL meanwhile."""
        lanes.finish(mark)
        for number in span:
            self._own.seal_chunk(number, chunk_digest(self._own.chunk(number)))

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
