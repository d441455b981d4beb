"""What torch's process groups can be asked for, by name: which of it moves tensors between ranks.

Each version of torch may add something. A group that stands for another one has to pass on all that
moves tensors, or refuse it: what it left out would find a backend of its own, and move nothing.
"""

from typing import Final

import torch.distributed as dist

COLLECTIVES: Final = (
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "_allgather_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
    "barrier",
)
"""What moves tensors, or waits for all ranks; not every version of torch has all of it."""
KNOW_NO_LIMIT: Final = frozenset(
    {
        "send",  # Gloo closes the whole group when it is not over in time
        "recv",
        "recv_anysource",
        "_reduce_scatter_base",  # its handle takes no notice of a time-out
        "reduce_scatter_tensor_coalesced",
        "reduce_scatter_single",
        "reduce_scatter_single_coalesced",
    }
)
_STILL: Final = frozenset(
    {
        "BackendType",
        "abort",
        "boxed",
        "get_backend",
        "get_group_store",
        "monitored_barrier",  # Gloo's own, which ends in others
        "name",
        "rank",
        "set_timeout",
        "shutdown",
        "size",
        "supports_reconfigure",
        "supports_window",
        "unbox",
    }
)
"""What moves none."""


def unknown_calls(kind: type = dist.ProcessGroup) -> list[str]:
    """Public methods of torch's groups of which this package does not know what they move."""
    known = {*COLLECTIVES, *_STILL}
    return [
        name
        for name in dir(kind)
        if name[0] != "_" and name not in known and callable(getattr(kind, name))
    ]
