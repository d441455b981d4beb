"""The memory tier: CPU memory that outlives a worker and dies with its node (paper, section 3.1).

A slab belongs to a node's agent and is mapped by the worker that fills it. For each shard it keeps
two buffers: one with a complete version, one being written. Whoever has the descriptor can attach,
for the slab describes itself:

    slab header    magic, size, chunk size, slots, checksum
    per slot, twice:
        buffer header   seal | shard | version | payload bytes | digest of the digest table
        digest table    one xxh3_64 a chunk
        payload         page-aligned

The seal is the checksum of the four fields after it, and 0 while a buffer is written. It is the
first word that a write clears and the last one that it sets, each with one aligned 8-byte store:
a writer killed at any instruction leaves the other buffer's version whole, and a header with a
flipped bit is no complete version.
"""

import mmap
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from gemini_lab.checkpoint.memory import require_memory
from gemini_lab.errors import CapacityError, ConfigError, IntegrityError
from gemini_lab.units import format_bytes

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

_MAGIC: Final = int.from_bytes(b"GEMSLAB1", "little")
_PAGE: Final = 4096
_WORD: Final = 8
_SEAL, _SHARD, _VERSION, _PAYLOAD_BYTES, _TABLE_DIGEST = range(5)
_HEADER_WORDS: Final = 5
_BUFFERS: Final = 2
_THREADED_BYTES: Final = 32 * 2**20  # below this, threads cost more than they save


def chunk_digest(data: Bytes | bytes | bytearray | memoryview) -> int:
    """The checksum (xxh3_64) under which a chunk is stored and sent."""
    return xxhash.xxh3_64_intdigest(data.data if isinstance(data, np.ndarray) else data)


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """One shard that a slab keeps: its number and the room for its payload."""

    shard: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """A complete version of a shard; two copies with the same `digest` hold the same bytes."""

    shard: int
    version: int
    payload_bytes: int
    digest: int


class _Buffer:
    """Header, digest table and room for the payload of one version of one shard."""

    def __init__(self, memory: Bytes, start: int, slot: SlotSpec, chunk_bytes: int) -> None:
        table_start, payload_start, end = _buffer_extent(start, slot.payload_bytes, chunk_bytes)
        self.shard = slot.shard
        self.header: Words = memory[start : start + _HEADER_WORDS * _WORD].view(np.uint64)
        chunks = _chunk_count(slot.payload_bytes, chunk_bytes)
        self.table: Words = memory[table_start : table_start + chunks * _WORD].view(np.uint64)
        self.payload: Bytes = memory[payload_start : payload_start + slot.payload_bytes]
        self.end = end

    def copy(self) -> CopyInfo | None:
        """The complete version in this buffer, if its header is whole."""
        seal, *fields = (int(word) for word in self.header)
        shard, version, payload_bytes, digest = fields
        if seal != _seal(fields) or shard != self.shard or payload_bytes > self.payload.nbytes:
            return None
        return CopyInfo(shard, version, payload_bytes, digest)

    def open(self, version: int) -> None:
        self.header[_SEAL] = 0
        self.header[_SHARD] = self.shard
        self.header[_VERSION] = version

    def complete(self, payload_bytes: int, digests: Words) -> None:
        self.header[_PAYLOAD_BYTES] = payload_bytes
        self.header[_TABLE_DIGEST] = chunk_digest(digests.tobytes())
        self.header[_SEAL] = _seal([int(word) for word in self.header[1:]])


class WriteBuffer:
    """A version being written; only `commit` makes it one that exists.

    Attributes:
        data: The room for the payload, as bytes.
        digests: Checksums of the chunks sealed so far, `uint64`, in order.
    """

    def __init__(self, buffer: _Buffer, version: int, chunk_bytes: int) -> None:
        self._buffer = buffer
        self._chunk_bytes = chunk_bytes
        self._digested_bytes: dict[int, int | None] = {}  # by sealed chunk; None: digest was given
        self.version = version
        self.data = buffer.payload
        self.digests = buffer.table
        buffer.open(version)

    def chunk(self, index: int) -> Bytes:
        """The bytes of one chunk; the last one may be shorter."""
        return self.data[index * self._chunk_bytes : (index + 1) * self._chunk_bytes]

    def chunk_count(self, payload_bytes: int) -> int:
        """How many chunks cover a payload of that size."""
        return _chunk_count(payload_bytes, self._chunk_bytes)

    def seal_chunk(self, index: int, digest: int | None = None) -> None:
        """Store the chunk's checksum: `digest` from its sender, or computed here from its bytes."""
        self._digested_bytes[index] = None
        if digest is None:
            digest = chunk_digest(self.chunk(index))
            self._digested_bytes[index] = self.chunk(index).nbytes
        self.digests[index] = digest

    def commit(self, payload_bytes: int) -> None:
        """Make the first `payload_bytes` of `data` the complete version, with one last store.

        Raises:
            IntegrityError: A chunk of them was not sealed.
        """
        count = self.chunk_count(payload_bytes)
        missing = [i for i in range(count) if i not in self._digested_bytes]
        if missing or payload_bytes > self.data.nbytes:
            raise IntegrityError(
                f"version {self.version} of shard {self._buffer.shard} is not whole: of "
                f"{payload_bytes} bytes in {count} chunks (room for {self.data.nbytes} bytes), "
                f"chunks {missing[:8]} are not sealed; write and seal them before commit"
            )
        tail_bytes = payload_bytes - (count - 1) * self._chunk_bytes
        if count and self._digested_bytes[count - 1] not in {None, tail_bytes}:
            self.digests[count - 1] = chunk_digest(self.chunk(count - 1)[:tail_bytes])
        self._buffer.complete(payload_bytes, self.digests[:count])


class ReadBuffer:
    """A complete version in place: a view, which stays true until its buffer is written again.

    Attributes:
        info: What it is.
        data: The payload.
        digests: The chunks' checksums, `uint64`, in order.
    """

    def __init__(self, buffer: _Buffer, info: CopyInfo, chunk_bytes: int) -> None:
        self._buffer = buffer
        self._chunk_bytes = chunk_bytes
        self.info = info
        self.data = buffer.payload[: info.payload_bytes].data
        self.digests = buffer.table[: _chunk_count(info.payload_bytes, chunk_bytes)]

    def bad_chunks(self) -> list[int]:
        """The chunks whose bytes do not match their checksums; all are read."""
        return bad_chunks(self.data, self.digests, self._chunk_bytes, self.info.digest)

    def is_current(self) -> bool:
        """Whether the buffer still holds this version (nobody began to overwrite it)."""
        return self._buffer.copy() == self.info


class Slab:
    """CPU memory for the versions of some shards; see the module's text for its form."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self.fd = fd
        self._mmap = memory
        self.memory: Bytes = np.frombuffer(memory, np.uint8)
        self.chunk_bytes, self.slots = _read_slab_header(self.memory)
        start = _slab_header_bytes(len(self.slots))
        self._buffers: dict[int, list[_Buffer]] = {}
        for slot in self.slots:
            pair = self._buffers[slot.shard] = []
            for _ in range(_BUFFERS):
                pair.append(_Buffer(self.memory, start, slot, self.chunk_bytes))
                start = pair[-1].end

    @classmethod
    def create(cls, slots: Sequence[SlotSpec], *, chunk_bytes: int) -> Self:
        """A new, empty slab, with its memory really taken.

        Args:
            slots: The shards that it keeps: the node's own and the replicas of others.
            chunk_bytes: How much of a payload one checksum covers.

        Raises:
            ConfigError: A shard stands twice, or a size is not above zero.
            CapacityError: The machine or its control group has too little memory left.
        """
        size_bytes = slab_bytes(slots, chunk_bytes=chunk_bytes)
        require_memory(
            size_bytes,
            purpose=f"the checkpoint slab ({len(slots)} shards with two buffers each)",
            way_out="use fewer replicas, more nodes, or machines with more memory",
        )
        fd = _anonymous_file()
        try:
            _reserve(fd, size_bytes)
            memory = mmap.mmap(fd, size_bytes)
            _write_slab_header(np.frombuffer(memory, np.uint64), slots, chunk_bytes, size_bytes)
            return cls(fd, memory)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> Self:
        """The slab behind `fd`, which stays the caller's to close.

        Raises:
            IntegrityError: What is there is no slab, or its header was damaged.
        """
        size_bytes = os.fstat(fd).st_size
        if size_bytes == 0 or size_bytes % _PAGE:
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

    def begin(self, shard: int, version: int) -> WriteBuffer:
        """Start to write `version`, over the buffer without the newest complete version before it.

        So a version that is written again after a fall-back replaces its own old copy.
        """
        pair = self._pair(shard)
        copies = [buffer.copy() for buffer in pair]

        def worth(index: int) -> tuple[bool, int]:
            held = copies[index]
            return (held is not None and held.version < version, held.version if held else -1)

        return WriteBuffer(pair[min(range(_BUFFERS), key=worth)], version, self.chunk_bytes)

    def copies(self) -> list[CopyInfo]:
        """The complete versions that are here; their payloads are not read."""
        found = [buffer.copy() for pair in self._buffers.values() for buffer in pair]
        return [copy for copy in found if copy is not None]

    def read(self, shard: int, version: int) -> ReadBuffer:
        """A complete version in place.

        Raises:
            IntegrityError: It is not here, or not complete.
        """
        buffer, info = self._find(shard, version)
        return ReadBuffer(buffer, info, self.chunk_bytes)

    def snapshot(self, shard: int, version: int) -> bytearray:
        """A private copy of a complete version's payload, verified.

        Raises:
            IntegrityError: It is not here, a checksum is wrong, or it was overwritten meanwhile.
        """
        source = self.read(shard, version)
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

    def discard(self, shard: int, version: int) -> None:
        """Make a complete version not exist here any more (one that a recovery fell behind)."""
        self._find(shard, version)[0].header[_SEAL] = 0

    def _pair(self, shard: int) -> list[_Buffer]:
        if shard not in self._buffers:
            raise ConfigError(
                f"this slab keeps no shard {shard}, but {sorted(self._buffers)}; "
                "check the placement it was made for"
            )
        return self._buffers[shard]

    def _find(self, shard: int, version: int) -> tuple[_Buffer, CopyInfo]:
        for buffer in self._pair(shard):
            info = buffer.copy()
            if info is not None and info.version == version:
                return buffer, info
        here = [copy.version for copy in self.copies() if copy.shard == shard]
        raise IntegrityError(
            f"version {version} of shard {shard} is not complete here (complete: {sorted(here)})"
        )


def bad_chunks(
    data: bytes | bytearray | memoryview, digests: Words, chunk_bytes: int, table_digest: int
) -> list[int]:
    """The chunks of `data` that do not match `digests`; all if the table itself was damaged."""
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


def slab_bytes(slots: Sequence[SlotSpec], *, chunk_bytes: int) -> int:
    """The memory that a slab for `slots` takes, headers and checksums included.

    Raises:
        ConfigError: A shard stands twice, or a size is not above zero.
    """
    shards = [slot.shard for slot in slots]
    if len(set(shards)) != len(shards):
        raise ConfigError(f"a slab keeps each shard once, but was asked for {shards}")
    if chunk_bytes <= 0 or any(slot.payload_bytes <= 0 for slot in slots):
        raise ConfigError(
            f"chunk and payload sizes must be above zero (chunk_bytes={chunk_bytes}, "
            f"payloads {[slot.payload_bytes for slot in slots]})"
        )
    end = _slab_header_bytes(len(slots))
    for slot in slots:
        for _ in range(_BUFFERS):
            end = _buffer_extent(end, slot.payload_bytes, chunk_bytes)[-1]
    return end


def _chunk_count(payload_bytes: int, chunk_bytes: int) -> int:
    return -(-payload_bytes // chunk_bytes)


def _pages(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole pages."""
    return -(-size_bytes // _PAGE) * _PAGE


def _buffer_extent(start: int, payload_bytes: int, chunk_bytes: int) -> tuple[int, int, int]:
    """Where a buffer at `start` has its digest table and its payload, and where it ends."""
    table = start + _HEADER_WORDS * _WORD
    payload = _pages(table + _chunk_count(payload_bytes, chunk_bytes) * _WORD)
    return table, payload, payload + _pages(payload_bytes)


def _seal(fields: Sequence[int]) -> int:
    """The word that marks a header with these fields as complete; never 0."""
    return chunk_digest(np.array(fields, np.uint64).tobytes()) or 1


def _slab_header_bytes(slots: int) -> int:
    return _pages((5 + 2 * slots) * _WORD)


def _write_slab_header(
    words: Words, slots: Sequence[SlotSpec], chunk_bytes: int, size_bytes: int
) -> None:
    table = [number for slot in slots for number in (slot.shard, slot.payload_bytes)]
    fields = [_MAGIC, size_bytes, chunk_bytes, len(slots), *table]
    words[: len(fields) + 1] = [*fields, _seal(fields)]


def _read_slab_header(memory: Bytes) -> tuple[int, tuple[SlotSpec, ...]]:
    """Chunk size and slots; raises `IntegrityError` if a bit of the header is wrong."""
    words = memory.view(np.uint64)
    magic, size_bytes, chunk_bytes, count = (int(word) for word in words[:4])
    end = 4 + 2 * count
    fits = magic == _MAGIC and size_bytes == memory.nbytes and end < len(words)
    if not fits or int(words[end]) != _seal([int(word) for word in words[:end]]):
        raise IntegrityError(
            f"{format_bytes(memory.nbytes)} of memory hold no slab, or its header was damaged; "
            "its node's copies are lost: restore from another holder"
        )
    table = [int(word) for word in words[4:end]]
    return chunk_bytes, tuple(map(SlotSpec, table[::2], table[1::2]))


def _anonymous_file() -> int:
    """A descriptor of memory without a name, gone with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gemini-slab")
    fd, path = tempfile.mkstemp(prefix="gemini-slab-")
    os.unlink(path)  # noqa: PTH108 - mkstemp gives a string
    return fd


def _reserve(fd: int, size_bytes: int) -> None:
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
