"""A whole copy of a shard from one rank's slab to another's, as a recovery needs it."""

import time
from dataclasses import dataclass

import numpy as np
import torch

from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import ReadBuffer, Slab, chunk_digest
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.route import trimmed_chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedCopy:
    """What receiving a copy took.

    Attributes:
        verify_s: Seconds spent on checksums.
    """

    payload_bytes: int
    verify_s: float


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
) -> ReceivedCopy:
    """Receive and verify what `sender` sends by `send_copy`; then it is whole here too.

    Raises:
        IntegrityError: A chunk does not match its checksum.
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
    return ReceivedCopy(payload_bytes=payload_bytes, verify_s=verify_s)
