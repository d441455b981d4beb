"""The operations of DeepSpeed's comm object, and how many bytes a call of each moves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Operation:
    """Where a method's arguments say how much it moves, and in which group.

    Attributes:
        sized: Name of the parameter whose tensors are counted; empty for none.
        position: Its position.
        group: The position of the parameter `group`.
        per_rank: Whether that tensor is one rank's part of the whole.
    """

    sized: str
    position: int = 0
    group: int = 2
    per_rank: bool = False

    def group_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The process group of a call; `None` is the world."""
        return kwargs.get("group", args[self.group] if len(args) > self.group else None)

    def size_bytes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Bytes of the full tensor: of the gathered, the reduced, the broadcast one."""
        if not self.sized:
            return 0
        value = kwargs.get(self.sized, args[self.position] if len(args) > self.position else None)
        ranks = dist.get_world_size(self.group_of(args, kwargs)) if self.per_rank else 1
        return _bytes_of(value) * ranks


OPERATIONS: Final[dict[str, Operation]] = {
    "all_reduce": Operation("tensor"),
    "inference_all_reduce": Operation("tensor"),
    "all_reduce_coalesced": Operation("tensors"),
    "reduce": Operation("tensor", group=3),
    "reduce_scatter": Operation("input_list", 1, group=3),
    "reduce_scatter_tensor": Operation("input_tensor", 1, group=3),
    "broadcast": Operation("tensor"),
    "all_gather": Operation("tensor_list"),
    "all_gather_into_tensor": Operation("output_tensor"),
    "all_gather_base": Operation("output_tensor"),
    "all_gather_coalesced": Operation("output_tensors"),
    "all_to_all_single": Operation("input", 1, group=4),
    "all_to_all": Operation("input_tensor_list", 1),
    "gather": Operation("tensor", group=3, per_rank=True),
    "scatter": Operation("tensor", group=3, per_rank=True),
    "send": Operation("tensor"),
    "recv": Operation("tensor"),
    "isend": Operation("tensor"),
    "irecv": Operation("tensor"),
    "batch_isend_irecv": Operation("p2p_op_list", group=1),
    "barrier": Operation("", group=0),
}
"""The methods of DeepSpeed's comm object that move tensors. Objects that are gathered or broadcast
in pickled form, outside the iteration, are not counted."""


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, (list, tuple)):
        return sum(_bytes_of(one) for one in value)
    return _bytes_of(value.tensor) if hasattr(value, "tensor") else 0
