"""Weights that ZeRO 3 keeps gathered, in one collective: DeepSpeed takes one for each of them."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus


def gather_together(weights: Sequence[Any]) -> list[Any]:
    """Gather weights of which every rank has a part; all ranks call it together.

    Args:
        weights: In the same order on all ranks, none of them gathered.

    Returns:
        Those that are left to DeepSpeed: they are not sent as they are kept.
    """
    plain = [weight for weight in weights if _is_plain(weight)]
    for (group, _), alike in groupby(plain, lambda w: (w.ds_process_group, w.ds_tensor.dtype)):
        _gather_alike([*alike], group)
    return [weight for weight in weights if not _is_plain(weight)]


def _gather_alike(weights: Sequence[Any], group: dist.ProcessGroup) -> None:
    device = get_accelerator().current_device_name()
    parts = [weight.ds_tensor.detach().to(device).reshape(-1) for weight in weights]
    ours = torch.cat(parts)
    theirs = ours.new_empty(dist.get_world_size(group) * ours.numel())
    dist.all_gather_into_tensor(theirs, ours, group=group)
    columns = torch.split(theirs.view(-1, ours.numel()), [part.numel() for part in parts], dim=1)
    for weight, column in zip(weights, columns, strict=True):
        whole = torch.cat([*column])[: weight.ds_numel]  # behind it, the last rank's part is filled
        weight.data = whole.view(weight.ds_shape)
        weight.ds_status = ZeroParamStatus.AVAILABLE


def _is_plain(weight: Any) -> bool:
    """Whether its part is sent as it is: not quantized, and no second copy lies on each node."""
    return not hasattr(weight.ds_tensor, "ds_quant_scale") and weight.ds_secondary_tensor is None
