"""Where in a whole tensor the elements of a rank's part of it lie."""

import torch

from gemini_lab.engine.frameworks.sharding import is_dtensor


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
