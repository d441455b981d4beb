"""A GPU's streams and pinned slabs, most of which needs a GPU; and what is refused on any."""

import pytest
import torch

from gemini_lab.errors import ConfigError, UnsupportedError
from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.transfer.device_queues import CudaQueues, pin, require_current, require_one_device
from gemini_lab.transfer.local_copy import LocalCopy
from gemini_lab.transfer.version import OutgoingVersion
from gemini_lab.units import KIB, MIB

needs_a_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="CUDA streams need a GPU, and PyTorch sees none here"
)


def test_a_model_that_is_not_on_the_current_gpu_is_refused() -> None:
    require_current(torch.device("cuda:3"), 3)
    require_current(torch.device("cuda"), 3)
    with pytest.raises(ConfigError, match=r"torch.cuda.set_device\(3\)"):
        require_current(torch.device("cuda:3"), 0)


def test_state_on_several_devices_is_refused_and_state_in_cpu_memory_is_not() -> None:
    here, elsewhere = torch.device("meta"), torch.device("cuda:1")
    tensors = [torch.empty(1), torch.empty(1, device=here)]
    require_one_device(tensors, here)
    with pytest.raises(UnsupportedError, match="parts of its state are on meta"):
        require_one_device(tensors, elsewhere)


@needs_a_gpu
def test_lanes_wait_for_each_other_by_marks_only() -> None:
    lanes = CudaQueues()
    source, target = lanes.room(MIB), lanes.home(MIB)
    source.fill_(7)
    lanes.follow("bus", lanes.mark("training"))
    lanes.copy("bus", target, source)
    lanes.finish(lanes.mark("bus"))
    assert bool((target == 7).all())


@needs_a_gpu
def test_a_shard_on_the_gpu_reaches_a_pinned_slab_whole() -> None:
    lanes = CudaQueues()
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
