"""Gradients in the type in which ranks reduced them: two bytes an element where the model has two.

ZeRO reduces bf16 gradients in bf16, and gives the optimizer fp32 numbers: the same, times one
number by which it unscales and clips. So half the bytes and that number say all of it. That they do
is not taken for granted: whoever narrows widens again, and compares every bit.
"""

from math import nan
from types import SimpleNamespace
from typing import Any

import torch


def narrowed(gradient: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor | None:
    """A flat gradient in a narrower type; `None` where `widened` would give other bits.

    Args:
        gradient: In fp32, as the optimizer gets it.
        dtype: The type in which it was reduced.
        scale: By what it was multiplied since.
    """
    if gradient.dtype == dtype:
        return gradient
    narrow = (gradient / scale).to(dtype)
    again = widened(narrow, gradient.dtype, scale)
    return narrow if torch.equal(again.view(torch.int32), gradient.view(torch.int32)) else None


def widened(narrow: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """What the optimizer gets of a flat gradient that was reduced in a narrower type."""
    return narrow if narrow.dtype == dtype else narrow.to(dtype).mul_(scale)


class ScaleWatch:
    """By what a ZeRO optimizer multiplies gradients before its updates.

    DeepSpeed's own function is asked what it makes of a one, where it does that to the gradients.
    One that cannot be asked so gives no number: nothing is narrowed then, versions go in full.

    Args:
        zero: DeepSpeed's optimizer of stage 1, 2 or 3.

    Attributes:
        scale: Of the gradients that were unscaled last.
    """

    def __init__(self, zero: Any) -> None:
        self.scale = 1.0
        self._zero = zero
        self._inner = zero.unscale_and_clip_grads
        zero.unscale_and_clip_grads = self._unscale

    def _unscale(self, gradients: Any, total_norm: Any) -> None:
        try:
            self.scale = self._of_one(gradients, total_norm)
        except (AttributeError, TypeError):  # another version of DeepSpeed's
            self.scale = nan
        self._inner(gradients, total_norm)

    def _of_one(self, gradients: Any, total_norm: Any) -> float:
        zero, one = self._zero, torch.ones(1)
        stand_in = SimpleNamespace(
            loss_scale=zero.loss_scale, clip_grad=zero.clip_grad, device=one.device
        )
        if not isinstance(gradients, list):  # stage 3 says which sub-group
            stand_in.fp32_partitioned_groups_flat = {gradients: SimpleNamespace(grad=one)}
        type(zero).unscale_and_clip_grads(
            stand_in, [one] if isinstance(gradients, list) else gradients, total_norm
        )
        return float(one)
