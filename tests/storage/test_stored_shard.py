"""Parts of a shard's file: whole chunks, each once, every wrong bit in them found."""

from dataclasses import replace
from itertools import pairwise

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from made import made

from gemini_lab.errors import IntegrityError, UnreadError
from gemini_lab.shard.codec import decode_framed, encode_framed
from gemini_lab.shard.layout import ShardLayout, ShardRecord, lay_out
from gemini_lab.shard.recut import Move
from gemini_lab.storage.persistent import PersistentTier
from gemini_lab.storage.shard_file import pack_header
from gemini_lab.storage.stored_shard import CHUNK_BYTES, StoredShard, digest_chunks

CHUNK = 64


def layout_of(size_bytes):
    tensors = lay_out([("0.master", "uint8", (size_bytes,))], start_bytes=100)
    return made(
        ShardLayout,
        stage=3,
        optimizer="Adam",
        tensors=tensors,
        small_offset_bytes=0,
        small_capacity_bytes=100,
        payload_bytes=tensors[-1].offset_bytes + size_bytes,
    )


class File:
    """A shard's file in memory, in small chunks, and what was read of it."""

    def __init__(self, size_bytes=1000):
        self.layout = layout_of(size_bytes)
        small = encode_framed({"note": ["kept", 1]})
        rest = bytes(n * 7 % 251 for n in range(len(small), self.layout.payload_bytes))
        self.payload = small + rest
        self.data = bytearray(pack_header(len(self.payload), self.layout) + self.payload)
        chunks = (bytes(self.data[n : n + CHUNK]) for n in range(0, len(self.data), CHUNK))
        self.record = ShardRecord(
            shard=0,
            file="x",
            size_bytes=len(self.data),
            digest=xxhash.xxh3_128_hexdigest(bytes(self.data)),
            chunk_bytes=CHUNK,
            chunk_digests="".join(xxhash.xxh3_64_hexdigest(chunk) for chunk in chunks),
        )
        self.read = []

    def open(self, record=None):
        def read(start, end):
            self.read.append((start, end))
            return bytes(self.data[start:end])

        shard = StoredShard(record or self.record, read, where="shard 0")
        self.read.clear()
        return shard


RANGES = st.lists(st.tuples(st.integers(0, 1127), st.integers(1, 300)), min_size=1, max_size=6)


@given(ranges=RANGES)
def test_what_is_asked_for_is_copied_and_no_chunk_is_read_twice(ranges):
    file = File()
    moves, at = [], 0
    for start, size in sorted(ranges):
        source = max(start, at)
        at = min(start + size, file.layout.payload_bytes)
        if source < at:
            moves.append(
                Move(shard=0, source_bytes=source, target_bytes=source + 5, size_bytes=at - source)
            )
        at = max(at, source)
    target = bytearray(file.layout.payload_bytes + 5)
    shard = file.open()
    shard.copy(moves, memoryview(target))
    wanted = bytearray(len(target))
    for move in moves:
        part = file.payload[move.source_bytes : move.source_bytes + move.size_bytes]
        wanted[move.target_bytes : move.target_bytes + move.size_bytes] = part
    assert target == wanted
    read = sorted(file.read)
    assert all(start % CHUNK == 0 for start, _ in read)
    assert all(a[1] <= b[0] for a, b in pairwise(read))


def test_the_small_state_and_the_layout_are_there():
    file = File()
    shard = file.open()
    assert shard.layout == file.layout
    assert decode_framed(shard.small) == {"note": ["kept", 1]}
    assert shard.read_bytes < len(file.data)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_wrong_or_missing_bit_is_found_where_it_is_read_and_only_there(is_cut):
    file = File()
    shard = file.open()
    if is_cut:
        del file.data[-1]
    else:
        file.data[-1] ^= 1
    end = file.layout.payload_bytes
    assert b"".join(bytes(part.cut(200, 300)[1]) for part in shard.parts([(200, 300)]))
    wrong = UnreadError if is_cut else IntegrityError
    with pytest.raises(wrong, match=r"bytes \d+ to \d+ of shard 0"):
        list(shard.parts([(end - 1, end)]))


def test_a_file_without_chunk_checksums_is_verified_as_a_whole():
    file = File()
    old = replace(file.record, chunk_bytes=0, chunk_digests="")
    shard = file.open(old)
    (part,) = shard.parts([(500, 510)])
    assert bytes(part.cut(500, 510)[1]) == file.payload[500:510]
    file.data[-1] ^= 1
    with pytest.raises(IntegrityError, match="differ from their checksum"):
        list(shard.parts([(500, 510)]))


def test_chunks_are_digested_across_the_parts_of_a_file():
    header, payload = b"h" * 100, bytes(CHUNK_BYTES + 50)
    whole = header + payload
    expected = [
        xxhash.xxh3_64_hexdigest(whole[start : start + CHUNK_BYTES])
        for start in range(0, len(whole), CHUNK_BYTES)
    ]
    assert digest_chunks(header, payload) == "".join(expected)
    assert digest_chunks() == ""
    assert len(digest_chunks(payload[:CHUNK_BYTES])) == 16


def test_a_tier_opens_all_shards_of_a_version(tmp_path):
    tier, file = PersistentTier(str(tmp_path)), File()
    tier.commit(3, [tier.write_shard(3, 0, file.payload, file.layout)], {})
    assert tier.shards(3) == 1
    (shard,) = tier.open_shards(3)
    (part,) = shard.parts([(300, 310)])
    assert bytes(part.cut(300, 310)[1]) == file.payload[300:310]
    next(tmp_path.glob("version-*/shard-*")).unlink()
    with pytest.raises(UnreadError, match="and 0 came"):
        list(shard.parts([(300, 310)]))
