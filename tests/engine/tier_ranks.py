"""Versions of tests' ranks in a persistent tier: written by some, fetched by as many or others."""

import json
from pathlib import Path

import torch.distributed as dist

from gemini_lab.engine.restore import RestoreContext, fetch
from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.seats import Seats
from gemini_lab.shard.layout import ShardRecord
from gemini_lab.shard.lineage import NO_LINEAGE
from gemini_lab.storage.persistent import PersistentTier

CHUNK_BYTES = 4096


def save(state, url, version, payload):
    """All ranks write a version together."""
    rank, folder = state.layout.rank, Path(url)
    tier = PersistentTier(url)
    record = tier.write_shard(version, rank, payload, state.layout)
    (folder / f"record-{rank}.json").write_text(json.dumps(vars_of(record)))
    dist.barrier()
    if rank == 0:
        records = [
            ShardRecord(**json.loads((folder / f"record-{n}.json").read_text()))
            for n in range(state.layout.world_size)
        ]
        tier.commit(version, records, {})
    dist.barrier()


def vars_of(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def fetched(state, url, version, *, may_restart=False):
    """A version of any number of ranks as this rank's payload, what is remarked, the receipt."""
    layout, remarks = state.layout, []

    def recast(layouts, smalls):
        small, told = state.recast(layouts, smalls, may_restart=may_restart)
        remarks.extend(told)
        return small

    ranks = layout.world_size
    seats = Seats(nodes=ranks, members=tuple(f"node-{n}" for n in range(ranks)))
    slab = Slab.create([SlotSpec(layout.rank, layout.payload_bytes)], chunk_bytes=CHUNK_BYTES)
    place = RestoreContext(
        rank=layout.rank,
        seats=seats,
        slab=slab,
        group=None,  # what is stored goes from rank to rank by no group
        persistent_url=url,
        lineage=NO_LINEAGE,
        layout=layout,
        recast=recast,
        old_slabs=lambda _: ([], []),  # memory has nothing of other numbers of ranks
        say=remarks.append,
    )
    receipt = fetch(version, place)
    return slab.snapshot(layout.rank, version), remarks, receipt
