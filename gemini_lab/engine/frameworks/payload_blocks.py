"""The order of a plain PyTorch job's tensors in a payload: one after another, by name and type.

A rank's own tensors (local shards, the stage of a pipeline, a model that is not parallel) are in
its payload as they are. Tensors that several ranks hold alike (under DDP, or where a device mesh
replicates) are kept once: a block of them is cut into as many equal parts as there are holders,
and each keeps its own part. So m copies exist in all, not m for each rank.
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
    """One tensor of the state of one rank."""

    parameter: int  # number of the parameter that it is, or is kept for, in the optimizer
    name: str  # `WEIGHT`, or the optimizer's name for it
    dtype: str  # by torch's name
    numel: int  # how many elements of it this rank has
    # The first of them in the whole tensor; None if they are not one run there.
    place: int | None = 0
    # The ranks that hold the same tensor; empty if this one alone does.
    holders: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSegment:
    """A run of elements of one tensor that lies in a payload."""

    kept: int  # the tensor's number
    start: int  # first element, in the flattened tensor
    numel: int  # how many
    at: int  # first element, in the block's part


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBlock:
    """All tensors of one name and type that the same ranks hold."""

    name: str  # theirs
    dtype: str  # theirs
    holders: tuple[int, ...]  # theirs; empty if this rank alone holds them
    numel: int  # elements of a part; the same for all holders
    # The segments of each holder's part, in the order of the holders.
    parts: tuple[tuple[TensorSegment, ...], ...]


def lay_blocks(kept: Sequence[Kept]) -> list[TensorBlock]:
    """Return blocks of all these tensors; holders of the same come to theirs in one order."""
    blocks = []
    numbers = sorted(range(len(kept)), key=lambda n: (kept[n].name != WEIGHT, *_key(kept[n]), n))
    for (name, dtype, holders), group in groupby(numbers, key=lambda n: _key(kept[n])):
        members, count = list(group), max(1, len(holders))
        size = -(-sum(kept[n].numel for n in members) // count)
        parts = tuple(tuple(_cut(kept, members, p * size, size)) for p in range(count))
        blocks.append(TensorBlock(name=name, dtype=dtype, holders=holders, numel=size, parts=parts))
    return blocks


def _key(one: Kept) -> tuple[str, str, tuple[int, ...]]:
    return one.name, one.dtype, one.holders


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
        offset += kept[number].numel
