"""How the chunks of a version travel between ranks: the contract, and the way in the background."""

import time
from collections import deque
from typing import Final

import numpy as np
import torch

from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import ReadBuffer, Slab, chunk_digest
from gemini_lab.memory.slab_form import Chunked
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.group import CheckpointGroup, TransferHandle
from gemini_lab.transfer.version import (
    CopyUpTo,
    OutgoingVersion,
    Peers,
    SentBytes,
    VersionBuffers,
    Wire,
)

WINDOW_CHUNKS: Final = 4
"""Sends in flight at once: the paper's number of sub-buffers (section 5.3)."""


class Route:
    """How the chunks of versions travel from rank to rank.

    For each version `begin` is called on training's thread, then `wait_for_first` and `exchange` on
    the replicator's.
    """

    def begin(self, version: OutgoingVersion, buffers: VersionBuffers[Chunked]) -> None:
        """Begin a version, before the next iteration calls a collective."""

    def wait_for_first(self) -> None:
        """Hold the replicator's thread while a version needs nothing of it yet."""

    def exchange(
        self, copy_up_to: CopyUpTo, buffers: VersionBuffers[Chunked]
    ) -> tuple[SentBytes, ...]:
        """Send and receive the version's chunks; return what left in which span."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what it holds; no version is under way."""


class BackgroundRoute(Route):
    """Chunks leave as fast as the link takes them, the same chunk to all peers."""

    def __init__(self, wire: Wire, peers: Peers) -> None:
        self._group = wire.group
        self._wire = wire
        self._peers = peers

    def exchange(
        self, copy_up_to: CopyUpTo, buffers: VersionBuffers[Chunked]
    ) -> tuple[SentBytes, ...]:
        """Send and receive chunk by chunk, some of them at a time."""
        start_s = time.time()
        own_count = buffers.own.chunk_count()
        counts = [buffer.chunk_count() for buffer in buffers.incoming.values()]
        under_way: deque[list[TransferHandle]] = deque()
        for index in range(max([own_count, *counts])):
            # Receiving is posted first: a peer's send then finds its room, and nobody waits.
            works = self._receive(index, buffers)
            if index < own_count:
                works += self._send(index, copy_up_to, buffers.own)
            under_way.append(works)
            while len(under_way) > WINDOW_CHUNKS:
                self._group.finish(under_way.popleft())
        for works in under_way:
            self._group.finish(works)
        end_s = time.time()
        size_bytes = buffers.own.data.nbytes
        return tuple(
            SentBytes(span=None, peer=peer, sent_bytes=size_bytes, start_s=start_s, end_s=end_s)
            for peer in self._peers.sends_to
        )

    def _receive(self, index: int, buffers: VersionBuffers[Chunked]) -> list[TransferHandle]:
        return [
            self._group.irecv(torch.from_numpy(buffer.chunk(index)), rank)
            for rank, buffer in buffers.incoming.items()
            if index < buffer.chunk_count()
        ]

    def _send(self, index: int, copy_up_to: CopyUpTo, own: Chunked) -> list[TransferHandle]:
        """Begin to send chunk number `index`, once it is copied and the link has carried it."""
        chunk = own.chunk(index)
        end_bytes = index * own.chunk_bytes + chunk.nbytes
        copy_up_to(end_bytes)
        sent_bytes = chunk.nbytes * len(self._peers.sends_to)
        self._wire.carry(sent_bytes, copy_up_to, next_bytes=end_bytes + own.chunk_bytes)
        return [self._group.isend(torch.from_numpy(chunk), rank) for rank in self._peers.sends_to]


def send_copy(copy: ReadBuffer, chunk_bytes: int, *, to: int, group: CheckpointGroup) -> None:
    """Send a whole version from this rank's slab to another rank, which calls `receive_copy`."""
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
    """Receive and verify what `sender` sends by `send_copy`; return the seconds of checksums."""
    buffer = slab.begin(shard, version, lineage)
    digests = np.zeros(buffer.chunk_count(), np.int64)
    group.recv(torch.from_numpy(digests), sender)
    bad, verify_s = [], 0.0
    for index, digest in enumerate(digests.view(np.uint64)):
        chunk = buffer.chunk(index)
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
    buffer.commit(buffer.data.nbytes)
    return verify_s
