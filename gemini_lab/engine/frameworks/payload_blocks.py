"""How the tensors of a plain PyTorch job lie in a payload: one after another, by name and type.

What each rank has for itself (FSDP2's local shards, a model that is not parallel) is in its payload
as it is. What DDP replicates is there once: all of a block is cut into as many equal parts as there
are ranks, wherever the cuts fall, and each rank keeps its own. So there are m copies of it in all,
not m for each rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import torch

from gemini_lab.memory.slab_form import Bytes

WEIGHT: Final = "parameter.data"
"""The name of a weight's own tensor, which no optimizer gives to another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatRun:
    """A flat run of elements: where it begins, in bytes, how many, and their type by torch's name.

    Weights and state lie in the payload of a shard, gradients in that of a difference.
    """

    offset_bytes: int
    numel: int
    dtype: str

    def of(self, data: Bytes) -> torch.Tensor:
        dtype = getattr(torch, self.dtype)
        end = self.offset_bytes + self.numel * dtype.itemsize
        return torch.from_numpy(data[self.offset_bytes : end]).view(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One tensor of the state.

    Attributes:
        parameter: Number of the parameter that it is, or is kept for, in the optimizer.
        name: `WEIGHT`, or the optimizer's name for it.
        dtype: By torch's name.
        numel: How many elements of it this rank has.
        most: How many any rank has, once the ranks have told.
        place: The first of them in the whole tensor; None if they are not one run there.
    """

    parameter: int
    name: str
    dtype: str
    numel: int
    most: int = 0
    place: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSegment:
    """A run of elements of one tensor that lies in a payload.

    Attributes:
        kept: The tensor's number.
        start: First element, in the flattened tensor.
        numel: How many.
        at: First element, in the block's part.
    """

    kept: int
    start: int
    numel: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBlock:
    """All tensors of one name and type.

    Attributes:
        name: Theirs.
        dtype: Theirs.
        numel: Elements of a rank's part; the same for all.
        parts: The segments of each rank's part, by rank; those of a rank alone where nothing is
            shared out.
    """

    name: str
    dtype: str
    numel: int
    parts: tuple[tuple[TensorSegment, ...], ...]


def lay_blocks(kept: Sequence[Kept], *, ranks: int) -> list[TensorBlock]:
    """Return blocks of all these tensors, cut into so many parts; 1 where nothing is shared out."""
    blocks = []
    numbers = sorted(range(len(kept)), key=lambda n: (kept[n].name != WEIGHT, *_key(kept[n]), n))
    for (name, dtype), group in groupby(numbers, key=lambda n: _key(kept[n])):
        members = list(group)
        size = -(-sum(kept[n].most for n in members) // ranks)
        parts = tuple(tuple(_cut(kept, members, p * size, size)) for p in range(ranks))
        blocks.append(TensorBlock(name=name, dtype=dtype, numel=size, parts=parts))
    return blocks


def _key(one: Kept) -> tuple[str, str]:
    return one.name, one.dtype


def _cut(
    kept: Sequence[Kept], members: Sequence[int], low: int, size: int
) -> Iterator[TensorSegment]:
    """Return what lies in elements `low` to `low + size` of these tensors' concatenation."""
    offset = 0
    for number in members:
        start = max(low, offset)
        end = min(low + size, offset + kept[number].numel)
        if start < end:
            yield TensorSegment(
                kept=number, start=start - offset, numel=end - start, at=start - low
            )
        offset += kept[number].most
