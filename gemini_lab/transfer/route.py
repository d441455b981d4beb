"""How the chunks of a version travel between ranks: the contract, and the way in the background."""

import time
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
import torch

from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import ReadBuffer, Slab, chunk_digest
from gemini_lab.memory.slab_form import Bytes
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.group import CheckpointGroup, TransferHandle
from gemini_lab.transfer.version import (
    Chunks,
    OutgoingVersion,
    PayloadSource,
    Peers,
    SentBytes,
    VersionBuffers,
    Wire,
)

WINDOW_CHUNKS: Final = 4
"""Sends in flight at once: the paper's number of sub-buffers (section 5.3)."""


class Route(Protocol):
    """How the chunks of versions travel from rank to rank.

    For each version `begin` is called on training's thread, then `wait_for_first` and `exchange` on
    the replicator's.
    """

    def begin(self, version: OutgoingVersion, buffers: VersionBuffers[Chunks]) -> None:
        """Begin a version, before the next iteration calls a collective."""

    def wait_for_first(self) -> None:
        """Hold the replicator's thread while a version needs nothing of it yet."""

    def exchange(
        self, local: PayloadSource, buffers: VersionBuffers[Chunks], sizes_bytes: Mapping[int, int]
    ) -> tuple[SentBytes, ...]:
        """Send and receive the version's chunks.

        Args:
            local: Fills what leaves, as far as it is asked to.
            buffers: What leaves, and what is received.
            sizes_bytes: Bytes that are received of each rank.

        Returns:
            What left in which span.
        """

    def close(self) -> None:
        """Free what it holds; no version is under way."""


class BackgroundRoute:
    """Chunks leave as fast as the link takes them, the same chunk to all peers."""

    def __init__(self, wire: Wire, peers: Peers) -> None:
        self._group = wire.group
        self._wire = wire
        self._peers = peers

    def begin(self, version: OutgoingVersion, buffers: VersionBuffers[Chunks]) -> None:
        """Do nothing: all is done by the replicator's thread."""

    def wait_for_first(self) -> None:
        """Do nothing: a chunk leaves as soon as it can."""

    def close(self) -> None:
        """Do nothing: it holds nothing."""

    def exchange(
        self, local: PayloadSource, buffers: VersionBuffers[Chunks], sizes_bytes: Mapping[int, int]
    ) -> tuple[SentBytes, ...]:
        """Send and receive chunk by chunk, some of them at a time."""
        start_s = time.time()
        own_count = buffers.own.chunk_count(local.payload_bytes)
        counts = [
            buffer.chunk_count(sizes_bytes[rank]) for rank, buffer in buffers.incoming.items()
        ]
        under_way: deque[list[TransferHandle]] = deque()
        for index in range(max([own_count, *counts])):
            # Receiving is posted first: a peer's send then finds its room, and nobody waits.
            works = self._receive(index, buffers, sizes_bytes)
            if index < own_count:
                works += self._send(index, local, buffers.own)
            under_way.append(works)
            while len(under_way) > WINDOW_CHUNKS:
                self._group.finish(under_way.popleft())
        for works in under_way:
            self._group.finish(works)
        end_s = time.time()
        size_bytes = local.payload_bytes
        return tuple(
            SentBytes(span=None, peer=peer, sent_bytes=size_bytes, start_s=start_s, end_s=end_s)
            for peer in self._peers.sends_to
        )

    def _receive(
        self, index: int, buffers: VersionBuffers[Chunks], sizes_bytes: Mapping[int, int]
    ) -> list[TransferHandle]:
        works = []
        for rank, buffer in buffers.incoming.items():
            if index < buffer.chunk_count(sizes_bytes[rank]):
                room = torch.from_numpy(trimmed_chunk(buffer, index, sizes_bytes[rank]))
                works.append(self._group.irecv(room, rank))
        return works

    def _send(self, index: int, local: PayloadSource, own: Chunks) -> list[TransferHandle]:
        """Begin to send chunk number `index`, once it is copied and the link has carried it."""
        chunk = trimmed_chunk(own, index, local.payload_bytes)
        end_bytes = index * own.chunk(0).nbytes + chunk.nbytes
        local.up_to(end_bytes)
        sent_bytes = chunk.nbytes * len(self._peers.sends_to)
        self._wire.carry(sent_bytes, local, next_bytes=end_bytes + own.chunk(0).nbytes)
        return [self._group.isend(torch.from_numpy(chunk), rank) for rank in self._peers.sends_to]


def trimmed_chunk(buffer: Chunks, index: int, payload_bytes: int) -> Bytes:
    """Return the bytes of a chunk that belong to a payload of that size."""
    start = buffer.chunk(0).nbytes * index
    return buffer.chunk(index)[: payload_bytes - start]


def send_copy(copy: ReadBuffer, chunk_bytes: int, *, to: int, group: CheckpointGroup) -> None:
    """Send a whole version from this rank's slab to another rank, which calls `receive_copy`."""
    header = torch.tensor([copy.info.payload_bytes], dtype=torch.int64)
    group.send(header, to)
    group.send(torch.from_numpy(copy.digests.view(np.int64)), to)
    payload = torch.from_numpy(np.asarray(copy.data))
    for chunk in torch.split(payload, chunk_bytes):
        group.send(chunk, to)


def receive_copy(
    slab: Slab,
    *,
    shard: int,
    version: int,
    sender: int,
    group: CheckpointGroup,
    lineage: Lineage,
) -> float:
    """Receive and verify what `sender` sends by `send_copy`; then it is whole here too.

    Returns:
        Seconds spent on checksums.
    """
    header = torch.zeros(1, dtype=torch.int64)
    group.recv(header, sender)
    payload_bytes = int(header[0])
    buffer = slab.begin(shard, version, lineage)
    digests = np.zeros(buffer.chunk_count(payload_bytes), np.int64)
    group.recv(torch.from_numpy(digests), sender)
    bad, verify_s = [], 0.0
    for index, digest in enumerate(digests.view(np.uint64)):
        chunk = trimmed_chunk(buffer, index, payload_bytes)
        group.recv(torch.from_numpy(chunk), sender)
        started_s = time.perf_counter()
        if chunk_digest(chunk) != int(digest):
            bad.append(index)
        verify_s += time.perf_counter() - started_s
        buffer.seal_chunk(index, int(digest))
    if bad:
        raise IntegrityError(
            f"version {version} of shard {shard}, as rank {sender} sent it, has "
            f"{len(bad)} of {len(digests)} chunks that differ from their checksums"
        )
    buffer.commit(payload_bytes)
    return verify_s
