"""A shard's file of which parts are read: whoever needs a third of it does not read all.

A file is verified chunk by chunk, by the checksums in its version's manifest. So what is read is
whole chunks, each once where what is asked for lies in order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Final

import xxhash

from gemini_lab.errors import IntegrityError, UnreadError
from gemini_lab.shard.layout import ShardLayout, ShardRecord, framed
from gemini_lab.shard.recut import Move
from gemini_lab.storage.shard_file import header_end, unpack_layout
from gemini_lab.units import MIB

CHUNK_BYTES: Final = 4 * MIB
_MOST_CHUNKS: Final = 16  # read at once: bounds what a read takes in memory
_DIGITS: Final = 16  # of a chunk's digest
Range = tuple[int, int]
"""The first byte, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Part:
    """Verified bytes of a payload, from `start_bytes` on."""

    start_bytes: int
    data: memoryview

    def cut(self, start: int, end: int) -> tuple[int, memoryview]:
        """Return the part of a range that lies in it with its offset; nothing if none does."""
        low = max(start, self.start_bytes)
        high = min(end, self.start_bytes + len(self.data))
        if low >= high:
            return low, self.data[:0]
        return low, self.data[low - self.start_bytes : high - self.start_bytes]


class StoredShard:
    """A shard's file in a persistent tier.

    Args:
        read: Gives the bytes of the file from one to before another, as they are.

    Raises:
        IntegrityError: Its beginning, up to its tensors, is damaged.
        UnreadError: That cannot be read now.
    """

    def __init__(
        self, record: ShardRecord, read: Callable[[int, int], bytes], *, where: str
    ) -> None:
        self._record, self._read, self._where = record, read, where
        self._size_bytes = record.chunk_bytes or record.size_bytes  # of what one checksum covers
        self.read_bytes = 0  # how much of the file was read so far
        begin = self._verified(0, 1)
        self._start_bytes = header_end(begin)
        begin = self._longer(begin, self._start_bytes)
        # What lies where in its payload.
        self.layout: ShardLayout = unpack_layout(begin[: self._start_bytes])
        small_bytes = self._start_bytes + self.layout.small_offset_bytes
        end_bytes = small_bytes + self.layout.small_capacity_bytes
        # Its small state, framed.
        self.small: bytes = framed(self._longer(begin, end_bytes)[small_bytes:end_bytes])

    def parts(self, ranges: Sequence[Range]) -> Iterator[Part]:
        """Return parts of the payload that together hold these ranges, in order.

        Raises:
            IntegrityError: A bit of them is wrong.
            UnreadError: They cannot be read now.
        """
        shift = self._start_bytes
        wanted = sorted(
            {n for low, high in ranges for n in self._chunks((low + shift, high + shift))}
        )
        neighbours = groupby(enumerate(wanted), key=lambda at: at[1] - at[0])
        for _, group in neighbours:
            run = [number for _, number in group]
            for index in range(0, len(run), _MOST_CHUNKS):
                some = run[index : index + _MOST_CHUNKS]
                data = self._verified(some[0], some[-1] + 1)
                yield Part(some[0] * self._size_bytes - shift, memoryview(data))

    def copy(self, moves: Sequence[Move], target: memoryview) -> None:
        """Carry out moves from this shard, in the order in which they lie in it.

        Raises:
            IntegrityError: A bit of what they move is wrong.
            UnreadError: It cannot be read now.
        """
        ranges = [(move.source_bytes, move.source_bytes + move.size_bytes) for move in moves]
        first = 0
        for part in self.parts(ranges):
            while ranges[first][1] <= part.start_bytes:
                first += 1
            for move, (start, end) in islice(zip(moves, ranges, strict=True), first, None):
                if start >= part.start_bytes + len(part.data):
                    break
                at, data = part.cut(start, end)
                at += move.target_bytes - start
                target[at : at + len(data)] = data

    def _longer(self, begin: bytes, end_bytes: int) -> bytes:
        """Return the beginning of the file, extended by the missing chunks up to a byte."""
        have, wanted = self._chunks((0, len(begin)))[-1] + 1, self._chunks((0, end_bytes))[-1] + 1
        return begin + self._verified(have, wanted) if have < wanted else begin

    def _chunks(self, bounds: Range) -> range:
        """Return the chunks that a range of the file touches."""
        start, end = bounds
        return range(start // self._size_bytes, -(-end // self._size_bytes))

    def _verified(self, first: int, end: int) -> bytes:
        start_bytes = first * self._size_bytes
        end_bytes = min(end * self._size_bytes, self._record.size_bytes)
        size_bytes = end_bytes - start_bytes

        def is_right(data: bytes) -> bool:
            return all(self._is_right(number, first, data) for number in range(first, end))

        where = f"bytes {start_bytes} to {end_bytes} of {self._where}"
        data = verified(
            lambda: self._read(start_bytes, end_bytes), is_right, size_bytes=size_bytes, where=where
        )
        self.read_bytes += size_bytes
        return data

    def _is_right(self, number: int, first: int, data: bytes) -> bool:
        digests = self._record.chunk_digests
        if not digests:  # an older version's file, which can be verified as a whole alone
            return xxhash.xxh3_128_hexdigest(data) == self._record.digest
        at = (number - first) * self._size_bytes
        found = xxhash.xxh3_64_hexdigest(memoryview(data)[at : at + self._size_bytes])
        return found == digests[number * _DIGITS : (number + 1) * _DIGITS]


def verified(
    read: Callable[[], bytes], is_right: Callable[[bytes], bool], *, size_bytes: int, where: str
) -> bytes:
    """Read bytes of a store and verify them; tell damage from what a store fails to deliver.

    A store that is overloaded, behind a proxy or out of date returns nothing, too little, another
    page, or other bytes at each try. Only a store that returns the same wrong bytes twice, as many
    as were written, has damaged ones.

    Raises:
        IntegrityError: They are damaged.
        UnreadError: The store did not return them.
    """
    data = read()
    if len(data) == size_bytes:
        if is_right(data):
            return data
        if (again := read()) == data:
            raise IntegrityError(
                f"{where} differ from their checksum, twice alike; use another version"
            )
        if len(again) == size_bytes and is_right(again):
            return again
        raise UnreadError(f"{where} came differently from two reads, and wrong; read them again")
    raise UnreadError(
        f"of {where}, {size_bytes} were written and {len(data)} came; read them again, or see what "
        "the store has"
    )


def digest_chunks(*parts: bytes | bytearray | memoryview) -> str:
    """Return the digests of the chunks of a file made of these parts in order."""
    digests, room, hasher = [], CHUNK_BYTES, xxhash.xxh3_64()
    for part in parts:
        view, at = memoryview(part).cast("B"), 0
        while at < len(view):
            taken = view[at : at + room]
            hasher.update(taken)
            at, room = at + len(taken), room - len(taken)
            if not room:
                digests.append(hasher.hexdigest())
                room, hasher = CHUNK_BYTES, xxhash.xxh3_64()
    if room < CHUNK_BYTES:
        digests.append(hasher.hexdigest())
    return "".join(digests)
