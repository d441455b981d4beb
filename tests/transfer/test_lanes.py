"""A GPU's streams and pinned slabs; all of it needs a GPU."""

import pytest
import torch

from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.transfer.lanes import CudaLanes, pin
from gemini_lab.transfer.local_copy import LocalCopy
from gemini_lab.transfer.version import OutgoingVersion
from gemini_lab.units import KIB, MIB

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="CUDA streams need a GPU, and PyTorch sees none here"
)


def test_lanes_wait_for_each_other_by_marks_only() -> None:
    lanes = CudaLanes()
    source, target = lanes.room(MIB), lanes.home(MIB)
    source.fill_(7)
    lanes.follow("bus", lanes.mark("training"))
    lanes.copy("bus", target, source)
    lanes.finish(lanes.mark("bus"))
    assert bool((target == 7).all())


def test_a_shard_on_the_gpu_reaches_a_pinned_slab_whole() -> None:
    lanes = CudaLanes()
    shard = torch.randint(256, (3 * MIB + 5,), dtype=torch.uint8, device="cuda")
    slab = Slab.create([SlotSpec(0, shard.numel())], chunk_bytes=256 * KIB)
    pin(slab.memory)
    buffer = slab.begin(0, 1)
    lanes.follow("local", lanes.mark("training"))
    version = OutgoingVersion(version=1, pieces=[(0, shard)], payload_bytes=shard.numel())
    LocalCopy(version, buffer, lanes=lanes).up_to(shard.numel())
    buffer.commit(shard.numel())
    copy = slab.read(0, 1)
    assert copy.bad_chunks() == []
    assert bytes(copy.data[: shard.numel()]) == bytes(shard.cpu().numpy())
