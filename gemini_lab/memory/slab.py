"""The memory tier: CPU memory that outlives a worker and dies with its node (paper, section 3.1).

A slab belongs to a node's agent and is mapped by the worker that fills it. For each shard it keeps
two buffers, one with a complete version and one being written, or more where more versions are to
be kept. Whoever has the descriptor can attach, for the slab describes itself (`slab_form`).
"""

import mmap
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import numpy as np

from gemini_lab.errors import CapacityError, ConfigError, IntegrityError
from gemini_lab.memory.free import require_memory
from gemini_lab.memory.slab_form import (
    BUFFERS,
    PAGE_BYTES,
    Buffer,
    Bytes,
    Chunked,
    CopyInfo,
    SlotSpec,
    Words,
    chunk_digest,
    count_chunks,
    header_bytes,
    read_header,
    slab_bytes,
    write_header,
)
from gemini_lab.shard.lineage import NO_LINEAGE, Lineage
from gemini_lab.units import format_bytes

__all__ = [
    "CopyInfo",
    "ReadBuffer",
    "Slab",
    "SlotSpec",
    "WriteBuffer",
    "anonymous_file",
    "bad_chunks",
    "chunk_digest",
    "flip_bit",
    "reserve",
    "slab_bytes",
]

_THREADED_BYTES: Final = 32 * 2**20  # below this, threads cost more than they save


class WriteBuffer(Chunked):
    """A version being written; only `commit` makes it one that exists."""

    def __init__(self, buffer: Buffer, version: int, chunk_bytes: int, lineage: Lineage) -> None:
        super().__init__(buffer.payload, chunk_bytes)
        self._buffer = buffer
        self._digested_bytes: dict[int, int | None] = {}  # by sealed chunk; None: digest was given
        self.version = version
        self.digests = buffer.table  # checksums of the chunks sealed so far, `uint64`, in order
        buffer.open(version, lineage)

    def seal_chunk(self, index: int, digest: int | None = None) -> None:
        """Store the chunk's checksum: `digest` from its sender, or computed here from its bytes."""
        self._digested_bytes[index] = None
        if digest is None:
            digest = chunk_digest(self.chunk(index))
            self._digested_bytes[index] = self.chunk(index).nbytes
        self.digests[index] = digest

    def seal(self, payload_bytes: int) -> None:
        """Commit the first `payload_bytes` of `data`, all chunks sealed here."""
        for index in range(self.chunk_count(payload_bytes)):
            self.seal_chunk(index)
        self.commit(payload_bytes)

    def commit(self, payload_bytes: int) -> None:
        """Make the first `payload_bytes` of `data` the complete version, with one last store."""
        count = self.chunk_count(payload_bytes)
        missing = [i for i in range(count) if i not in self._digested_bytes]
        if missing or payload_bytes > self.data.nbytes:
            raise IntegrityError(
                f"version {self.version} of shard {self._buffer.shard} is not whole: of "
                f"{payload_bytes} bytes in {count} chunks (room for {self.data.nbytes} bytes), "
                f"chunks {missing[:8]} are not sealed; write and seal them before commit"
            )
        tail_bytes = payload_bytes - (count - 1) * self.chunk_bytes
        if count and self._digested_bytes[count - 1] not in {None, tail_bytes}:
            self.digests[count - 1] = chunk_digest(self.chunk(count - 1)[:tail_bytes])
        self._buffer.complete(payload_bytes, self.digests[:count])


class ReadBuffer:
    """A complete version in place: a view, which stays true until its buffer is written again."""

    def __init__(self, buffer: Buffer, info: CopyInfo, chunk_bytes: int) -> None:
        self._buffer = buffer
        self._chunk_bytes = chunk_bytes
        self.info = info  # what it is
        self.data = buffer.payload[: info.payload_bytes].data  # the payload
        # The chunks' checksums, `uint64`, in order.
        self.digests = buffer.table[: count_chunks(info.payload_bytes, chunk_bytes)]
        self._verified: set[int] = set()  # chunks that `verified` has read

    def bad_chunks(self) -> list[int]:
        """Return the chunks whose bytes do not match their checksums; all are read."""
        return bad_chunks(self.data, self.digests, self._chunk_bytes, self.info.digest)

    def verified(self, start: int, end: int) -> memoryview:
        """Return the bytes of a range, in place; only the chunks that they touch are read.

        Raises:
            IntegrityError: One of these, or the table of checksums, is damaged.
        """
        if not self._verified and chunk_digest(self.digests.tobytes()) != self.info.digest:
            raise IntegrityError("its table of checksums is damaged")
        for number in range(start // self._chunk_bytes, -(-end // self._chunk_bytes)):
            if number not in self._verified:
                at = number * self._chunk_bytes
                chunk = self.data[at : at + self._chunk_bytes]
                if chunk_digest(chunk) != int(self.digests[number]):
                    raise IntegrityError(f"chunk {number} differs from its checksum")
                self._verified.add(number)
        return self.data[start:end]

    def is_current(self) -> bool:
        """Return whether the buffer still holds this version (nobody began to overwrite it)."""
        return self._buffer.copy() == self.info


class Slab:
    """CPU memory for the versions of some shards; see the module's text for its form."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self.fd = fd
        # A version that who writes here never overwrites, and of which lineage.
        self.pinned: tuple[int, Lineage] | None = None
        self.memory: Bytes = np.frombuffer(memory, np.uint8)
        self.chunk_bytes, self.buffers, self.slots = read_header(self.memory)
        start = header_bytes(len(self.slots))
        self._buffers: dict[int, list[Buffer]] = {}
        for slot in self.slots:
            row = self._buffers[slot.shard] = []
            for _ in range(self.buffers):
                row.append(Buffer(self.memory, start, slot, self.chunk_bytes))
                start = row[-1].end

    @classmethod
    def create(cls, slots: Sequence[SlotSpec], *, chunk_bytes: int, buffers: int = BUFFERS) -> Self:
        """Create an empty slab, with its memory allocated now.

        Args:
            slots: The shards that it keeps: the node's own and the replicas of others.
            chunk_bytes: How much of a payload one checksum covers.
            buffers: Of each shard: one more than complete versions are to be kept.

        Raises:
            ConfigError: A shard stands twice, a size is not above zero, or there are too few
                buffers.
            CapacityError: The machine or its control group has too little memory left.
        """
        size_bytes = slab_bytes(slots, chunk_bytes=chunk_bytes, buffers=buffers)
        fewer = "use fewer replicas, more nodes, or machines with more memory"
        require_memory(
            size_bytes,
            purpose=f"the checkpoint slab ({len(slots)} shards with {buffers} buffers each)",
            way_out=fewer if buffers == BUFFERS else f"lower keep_in_memory, or {fewer}",
        )
        fd = anonymous_file()
        try:
            reserve(fd, size_bytes)
            memory = mmap.mmap(fd, size_bytes)
            words = np.frombuffer(memory, np.uint64)
            write_header(words, slots, chunk_bytes, buffers, size_bytes)
            return cls(fd, memory)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Attach to the slab behind `fd`, which the caller still has to close.

        Raises:
            IntegrityError: What is there is no slab, or its header was damaged.
        """
        size_bytes = os.fstat(fd).st_size
        if size_bytes == 0 or size_bytes % PAGE_BYTES:
            raise IntegrityError(f"descriptor {fd} has {size_bytes} bytes: no slab has that size")
        fd = os.dup(fd)
        try:
            return cls(fd, mmap.mmap(fd, size_bytes))
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Give the descriptor back; memory is freed when no process maps it and no view is left."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._buffers.clear()
        self.memory = np.empty(0, np.uint8)

    def begin(self, shard: int, version: int, lineage: Lineage | None = None) -> WriteBuffer:
        """Start to write `version`, over the buffer that is worth least.

        That is one without a complete version before `version`, or else the oldest: all others
        stay. So a version that is written again after a fall-back replaces its own old copy. The
        pinned one stays in any case.
        """
        row = self._row(shard)
        copies = [buffer.copy() for buffer in row]

        def worth(index: int) -> tuple[bool, bool, int, int]:
            held = copies[index]
            if held is None:
                return (False, False, -1, 0)
            is_pinned = (held.version, held.lineage) == self.pinned
            return (is_pinned, held.version < version, held.version, held.lineage.word)

        buffer = row[min(range(self.buffers), key=worth)]
        return WriteBuffer(buffer, version, self.chunk_bytes, lineage or NO_LINEAGE)

    def copies(self) -> list[CopyInfo]:
        """Return the complete versions in the slab; their payloads are not read."""
        found = [buffer.copy() for row in self._buffers.values() for buffer in row]
        return [copy for copy in found if copy is not None]

    def read(self, shard: int, version: int, lineage: Lineage | None = None) -> ReadBuffer:
        """Return a complete version in place; without a lineage, one of any.

        Raises:
            IntegrityError: It is not here, or not complete.
        """
        buffer, info = self._find(shard, version, lineage)
        return ReadBuffer(buffer, info, self.chunk_bytes)

    def snapshot(self, shard: int, version: int, lineage: Lineage | None = None) -> bytearray:
        """Copy a complete version's payload, and verify it.

        Raises:
            IntegrityError: It is not here, a checksum is wrong, or it was overwritten meanwhile.
        """
        source = self.read(shard, version, lineage)
        payload, digests = bytearray(source.data), source.digests.copy()
        if not source.is_current():
            raise IntegrityError(
                f"version {version} of shard {shard} was overwritten while it was copied; "
                "take the newest one"
            )
        if bad := bad_chunks(payload, digests, self.chunk_bytes, source.info.digest):
            raise IntegrityError(
                f"version {version} of shard {shard}: {len(bad)} of {len(digests)} chunks differ "
                f"from their checksums (first: {bad[0]}); take another holder's copy"
            )
        return payload

    def discard(self, shard: int, version: int, lineage: Lineage | None = None) -> None:
        """Make a complete version not exist here any more (one that a recovery fell behind)."""
        self._find(shard, version, lineage)[0].discard()

    def _row(self, shard: int) -> list[Buffer]:
        if shard not in self._buffers:
            raise ConfigError(
                f"this slab keeps no shard {shard}, but {sorted(self._buffers)}; "
                "check the placement it was made for"
            )
        return self._buffers[shard]

    def _find(
        self, shard: int, version: int, lineage: Lineage | None = None
    ) -> tuple[Buffer, CopyInfo]:
        for buffer in self._row(shard):
            info = buffer.copy()
            if info is not None and info.version == version and lineage in {None, info.lineage}:
                return buffer, info
        here = [copy.version for copy in self.copies() if copy.shard == shard]
        raise IntegrityError(
            f"version {version} of shard {shard} is not complete here (complete: {sorted(here)})"
        )


def bad_chunks(
    data: bytes | bytearray | memoryview, digests: Words, chunk_bytes: int, table_digest: int
) -> list[int]:
    """Return the chunks of `data` that do not match `digests`; all if the table is damaged."""
    count = len(digests)
    if chunk_digest(digests.tobytes()) != table_digest:
        return list(range(count)) or [0]
    view = memoryview(data)

    def is_bad(index: int) -> bool:
        chunk = view[index * chunk_bytes : (index + 1) * chunk_bytes]
        return chunk_digest(chunk) != int(digests[index])

    if view.nbytes < _THREADED_BYTES:
        return [index for index in range(count) if is_bad(index)]
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return [index for index, bad in enumerate(pool.map(is_bad, range(count))) if bad]


def flip_bit(slab: Slab, shard: int, version: int, byte_offset: int, bit: int) -> None:
    """Flip one bit in the payload of a complete version, as failing memory does."""
    payload = np.asarray(slab.read(shard, version).data)
    payload[byte_offset] ^= np.uint8(1 << bit)


def anonymous_file() -> int:
    """Create anonymous memory, which is freed with its last user; return its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gemini-slab")
    fd, path = tempfile.mkstemp(prefix="gemini-slab-")
    os.unlink(path)  # noqa: PTH108 - mkstemp gives a string
    return fd


def reserve(fd: int, size_bytes: int) -> None:
    """Take the memory now, so that no later store can find none."""
    try:
        os.ftruncate(fd, size_bytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size_bytes)
        else:
            block = bytes(2**20)
            for offset in range(0, size_bytes, len(block)):
                os.pwrite(fd, block[: size_bytes - offset], offset)
    except OSError as error:
        raise CapacityError(
            f"the system refused {format_bytes(size_bytes)} for the checkpoint slab: {error}; "
            "free memory or use fewer replicas"
        ) from error
