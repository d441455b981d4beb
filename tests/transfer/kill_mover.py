"""Two ranks move versions into each other's slabs; one is killed at a chunk. Prints what is left.

Run as a program: the parent holds the slabs, as agents do, and forks both ranks anew for every
chunk at which the second one dies. With the argument `scheduled`, chunks travel as a schedule says,
and every third place to die is tried.
"""

import json
import os
import signal
import sys

import torch
from torch.distributed import TCPStore

from gemini_lab.memory.slab import Slab, SlotSpec, WriteBuffer
from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule
from gemini_lab.shard.lineage import Lineage
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.scheduled_route import ScheduledRoute
from gemini_lab.transfer.version import OutgoingVersion, Peers, Wire

CHUNK_BYTES = 4096
PAYLOAD_BYTES = 5 * CHUNK_BYTES + 100
VERSIONS = 4


def payload(rank: int, version: int) -> torch.Tensor:
    """Bytes that tell rank and version."""
    generator = torch.Generator().manual_seed(100 * version + rank)
    return torch.randint(0, 256, (PAYLOAD_BYTES,), generator=generator, dtype=torch.uint8)


def schedule() -> ChunkSchedule:
    """Chunks that end elsewhere than what a checksum covers."""
    sizes = [3000] * (PAYLOAD_BYTES // 3000) + [PAYLOAD_BYTES % 3000]
    chunks = [
        Chunk(span=0, replica=1, offset_bytes=3000 * n, size_bytes=size_bytes)
        for n, size_bytes in enumerate(sizes)
    ]
    return ChunkSchedule(
        scheme="gemini",
        chunks=tuple(chunks),
        every_iterations=1,
        buffer_bytes=12000,
        sub_buffers=2,
        iteration_s=1.0,
        predicted_iteration_s=1.0,
        fingerprint="",
    )


class DeadlySlab(Slab):
    """Kills its process before the own shard's chunk number `seals_left` is sealed."""

    def begin(self, shard: int, version: int, lineage: Lineage | None = None) -> WriteBuffer:
        buffer = super().begin(shard, version, lineage)
        seal_chunk = buffer.seal_chunk

        def deadly(index, digest=None):
            self.seals_left -= 1
            if self.seals_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            seal_chunk(index, digest)

        if shard == self.rank:
            buffer.seal_chunk = deadly
        return buffer


def work(rank: int, port: int, fd: int, die_at: int, *, scheduled: bool) -> None:
    """Move all versions; die by SIGKILL before the own chunk number `die_at` is sealed."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    group = CheckpointGroup(store, rank=rank, world_size=2, timeout_s=10)
    peers = Peers(rank=rank, sends_to=(1 - rank,), receives_from={1 - rank: 1})
    wire = Wire(group=group, empty=(lambda _: None) if scheduled else None)
    slab = DeadlySlab.attach(fd)
    slab.rank, slab.seals_left = rank, die_at
    replicator = Replicator(wire, peers, slab, on_moved=lambda _: None)
    if scheduled:
        schedules = dict.fromkeys((0, 1), schedule())
        replicator.follow(ScheduledRoute(wire, peers, schedules, wait_for_span=lambda _: None))
    for version in range(1, VERSIONS + 1):
        pieces = [(0, payload(rank, version))]
        replicator.send(
            OutgoingVersion(version=version, pieces=pieces, payload_bytes=PAYLOAD_BYTES)
        )
    replicator.wait()


def left(slabs: list[Slab]) -> dict[int, list[int]]:
    """By shard, the versions that are whole on some slab and have the right bytes."""
    found: dict[int, set[int]] = {0: set(), 1: set()}
    for slab in slabs:
        for copy in slab.copies():
            read = slab.read(copy.shard, copy.version)
            expected = payload(copy.shard, copy.version).numpy().tobytes()
            assert not read.bad_chunks()
            assert bytes(read.data) == expected
            found[copy.shard].add(copy.version)
    return {shard: sorted(versions) for shard, versions in found.items()}


def main() -> None:
    scheduled = "scheduled" in sys.argv
    for die_at in range(1, 6 * VERSIONS + 2, 3 if scheduled else 1):
        slots = [SlotSpec(rank, PAYLOAD_BYTES) for rank in (0, 1)]
        slabs = [Slab.create(slots, chunk_bytes=CHUNK_BYTES) for _ in range(2)]
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        children = []
        for rank in (0, 1):
            pid = os.fork()
            if pid == 0:
                try:
                    work(
                        rank,
                        store.port,
                        slabs[rank].fd,
                        die_at if rank == 1 else 0,
                        scheduled=scheduled,
                    )
                finally:
                    os._exit(0)
            children.append(pid)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        print(json.dumps({"die_at": die_at, "statuses": statuses, "left": left(slabs)}), flush=True)
        for slab in slabs:
            slab.close()


if __name__ == "__main__":
    sys.exit(main())
