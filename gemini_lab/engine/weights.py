"""A model's weights beside their values: names of tied ones, a checksum of frozen ones."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import xxhash
from deepspeed.accelerator import get_accelerator

from gemini_lab.engine.zero import own_part


def aliases(module: torch.nn.Module) -> dict[str, str]:
    """Further names of tied weights, each with the name under which the weight is trained."""
    first: dict[int, str] = {}
    further = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(weight), name)
        if known != name:
            further[name] = known
    return further


def digest_over_ranks(weights: Sequence[torch.Tensor]) -> str:
    """One checksum of weights that may be spread over the ranks, the same on all of them."""
    digest = xxhash.xxh3_128()
    for weight in weights:
        part = own_part(weight).detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(part.numpy().data)
    device = get_accelerator().current_device_name()
    own = torch.tensor([*digest.digest()], dtype=torch.uint8, device=device)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return xxhash.xxh3_128_hexdigest(bytes(torch.cat(parts).tolist()))
