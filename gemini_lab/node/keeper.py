"""An agent's side of the two tiers: slabs, their inventory, and the way to persistent storage."""

from collections.abc import Sequence
from contextlib import suppress

from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import CopyInfo, Slab, SlotSpec, flip_bit
from gemini_lab.recovery.messages import DamagedCopy, KeptCopy, SlabRequest
from gemini_lab.shard.layout import ShardLayout, ShardRecord, require_same
from gemini_lab.shard.lineage import NO_LINEAGE, Lineage
from gemini_lab.storage import persistent_tier


class MemoryKeeper:
    """The slabs of one node: one for each of its workers' places.

    Attributes:
        layouts: By shard, what lies where in the payloads of this node's own shards.
    """

    def __init__(self) -> None:
        self._slabs: dict[int, Slab] = {}
        self.layouts: dict[int, ShardLayout] = {}

    def slab(self, local_rank: int, wanted: SlabRequest) -> Slab:
        """The slab of a place: the one that is there, or a new one of the same form.

        One that was made for another position is laid out anew: whatever of it counts was asked
        for in the inventory before, and what its new place keeps too comes along.

        Raises:
            ConfigError: The model or its optimizer is not the one whose versions are kept.
            CapacityError: Memory is short.
        """
        own, chunk_bytes = wanted.slots[0].shard, wanted.chunk_bytes
        if own in self.layouts:
            require_same(self.layouts[own].identity, wanted.layout.identity)
        specs = tuple(SlotSpec(slot.shard, slot.payload_bytes) for slot in wanted.slots)
        slab = self._slabs.get(local_rank)
        if slab is None or slab.slots != specs or slab.chunk_bytes != chunk_bytes:
            slab = self._lay_out(local_rank, specs, chunk_bytes=chunk_bytes)
        self.layouts[own] = wanted.layout
        return slab

    def _lay_out(self, local_rank: int, specs: tuple[SlotSpec, ...], *, chunk_bytes: int) -> Slab:
        """A new slab in the place of an old one, with the copies that both have room for."""
        old = self._slabs.pop(local_rank, None)
        kept = [] if old is None else _copies_that_fit(old, specs, chunk_bytes)
        if old is not None:
            old.close()  # before the new one is made: there may be no room for both
        slab = self._slabs[local_rank] = Slab.create(specs, chunk_bytes=chunk_bytes)
        for info, payload in kept:
            buffer = slab.begin(info.shard, info.version, info.lineage)
            buffer.data[: len(payload)] = memoryview(payload)
            for index in range(buffer.chunk_count(len(payload))):
                buffer.seal_chunk(index)
            buffer.commit(len(payload))
        return slab

    def inventory(self, run: int) -> tuple[list[KeptCopy], list[DamagedCopy]]:
        """Which of a run's copies are whole here, and which differ from their checksums.

        All are read. Copies of other runs are nobody's any more, and not mentioned.
        """
        copies, damaged = [], []
        for slab in self._slabs.values():
            for copy in slab.copies():
                if copy.lineage.run != run:
                    continue
                bad = slab.read(copy.shard, copy.version, copy.lineage).bad_chunks()
                if bad:
                    damaged.append(DamagedCopy(copy.shard, copy.version, copy.lineage, bad[0]))
                else:
                    copies.append(KeptCopy(copy.shard, copy.version, copy.lineage))
        return copies, damaged

    def own_shards(self) -> list[int]:
        """The shards whose owners are this node's workers."""
        return sorted(slab.slots[0].shard for slab in self._slabs.values())

    def has(self, version: int) -> bool:
        """Whether this node's own shards of `version` are complete."""
        found = {c.shard for s in self._slabs.values() for c in s.copies() if c.version == version}
        return bool(found) and found >= set(self.own_shards())

    def has_passed(self, version: int) -> bool:
        """Whether a newer version than this is complete here: this one does not come any more."""
        own = set(self.own_shards())
        copies = [copy for slab in self._slabs.values() for copy in slab.copies()]
        return any(copy.shard in own and copy.version > version for copy in copies)

    def persist(self, version: int, url: str) -> tuple[Lineage, list[ShardRecord]]:
        """Write this node's own shards of `version` to the persistent tier at `url`.

        Where several histories have had the version, the last one's is meant.

        Each shard is copied out of the slab first, so that training never waits for storage.

        Returns:
            The history that the version is of, and a record of each shard for the manifest.

        Raises:
            IntegrityError: The version is gone or damaged.
        """
        slabs = {slab.slots[0].shard: slab for slab in self._slabs.values()}
        found = [c for slab in self._slabs.values() for c in slab.copies() if c.version == version]
        lineage = max((c.lineage for c in found if c.shard in slabs), default=NO_LINEAGE)
        payloads = {shard: slab.snapshot(shard, version, lineage) for shard, slab in slabs.items()}
        tier = persistent_tier(url)
        return lineage, [
            tier.write_shard(version, shard, payload, self.layouts[shard])
            for shard, payload in payloads.items()
        ]

    def flip_bit(self, *, shard: int | None, bit: int) -> dict[str, int]:
        """Flip one bit in the newest complete copy of a shard, as failing memory does."""
        copies = [(c.version, c.shard, s) for s in self._slabs.values() for c in s.copies()]
        wanted = [c for c in copies if shard is None or c[1] == shard]
        if not wanted:
            raise IntegrityError(f"no complete copy of shard {shard} is kept here to be damaged")
        version, found, slab = max(wanted, key=lambda c: (c[0], -c[1]))
        size_bytes = slab.read(found, version).info.payload_bytes
        byte, flipped = divmod(bit % (size_bytes * 8), 8)
        flip_bit(slab, found, version, byte, flipped)
        return {"shard": found, "version": version, "byte": byte}

    def free(self) -> None:
        """Give all memory back."""
        for slab in self._slabs.values():
            slab.close()
        self._slabs.clear()
        self.layouts.clear()


def _copies_that_fit(
    slab: Slab, specs: Sequence[SlotSpec], chunk_bytes: int
) -> list[tuple[CopyInfo, bytearray]]:
    """The whole copies of `slab` whose shards have room in a slab of this form."""
    room = {spec.shard: spec.payload_bytes for spec in specs}
    found = []
    for info in slab.copies() if slab.chunk_bytes == chunk_bytes else ():
        if info.payload_bytes <= room.get(info.shard, -1):
            with suppress(IntegrityError):
                payload = slab.snapshot(info.shard, info.version, info.lineage)
                found.append((info, payload))
    return found
