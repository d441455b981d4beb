"""A model's weights beside their values: names of tied ones, a checksum of frozen ones."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

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
    """Return this rank's part of a weight, without padding; all if it is not sharded."""
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


def place_of(tensor: torch.Tensor) -> int | None:
    """The first element of this rank's part, in the flattened whole.

    None if the part is not one run of elements there: a tensor that is sharded along another
    dimension than its first, or along several of a mesh's, can be restored by as many ranks, but
    be neither exported nor cut anew.
    """
    if not is_dtensor(tensor):
        return 0
    from torch.distributed.tensor import Shard  # noqa: PLC0415 - whoever has a DTensor has it, too

    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None or not all(one.is_replicate() or one == Shard(0) for one in placements):
        return None
    sharded = [n for n, one in enumerate(placements) if one == Shard(0)]
    if not sharded or not tensor.numel():
        return 0
    if len(sharded) > 1:
        return None
    rows = -(-tensor.shape[0] // mesh.size(sharded[0])) * coordinate[sharded[0]]
    return rows * (tensor.numel() // tensor.shape[0])


_WORD_BYTES: Final = 8
_SLICE_WORDS: Final = 1 << 20  # weighed at once: bounds the memory for that to some 16 MiB
SLICE_BYTES: Final = _SLICE_WORDS * _WORD_BYTES
_SUMS: Final = 1 << 64
_ODD: Final = 0x9E3779B97F4A7C15 - _SUMS  # odd, its bits look random; as a signed word


def sum_over_ranks(weights: Mapping[str, torch.Tensor]) -> str:
    """The checksum of these weights, the same on all ranks, which call it together.

    Empty where a weight is sharded so that the place of a rank's part in it is not known.
    """
    total, is_known = 0, True
    for name, weight in weights.items():
        part, place = own_part(weight).reshape(-1), _place(weight)
        is_known = is_known and (place is not None or not part.numel())
        number, of = _share(weight)
        low, high = (part.numel() * n // of for n in (number, number + 1))
        own = cut_sum(part[low:high], first=(place or 0) + low)
        total += own * (xxhash.xxh3_64_intdigest(name.encode()) | 1)
    found = gather([int(is_known), *(total % _SUMS).to_bytes(_WORD_BYTES, "little")])
    if not all(known for known, *_ in found):
        return ""
    words = (int.from_bytes(bytes(word), "little") for _, *word in found)
    return f"{sum(words) % _SUMS:016x}"


def cut_sum(part: torch.Tensor, *, first: int) -> int:
    """The sum of a flat tensor that is `part` from element `first` on, and zero elsewhere.

    A word that lies across a cut counts on both sides, with the bytes of each.
    """
    raw = part.detach().contiguous().view(torch.uint8)
    begin = at = first * part.element_size()
    end, total = begin + raw.numel(), 0
    while at < end:
        number = at // SLICE_BYTES
        stop = min(end, (number + 1) * SLICE_BYTES)
        low = at // _WORD_BYTES * _WORD_BYTES
        words = torch.zeros(-(-(stop - low) // _WORD_BYTES), dtype=torch.int64, device=raw.device)
        words.view(torch.uint8)[at - low : stop - low] = raw[at - begin : stop - begin]
        shift = low // _WORD_BYTES % _SLICE_WORDS
        odd = _odd_numbers(raw.device)[shift : shift + len(words)]
        total += int((words * odd).sum()) * (2 * number + 1)
        at = stop
    return total % _SUMS


@cache
def _odd_numbers(device: torch.device) -> torch.Tensor:
    """One for each word of a slice."""
    numbers = torch.arange(1, 2 * _SLICE_WORDS, 2, dtype=torch.int64, device=device)
    return (numbers * _ODD) | 1


def _place(weight: Any) -> int | None:
    """The first element of this rank's part of a weight."""
    return held_of(weight)[0] if hasattr(weight, "ds_tensor") else place_of(weight)


def _share(weight: Any) -> tuple[int, int]:
    """Which of how many shares of its part this rank is to count: others have the same part."""
    if hasattr(weight, "ds_tensor"):
        return 0, 1
    if not is_dtensor(weight):
        return rank_and_world_size()
    mesh, number, of = weight.device_mesh, 0, 1
    for dimension, at in enumerate(mesh.get_coordinate() or ()):
        if weight.placements[dimension].is_replicate():
            size = mesh.size(dimension)
            number, of = number * size + at, of * size
    return number, of
