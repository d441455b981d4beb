"""Where in a weight the elements of a rank's part of it lie, for exporting whole weights."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor, Shard

from gemini_lab.engine.blocks import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Elements that lie side by side, both in the weight and in the payload's tensor."""

    weight_offset: int
    at: int
    numel: int


def runs_of(weight: torch.Tensor, segment: Segment, *, is_first: bool) -> Iterator[Run]:
    """Where a segment's elements lie in the weight.

    Nowhere, if other ranks have the same and are the ones to say it, or if the weight is sharded
    along another dimension than its first: it can be restored, but not be exported.

    Args:
        weight: Plain, or sharded.
        segment: Elements of this rank's part of it.
        is_first: Whether this rank speaks for a plain weight.
    """
    if not isinstance(weight, DTensor):
        if is_first:
            yield Run(weight_offset=segment.start, at=segment.at, numel=segment.numel)
        return
    mesh, placements = weight.device_mesh, weight.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None or not all(one.is_replicate() or one == Shard(0) for one in placements):
        return
    copies = [at for at, one in zip(coordinate, placements, strict=True) if one.is_replicate()]
    if any(copies) or sum(one == Shard(0) for one in placements) > 1:
        return
    row = weight.numel() // weight.shape[0]
    for dimension, one in enumerate(placements):
        if one == Shard(0):
            rows = -(-weight.shape[0] // mesh.size(dimension)) * coordinate[dimension]
            yield Run(weight_offset=rows * row + segment.start, at=segment.at, numel=segment.numel)
