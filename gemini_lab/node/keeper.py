"""An agent's side of the two tiers: slabs, their inventory, and the way to persistent storage."""

from gemini_lab.errors import ConfigError, IntegrityError
from gemini_lab.memory.slab import Slab, SlotSpec, flip_bit
from gemini_lab.recovery.messages import DamagedCopy, KeptCopy, SlabRequest
from gemini_lab.shard.layout import ShardLayout, ShardRecord, require_same
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

        Raises:
            ConfigError: The one that is there was made for other shards, and holds versions.
            CapacityError: Memory is short.
        """
        own, chunk_bytes = wanted.slots[0].shard, wanted.chunk_bytes
        if own in self.layouts:
            require_same(self.layouts[own].identity, wanted.layout.identity)
        specs = tuple(SlotSpec(slot.shard, slot.payload_bytes) for slot in wanted.slots)
        slab = self._slabs.get(local_rank)
        if slab is not None and (slab.slots != specs or slab.chunk_bytes != chunk_bytes):
            if slab.copies():
                raise ConfigError(
                    f"this node keeps shards of other sizes: {slab.slots} in chunks of "
                    f"{slab.chunk_bytes} bytes, asked for {specs} in chunks of {chunk_bytes}; "
                    "restart with the script as it was, or start a new run"
                )
            slab.close()
            slab = None
        if slab is None:
            slab = self._slabs[local_rank] = Slab.create(specs, chunk_bytes=chunk_bytes)
        self.layouts[own] = wanted.layout
        return slab

    def inventory(self) -> tuple[list[KeptCopy], list[DamagedCopy]]:
        """Which copies are whole here, and which differ from their checksums: all are read."""
        copies, damaged = [], []
        for slab in self._slabs.values():
            for copy in slab.copies():
                bad = slab.read(copy.shard, copy.version).bad_chunks()
                if bad:
                    damaged.append(DamagedCopy(copy.shard, copy.version, bad[0]))
                else:
                    copies.append(KeptCopy(copy.shard, copy.version))
        return copies, damaged

    def own_shards(self) -> list[int]:
        """The shards whose owners are this node's workers."""
        return sorted(slab.slots[0].shard for slab in self._slabs.values())

    def has(self, version: int) -> bool:
        """Whether this node's own shards of `version` are complete."""
        found = {c.shard for s in self._slabs.values() for c in s.copies() if c.version == version}
        return bool(found) and found >= set(self.own_shards())

    def persist(self, version: int, url: str) -> list[ShardRecord]:
        """Write this node's own shards of `version` to the persistent tier at `url`.

        Each shard is copied out of the slab first, so that training never waits for storage.

        Returns:
            A record of each for the manifest.

        Raises:
            IntegrityError: The version is gone or damaged.
        """
        slabs = {slab.slots[0].shard: slab for slab in self._slabs.values()}
        payloads = {shard: slab.snapshot(shard, version) for shard, slab in slabs.items()}
        tier = persistent_tier(url)
        return [
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
