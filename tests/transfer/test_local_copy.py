"""A shard on its way into the slab: its bytes, and the checksums that were made on that way."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.transfer import local_copy
from gemini_lab.transfer.local_copy import CACHED_BYTES, LocalCopy
from gemini_lab.transfer.version import OutgoingVersion
from tests.transfer.fake_lanes import GlooLanes


class ThreadLanes(GlooLanes):
    """A device whose local lane is a thread: it copies when it comes to it."""

    def __init__(self) -> None:
        self.lane = ThreadPoolExecutor(1)
        self.may_copy = threading.Event()
        self.each_s = 0.0  # that a copy takes

    def copy(self, _lane, target, source) -> None:
        self.lane.submit(self._copy, target, source)

    def _copy(self, target, source) -> None:
        self.may_copy.wait(30)
        time.sleep(self.each_s)
        target.copy_(source)

    def mark(self, _lane):
        return self.lane.submit(lambda: None)

    def finish(self, mark) -> None:
        mark.result()


MOST_BYTES = 3 * CACHED_BYTES


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, MOST_BYTES), min_size=1, max_size=4),
    chunk_bytes=st.integers(1, MOST_BYTES // 4096).map(lambda pages: 4096 * pages),
    stops=st.lists(st.floats(0, 1), max_size=3).map(sorted),
    on_device=st.booleans(),
)
def test_checksums_made_on_the_way_are_those_of_whole_chunks(
    sizes: list[int], chunk_bytes: int, stops: list[float], *, on_device: bool
) -> None:
    """Wherever tensors, chunks, and what is copied at a time end; in CPU memory and by a device."""
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randint(0, 256, (n,), dtype=torch.uint8, generator=generator) for n in sizes]
    offsets = np.cumsum([0, *sizes])
    payload_bytes = int(offsets[-1])
    pieces = [(int(offset), one) for offset, one in zip(offsets, tensors, strict=False)]
    slab = Slab.create([SlotSpec(0, payload_bytes)], chunk_bytes=chunk_bytes)
    try:
        buffer = slab.begin(0, 1)
        version = OutgoingVersion(version=1, pieces=pieces, payload_bytes=payload_bytes)
        lanes = ThreadLanes() if on_device else None
        if lanes is not None:
            lanes.may_copy.set()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_copy, "SPAN_BYTES", 3 * chunk_bytes)
            copy = LocalCopy(version, buffer, lanes=lanes)
        with closing(copy):
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


def test_a_device_copies_everything_at_once_and_nothing_once_it_is_broken_off(monkeypatch) -> None:
    """Training waits for copies, so those must not wait for checksums; a stop must be one."""
    monkeypatch.setattr(local_copy, "SPAN_BYTES", 4096)
    weight = torch.ones(10 * 4096, dtype=torch.uint8)
    slab = Slab.create([SlotSpec(0, weight.nbytes)], chunk_bytes=4096)
    lanes = ThreadLanes()
    try:
        buffer = slab.begin(0, 1)
        version = OutgoingVersion(version=1, pieces=[(0, weight)], payload_bytes=weight.nbytes)
        copy = LocalCopy(version, buffer, lanes=lanes)
        copy.begin()
        lanes.each_s = 0.05  # more copies are under way than there are threads to wait for them
        lanes.may_copy.set()
        copy.close()
        written = bytes(buffer.data)
        assert written == bytes(weight.numpy())  # every span, though nobody asked `up_to` any
        weight.zero_()
        assert bytes(buffer.data) == written
    finally:
        slab.close()
