"""Room for a rank's shard and replicas: sizes agreed between ranks, memory asked of the agent."""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from gemini_lab.errors import ConfigError
from gemini_lab.memory.slab import Slab
from gemini_lab.seats import Seats
from gemini_lab.shard.layout import ShardLayout
from gemini_lab.transfer.group import CheckpointGroup


class SlabOwner(Protocol):
    """Whoever makes slabs and outlives their workers: see `WorkerSession.request_slab`."""

    def request_slab(
        self,
        *,
        slots: Sequence[tuple[int, int]],
        chunk_bytes: int,
        buffers: int,
        layout: ShardLayout,
        replicas: Sequence[ShardLayout],
    ) -> int:
        """Return the descriptor of a slab with these slots: shard and payload bytes of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMemory:
    """The memory in which a rank keeps versions.

    Attributes:
        slab: Room for its own shard and the replicas of others.
    """

    slab: Slab
    shard_bytes: tuple[int, ...]


def open_shard_memory(
    layout: ShardLayout,
    *,
    rank: int,
    seats: Seats,
    chunk_bytes: int,
    buffers: int,
    group: CheckpointGroup,
    owner: SlabOwner,
) -> ShardMemory:
    """Return the memory for this rank's shards, with its content; all ranks call it together.

    Args:
        layout: Of this rank's own shard.
        rank: This one.
        seats: Who keeps whose shard.
        chunk_bytes: What one checksum covers.
        buffers: Of each shard; the oldest complete version goes when another one is written.
        group: All ranks.
        owner: Makes the slab, or has it from before a failure.

    Raises:
        CapacityError: The node's memory is short.
        ConfigError: The slab that is there was made for another model.
    """
    sizes_bytes, replicas = exchange_layouts(layout, rank=rank, seats=seats, group=group)
    slots = [(shard, sizes_bytes[shard]) for shard in seats.kept_shards(rank)]
    fd = owner.request_slab(
        slots=slots,
        chunk_bytes=chunk_bytes,
        buffers=buffers,
        layout=layout,
        replicas=replicas,
    )
    return ShardMemory(slab=Slab.attach(fd), shard_bytes=sizes_bytes)


def exchange_layouts(
    layout: ShardLayout, *, rank: int, seats: Seats, group: CheckpointGroup
) -> tuple[tuple[int, ...], list[ShardLayout]]:
    """Return payload bytes of all shards, and the layouts of those kept here beside the own.

    All ranks call it together, those too that have their memory already.
    """
    # A layout repeats the names of all tensors, so that it becomes much smaller.
    told = zlib.compress(json.dumps(layout.to_json()).encode())
    sizes = group.all_gather([layout.payload_bytes, len(told)])
    told_bytes = [size for _, size in sizes]
    replicas = [*_exchange(told, told_bytes, rank=rank, seats=seats, group=group)]
    return tuple(payload_bytes for payload_bytes, _ in sizes), replicas


def _exchange(
    told: bytes, sizes_bytes: Sequence[int], *, rank: int, seats: Seats, group: CheckpointGroup
) -> Iterator[ShardLayout]:
    """Yield the layouts of the other shards that are kept here; send the own one to its peers."""
    own = torch.frombuffer(bytearray(told), dtype=torch.uint8)
    sends = [group.isend(own, peer) for peer in seats.peers_that_keep(rank)]
    for shard in seats.kept_shards(rank)[1:]:
        received = torch.empty(sizes_bytes[shard], dtype=torch.uint8)
        group.recv(received, shard)
        values = json.loads(zlib.decompress(received.numpy().tobytes()))
        yield ShardLayout.from_json(values)
    for send in sends:
        send.wait()


def require_fingerprint(layout: ShardLayout, saved: str | None) -> None:
    """Refuse a model that is not that of the saved version, where its fingerprint is known.

    Raises:
        ConfigError: It is another one.
    """
    if saved and saved != layout.fingerprint:
        raise ConfigError(
            "the model, its optimizer or the number of ranks is not that of the saved version "
            f"(fingerprint {layout.fingerprint[:12]}, saved {saved[:12]}); restart with the "
            "script as it was, or start a new run"
        )
