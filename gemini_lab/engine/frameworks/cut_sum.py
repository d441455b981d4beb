"""A checksum of weights that is the same however they are cut, and by however many ranks.

Each word of a whole weight is multiplied by an odd number of its own, and all is added up, modulo
2**64: so ranks add up what they hold, and their sums are added up. Of what every rank has, each
counts its share.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import torch
import xxhash

from gemini_lab.engine.frameworks.sharding import is_dtensor
from gemini_lab.engine.frameworks.weight_runs import place_of
from gemini_lab.engine.frameworks.weights import held_of, own_part
from gemini_lab.engine.ranks import gather, rank_and_world_size

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
