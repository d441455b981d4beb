"""The form of a slab: what lies where in its memory, and what makes a version in it complete.

    slab header    magic, size, chunk size, buffers, slots, checksum
    per slot, as often as there are buffers:
        buffer header   seal | shard | version | payload bytes | digest of the table | lineage
        digest table    one xxh3_64 a chunk
        payload         page-aligned

The seal is the checksum of the five fields after it, and 0 while a buffer is written. It is the
first word that a write clears and the last one that it sets, each with one aligned 8-byte store:
a writer killed at any instruction leaves the other buffers' versions whole, and a header with a
flipped bit is no complete version.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from gemini_lab.errors import ConfigError, IntegrityError
from gemini_lab.shard.lineage import Lineage
from gemini_lab.units import format_bytes

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

PAGE_BYTES: Final = 4096
BUFFERS: Final = 2
"""Buffers of each slot at least: one with a complete version, one being written."""
_MAGIC: Final = int.from_bytes(b"GEMSLAB3", "little")
_WORD: Final = 8
_SEAL, _SHARD, _VERSION, _PAYLOAD_BYTES, _TABLE_DIGEST, _LINEAGE = range(6)
_HEADER_WORDS: Final = 6
_FIRST_SLOT: Final = 5  # words of the slab's header before its table of slots


def chunk_digest(data: Bytes | bytes | bytearray | memoryview) -> int:
    """Return the checksum (xxh3_64) under which a chunk is stored and sent."""
    return xxhash.xxh3_64_intdigest(data.data if isinstance(data, np.ndarray) else data)


class Chunked:
    """Memory in chunks, as checksums cover them and messages carry them."""

    def __init__(self, data: Bytes, chunk_bytes: int) -> None:
        self.data = data
        self.chunk_bytes = chunk_bytes  # of each chunk but the last, which may be shorter

    def chunk(self, index: int) -> Bytes:
        return self.data[index * self.chunk_bytes : (index + 1) * self.chunk_bytes]

    def chunk_count(self, size_bytes: int | None = None) -> int:
        """Return the number of chunks that cover so many bytes; by default, all."""
        return count_chunks(
            self.data.nbytes if size_bytes is None else size_bytes, self.chunk_bytes
        )


class ChunkDigest:
    """The same checksum, of a chunk that comes in parts."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_64()

    def update(self, part: Bytes) -> None:
        self._state.update(part.data)

    @property
    def value(self) -> int:
        return self._state.intdigest()


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
    lineage: Lineage


class Buffer:
    """Header, digest table and room for the payload of one version of one shard."""

    def __init__(self, memory: Bytes, start: int, slot: SlotSpec, chunk_bytes: int) -> None:
        table_start, payload_start, end = _buffer_extent(start, slot.payload_bytes, chunk_bytes)
        self.shard = slot.shard
        self.header: Words = memory[start : start + _HEADER_WORDS * _WORD].view(np.uint64)
        chunks = count_chunks(slot.payload_bytes, chunk_bytes)
        self.table: Words = memory[table_start : table_start + chunks * _WORD].view(np.uint64)
        self.payload: Bytes = memory[payload_start : payload_start + slot.payload_bytes]
        self.end = end

    def copy(self) -> CopyInfo | None:
        """Return the complete version in this buffer, if its header is whole."""
        seal, *fields = self.header.tolist()
        shard, version, payload_bytes, digest, lineage = fields
        if seal != _seal(fields) or shard != self.shard or payload_bytes > self.payload.nbytes:
            return None
        return CopyInfo(shard, version, payload_bytes, digest, Lineage.from_word(lineage))

    def discard(self) -> None:
        """Make what is here no complete version, with one store."""
        self.header[_SEAL] = 0

    def open(self, version: int, lineage: Lineage) -> None:
        """Say that `version` is being written, before a byte of it is."""
        self.discard()
        self.header[_SHARD] = self.shard
        self.header[_VERSION] = version
        self.header[_LINEAGE] = lineage.word

    def complete(self, payload_bytes: int, digests: Words) -> None:
        """Make what was written the complete version; the seal is the very last store."""
        self.header[_PAYLOAD_BYTES] = payload_bytes
        self.header[_TABLE_DIGEST] = chunk_digest(digests.tobytes())
        self.header[_SEAL] = _seal(self.header[1:].tolist())


def slab_bytes(slots: Sequence[SlotSpec], *, chunk_bytes: int, buffers: int = BUFFERS) -> int:
    """Return the memory that a slab for `slots` takes, headers and checksums included."""
    if buffers < BUFFERS:
        raise ConfigError(f"a slot needs {BUFFERS} buffers at least (got {buffers})")
    shards = [slot.shard for slot in slots]
    if len(set(shards)) != len(shards):
        raise ConfigError(f"a slab keeps each shard once, but was asked for {shards}")
    if chunk_bytes <= 0 or any(slot.payload_bytes <= 0 for slot in slots):
        raise ConfigError(
            f"chunk and payload sizes must be above zero (chunk_bytes={chunk_bytes}, "
            f"payloads {[slot.payload_bytes for slot in slots]})"
        )
    end = header_bytes(len(slots))
    for slot in slots:
        for _ in range(buffers):
            end = _buffer_extent(end, slot.payload_bytes, chunk_bytes)[-1]
    return end


def count_chunks(payload_bytes: int, chunk_bytes: int) -> int:
    """Return the number of chunks that cover a payload."""
    return -(-payload_bytes // chunk_bytes)


def _pages(size_bytes: int) -> int:
    """Return `size_bytes` rounded up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _buffer_extent(start: int, payload_bytes: int, chunk_bytes: int) -> tuple[int, int, int]:
    """Return the offsets of a buffer's digest table, payload and end, given its start."""
    table = start + _HEADER_WORDS * _WORD
    payload = _pages(table + count_chunks(payload_bytes, chunk_bytes) * _WORD)
    return table, payload, payload + _pages(payload_bytes)


def _seal(fields: Sequence[int]) -> int:
    """Return the word that marks a header with these fields as complete; never 0."""
    return chunk_digest(struct.pack(f"={len(fields)}Q", *fields)) or 1


def header_bytes(slots: int) -> int:
    """Return the size of the header of a slab with so many slots."""
    return _pages((_FIRST_SLOT + 1 + 2 * slots) * _WORD)


def write_header(
    words: Words, slots: Sequence[SlotSpec], chunk_bytes: int, buffers: int, size_bytes: int
) -> None:
    """Write a slab's header: what is needed to attach, and its checksum."""
    table = [number for slot in slots for number in (slot.shard, slot.payload_bytes)]
    fields = [_MAGIC, size_bytes, chunk_bytes, buffers, len(slots), *table]
    words[: len(fields) + 1] = [*fields, _seal(fields)]


def read_header(memory: Bytes) -> tuple[int, int, tuple[SlotSpec, ...]]:
    """Return chunk size, buffers and slots; raise an IntegrityError if a bit is wrong."""
    words = memory.view(np.uint64)
    magic, size_bytes, chunk_bytes, buffers, count = (int(word) for word in words[:_FIRST_SLOT])
    end = _FIRST_SLOT + 2 * count
    fits = magic == _MAGIC and size_bytes == memory.nbytes and end < len(words)
    if not fits or int(words[end]) != _seal([int(word) for word in words[:end]]):
        raise IntegrityError(
            f"{format_bytes(memory.nbytes)} of memory hold no slab, or its header was damaged; "
            "its node's copies are lost: restore from another holder"
        )
    table = [int(word) for word in words[_FIRST_SLOT:end]]
    return chunk_bytes, buffers, tuple(map(SlotSpec, table[::2], table[1::2]))
