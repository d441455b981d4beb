"""A shard on its way into the slab: its bytes, and the checksums that were made on that way."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.transfer.local_copy import CACHED_BYTES, LocalCopy
from gemini_lab.transfer.version import OutgoingVersion

MOST_BYTES = 3 * CACHED_BYTES


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, MOST_BYTES), min_size=1, max_size=4),
    chunk_bytes=st.integers(1, MOST_BYTES // 4096).map(lambda pages: 4096 * pages),
    stops=st.lists(st.floats(0, 1), max_size=3).map(sorted),
)
def test_checksums_made_on_the_way_are_those_of_whole_chunks(
    sizes: list[int], chunk_bytes: int, stops: list[float]
) -> None:
    """Wherever tensors, chunks and the parts that are copied at a time end."""
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randint(0, 256, (n,), dtype=torch.uint8, generator=generator) for n in sizes]
    offsets = np.cumsum([0, *sizes])
    payload_bytes = int(offsets[-1])
    pieces = [(int(offset), one) for offset, one in zip(offsets, tensors, strict=False)]
    slab = Slab.create([SlotSpec(0, payload_bytes)], chunk_bytes=chunk_bytes)
    try:
        buffer = slab.begin(0, 1)
        version = OutgoingVersion(version=1, pieces=pieces, payload_bytes=payload_bytes)
        copy = LocalCopy(version, buffer)
        for share in (*stops, 1.0):
            copy.up_to(int(share * payload_bytes))
        buffer.commit(payload_bytes)

        kept = slab.read(0, 1)
        assert bytes(kept.data) == torch.cat(tensors).numpy().tobytes()
        assert not kept.bad_chunks()
    finally:
        slab.close()


def test_a_tensor_that_was_copied_can_be_resized() -> None:
    """As some frameworks do with weights, to let their memory go: numpy would forbid it."""
    weight = torch.ones(1000)
    slab = Slab.create([SlotSpec(0, weight.nbytes)], chunk_bytes=4096)
    try:
        version = OutgoingVersion(version=1, pieces=[(0, weight)], payload_bytes=weight.nbytes)
        LocalCopy(version, slab.begin(0, 1)).up_to(weight.nbytes)
        weight.untyped_storage().resize_(0)
    finally:
        slab.close()
