"""A model's weights beside their values: names of tied ones, a checksum of frozen ones."""

from collections.abc import Sequence
from typing import Any

import torch
import xxhash

from gemini_lab.engine.frameworks.sharding import is_dtensor
from gemini_lab.engine.ranks import gather, rank_and_world_size
from gemini_lab.errors import CannotGoOnError, UnsupportedError


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
    """One checksum of weights that may be spread over the ranks, the same on all of them.

    Raises:
        CannotGoOnError: This process takes the place of a rank that had others.
    """
    digest = xxhash.xxh3_128()
    for weight in weights:
        part = own_part(weight).detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(part.numpy().data)
    ours = [*digest.digest()]
    parts = gather(ours)
    if parts[rank_and_world_size()[0]] != ours:  # told by ranks that did not hear of this one
        raise CannotGoOnError(
            "its frozen weights are not those of the rank whose place it takes: the script makes "
            "others in every process"
        )
    return xxhash.xxh3_128_hexdigest(bytes(byte for part in parts for byte in part))


def own_part(weight: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a weight, without padding: its part if it is sharded, or all."""
    part: Any = weight.detach()
    if is_dtensor(part):
        part = part.to_local()
    elif hasattr(weight, "ds_tensor"):
        part = weight.ds_tensor[: held_of(weight)[1]]
    found: torch.Tensor = part
    return found


def held_of(weight: Any) -> tuple[int, int]:
    """First element and number of those that this rank holds of a weight of ZeRO's stage 3."""
    size: int = weight.partition_numel()
    start = torch.distributed.get_rank(weight.ds_process_group) * size
    return start, max(0, min(size, weight.ds_numel - start))


def require_apart(tensor: torch.Tensor, what: str) -> None:
    """Refuse a tensor some of whose elements are one place in memory: nothing can be put into it.

    Args:
        tensor: Any.
        what: What it is, for people.

    Raises:
        UnsupportedError: It is one, such as what `expand` gives.
    """
    if tensor.layout != torch.strided:
        return
    dims = sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    reach, is_sure = 0, True
    for stride, size in dims:
        is_sure &= stride > reach or size == 1
        reach += stride * (size - 1)
    if is_sure or not tensor.numel():
        return
    places = torch.zeros(1, dtype=torch.int64)
    for stride, size in dims:
        places = (places[:, None] + stride * torch.arange(size)).view(-1) if stride else places
    if len({*places.tolist()}) < tensor.numel():
        raise UnsupportedError(
            f"{what} has elements that share memory (shape {[*tensor.shape]}, strides "
            f"{[*tensor.stride()]}, as expand() gives it), so that no version can be put back into "
            "it; make it with .clone(memory_format=torch.contiguous_format) before `protect`"
        )
