"""What training's ranks tell each other when protection begins: small numbers."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, as torch.distributed has them."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather(values: Sequence[int]) -> list[list[int]]:
    """Every rank's `values` (equally many, 64-bit), in rank order; all ranks call it together."""
    if not dist.is_initialized():
        return [[*values]]
    on_cpu = "gloo" in dist.get_backend()
    device = "cpu" if on_cpu else get_accelerator().current_device_name()
    ours = torch.tensor(values, dtype=torch.int64, device=device)
    theirs = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, ours)
    return [one.tolist() for one in theirs]
