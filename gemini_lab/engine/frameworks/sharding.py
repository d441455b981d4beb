"""Sharded tensors and modules of PyTorch, told without importing what makes them.

Their packages take a second of every process that imports them, and whoever has one of them has
imported its package.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_dtensor(value: object) -> "TypeGuard[DTensor]":
    """Whether this is a DTensor."""
    return _is_a(value, "torch.distributed.tensor", "DTensor")


def is_fsdp2(module: nn.Module) -> "TypeGuard[FSDPModule]":
    """Whether `fully_shard` was applied to this module."""
    return _is_a(module, "torch.distributed.fsdp", "FSDPModule")


def whole_weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights that FSDP2 puts together to compute; none before it has done so."""
    for module in model.modules():
        if is_fsdp2(module):
            for group in _groups_of(module._get_fsdp_state()):  # noqa: SLF001 - nothing else tells
                for one in group.fsdp_params:
                    if hasattr(one, "_unsharded_param"):
                        yield one._unsharded_param  # noqa: SLF001


def _groups_of(state: Any) -> Sequence[Any]:
    """The groups of weights that a module puts together at once; one in older torches."""
    if hasattr(state, "_fsdp_param_groups"):
        groups: Sequence[Any] = state._fsdp_param_groups  # noqa: SLF001
        return groups
    group = state._fsdp_param_group  # noqa: SLF001
    return () if group is None else (group,)


def is_fsdp1(module: nn.Module) -> bool:
    """Whether this is a FullyShardedDataParallel."""
    return _is_a(module, "torch.distributed.fsdp", "FullyShardedDataParallel")


def _is_a(value: object, package: str, name: str) -> bool:
    kind = getattr(sys.modules.get(package), name, None)
    return kind is not None and isinstance(value, kind)
