"""Sharded tensors and modules of PyTorch, told without importing what makes them.

Their packages take a second of every process that imports them, and whoever has one of them has
imported its package.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn

from gemini_lab.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_dtensor(value: object) -> "TypeGuard[DTensor]":
    """Whether this is a DTensor."""
    return _is_a(value, "torch.distributed.tensor", "DTensor")


def to_shards(state: dict[str, Any]) -> dict[str, Any]:
    """A state with this rank's shard in the place of each DTensor."""
    found = {name: value.to_local() for name, value in state.items() if is_dtensor(value)}
    return {**state, **found} if found else state


def to_dtensors(state: dict[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `to_shards` gave, with DTensors again where `like` has one of the same name.

    Raises:
        ConfigError: A shard is of another size, as one of another number of ranks.
    """
    named = ((name, like[name]) for name in state if is_dtensor(like.get(name)))
    found = {name: _around(state[name], whole, name) for name, whole in named}
    return {**state, **found} if found else state


def _around(shard: torch.Tensor, whole: "DTensor", name: str) -> "DTensor":
    """A DTensor like `whole`, of which this rank has `shard`."""
    now = whole.to_local().shape
    if shard.shape != now:
        raise ConfigError(
            f"this rank's shard of {name!r} is {[*now]} now, and {[*shard.shape]} in the version; "
            "start it with as many ranks: what is sharded in `also` is not cut anew"
        )
    return type(whole).from_local(
        shard.to(whole.device),
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


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
