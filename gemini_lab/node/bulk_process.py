"""A bulk process: does what an agent must not, one thing at a time, and owns nothing.

Run as `python -m gemini_lab.node.bulk_process FD` with the agent's socket as descriptor FD. It
dies with its agent, whatever it waits for.
"""

import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from gemini_lab.engine.process_exit import die_with_parent
from gemini_lab.errors import IntegrityError, MessageError
from gemini_lab.memory.free import require_memory
from gemini_lab.memory.slab import CopyInfo, Slab, SlotSpec, flip_bit
from gemini_lab.recovery.messages import (
    BitFlipped,
    BulkReady,
    Commit,
    Committed,
    DamagedCopy,
    Disown,
    Disowned,
    FlipBit,
    FreeSlabs,
    InspectSlabs,
    KeptCopy,
    LayOutSlab,
    ListVersions,
    Message,
    Persisted,
    Refused,
    SlabLaidOut,
    SlabsFreed,
    SlabsInspected,
    VersionsListed,
    WriteLeft,
    WriteManifest,
    WriteShards,
)
from gemini_lab.shard.lineage import NO_LINEAGE
from gemini_lab.storage import persistent_tier
from gemini_lab.wire.local import LocalChannel


def answer_to(request: Message, slabs: list[Slab]) -> tuple[Message, tuple[int, ...]]:
    """Do what is asked, with these slabs; the answer, and descriptors that go with it."""
    match request:
        case LayOutSlab():
            slab = lay_out(request, slabs)
            slabs.append(slab)
            return SlabLaidOut(), (slab.fd,)
        case InspectSlabs():
            return inspect(request.run, slabs, ranks=request.ranks), ()
        case FlipBit():
            return flip_one_bit(request, slabs), ()
        case FreeSlabs():
            _free(slabs)
            return SlabsFreed(), ()
        case WriteShards():
            with full_store(is_full=request.is_full):
                return write_shards(request, slabs), ()
        case WriteManifest():
            return write_manifest(request.order), ()
        case WriteLeft():
            return write_left(request.order), ()
        case ListVersions():
            there = persistent_tier(request.url).survey()
            return VersionsListed(
                versions=there.stored, unclear=there.unclear, disowned=there.disowned
            ), ()
        case _:
            raise MessageError(f"no bulk process does {type(request).__name__}")


def lay_out(request: LayOutSlab, old: list[Slab]) -> Slab:
    """Return a new slab in the place of an old one, with the copies that fit in both."""
    specs = tuple(SlotSpec(slot.shard, slot.payload_bytes) for slot in request.slots)
    found = [copy for slab in old for copy in _copies_that_fit(slab, specs, request.chunk_bytes)]
    kept = sorted(found, key=lambda copy: copy[0].version)  # where there is less room, the newest
    _free(old)  # before the new one is made: there may be no room for both
    slab = Slab.create(specs, chunk_bytes=request.chunk_bytes, buffers=request.buffers)
    for info, payload in kept:
        buffer = slab.begin(info.shard, info.version, info.lineage)
        buffer.data[: len(payload)] = memoryview(payload)
        buffer.seal(len(payload))
    return slab


def _copies_that_fit(
    slab: Slab, specs: Sequence[SlotSpec], chunk_bytes: int
) -> list[tuple[CopyInfo, bytearray]]:
    """Return the whole copies of `slab` whose shards have room in a slab of this form."""
    room = {spec.shard: spec.payload_bytes for spec in specs}
    found = []
    for info in slab.copies() if slab.chunk_bytes == chunk_bytes else ():
        if info.payload_bytes <= room.get(info.shard, -1):
            with suppress(IntegrityError):
                payload = slab.snapshot(info.shard, info.version, info.lineage)
                found.append((info, payload))
    return found


def inspect(run: int, slabs: Sequence[Slab], *, ranks: int) -> SlabsInspected:
    """Read all copies of a run; return which are whole, and which differ from their checksums."""
    copies, damaged = [], []
    for slab in slabs:
        for copy in slab.copies():
            if copy.lineage.run != run:
                continue
            bad = slab.read(copy.shard, copy.version, copy.lineage).bad_chunks()
            if bad:
                damaged.append(DamagedCopy(copy.shard, copy.version, copy.lineage, bad[0]))
            else:
                copies.append(KeptCopy(copy.shard, copy.version, copy.lineage, ranks))
    return SlabsInspected(copies=copies, damaged=damaged)


def flip_one_bit(request: FlipBit, slabs: Sequence[Slab]) -> BitFlipped:
    """Flip one bit in the newest complete copy of a shard."""
    copies = [(c.version, c.shard, s) for s in slabs for c in s.copies()]
    wanted = [c for c in copies if request.shard in {None, c[1]}]
    if not wanted:
        which = "any shard" if request.shard is None else f"shard {request.shard}"
        raise IntegrityError(f"no complete copy of {which} is kept here to be damaged")
    version, shard, slab = max(wanted, key=lambda c: (c[0], -c[1]))
    size_bytes = slab.read(shard, version).info.payload_bytes
    byte, bit = divmod(request.bit % (size_bytes * 8), 8)
    flip_bit(slab, shard, version, byte, bit)
    return BitFlipped(shard=shard, version=version, byte=byte)


def write_shards(request: WriteShards, slabs: Sequence[Slab]) -> Persisted:
    """Write shards of a version to the persistent tier.

    Where several histories have had the version and none is named, the last one's is meant. All
    shards are copied out of their slabs first, for training does not wait for storage and soon
    writes over them.

    Raises:
        IntegrityError: The version is gone or damaged.
        CapacityError: There is no memory for the copies, or no room in the store.
    """
    order, version = request.order, request.order.version
    slab_of = {slot.shard: slab for slab in slabs for slot in slab.slots}
    shards = [layout.rank for layout in request.layouts]
    found = [c for slab in slabs for c in slab.copies() if c.version == version]
    newest = max((c.lineage for c in found if c.shard in shards), default=NO_LINEAGE)
    lineage = newest if order.lineage is None else order.lineage
    require_memory(
        sum(layout.payload_bytes for layout in request.layouts),
        purpose=f"saving version {version}, which is copied out of the way of training first,",
        way_out="the version is not saved; use more nodes, or machines with more memory",
    )
    payloads = [slab_of[shard].snapshot(shard, version, lineage) for shard in shards]
    tier = persistent_tier(order.url)
    records = [
        tier.write_shard(version, shard, payload, layout)
        for shard, payload, layout in zip(shards, payloads, request.layouts, strict=True)
    ]
    return Persisted(epoch=order.epoch, version=version, lineage=lineage, records=records)


def write_manifest(order: Commit) -> Committed:
    """Make a version exist whose shards are all written."""
    tier = persistent_tier(order.url, keep=order.keep)
    tier.commit(order.version, order.records, msgspec.to_builtins(order.meta))
    size_bytes = sum(record.size_bytes for record in order.records)
    return Committed(epoch=order.epoch, version=order.version, size_bytes=size_bytes)


def write_left(order: Disown) -> Disowned:
    """Write what was left behind, and say what still counts."""
    tier = persistent_tier(order.url)
    tier.disown(order.left)
    return Disowned(epoch=order.epoch, versions=tier.versions())


@contextmanager
def full_store(*, is_full: bool) -> Iterator[None]:
    """Limit the files of this process in the block: the kernel refuses to grow any, as if full."""
    # The kernel refuses as a full disk does, with an error: SIGXFSZ is ignored here.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if is_full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _free(slabs: list[Slab]) -> None:
    while slabs:
        slabs.pop().close()


def do(channel: LocalChannel, request: Message, fds: list[int]) -> None:
    """Answer a question; afterwards nothing is held of the slabs that came along with it."""
    slabs: list[Slab] = []
    try:
        try:
            slabs.extend(map(Slab.attach, fds))
        finally:
            for fd in fds:
                os.close(fd)
        channel.send(*answer_to(request, slabs))
    except Exception as error:  # noqa: BLE001 - the process's edge: told, then it goes on
        channel.send(Refused.of(error))
    finally:
        _free(slabs)


def main() -> None:
    """Do what the agent asks until it is gone."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the lab's to handle
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a full disk is an error, not the end
    channel = LocalChannel.adopt(int(sys.argv[1]))
    channel.send(BulkReady())
    while (heard := channel.receive()) is not None:
        do(channel, *heard)


if __name__ == "__main__":
    main()
