"""The cost of a failure: wasted time, and how often to checkpoint (paper, section 2.1)."""

import math
from typing import Final

from gemini_lab.errors import ConfigError

BYTES_PER_PARAM: Final = 12
"""FP32 weight and Adam's two moments; FP16 weights and gradients are not saved."""


def checkpoint_bytes(params: float) -> int:
    """Size of a whole checkpoint of a model with `params` parameters, optimizer states included."""
    if not params > 0:
        raise ConfigError(f"a model needs parameters (got {params})")
    return round(params * BYTES_PER_PARAM)


def wasted_time_s(*, checkpoint_s: float, interval_s: float, retrieval_s: float) -> float:
    """Mean time that one failure wastes: lost progress and retrieval (Eq. 1).

    T_wasted = t_ckpt + 1/(2f) + t_rtvl: failures fall uniformly between the completion of two
    checkpoints. Detection, replacement and restart are not in it (footnote 1).

    Args:
        checkpoint_s: From a checkpoint's start until it is whole at its destination, t_ckpt.
        interval_s: From one checkpoint's start to the next one's, 1/f.
        retrieval_s: To fetch the newest whole checkpoint, t_rtvl.

    Raises:
        ConfigError: A time is negative, or the interval is shorter than the checkpoint (Eq. 2).
    """
    if min(checkpoint_s, interval_s, retrieval_s) < 0:
        raise ConfigError(
            f"times start at 0 (got checkpoint_s={checkpoint_s}, interval_s={interval_s}, "
            f"retrieval_s={retrieval_s})"
        )
    if interval_s < checkpoint_s:
        raise ConfigError(
            f"checkpoints that take {checkpoint_s:g} s cannot start every {interval_s:g} s "
            f"(Eq. 2); use an interval of at least {checkpoint_s:g} s"
        )
    return checkpoint_s + interval_s / 2 + retrieval_s


def shortest_interval_s(*, checkpoint_s: float, iteration_s: float) -> float:
    """The shortest interval there can be: one checkpoint at a time, one an iteration (Eq. 2)."""
    return max(checkpoint_s, iteration_s)


def checkpoint_every(*, checkpoint_s: float, iteration_s: float) -> int:
    """Whole iterations between checkpoints at the highest frequency: ceil(t_ckpt / T_iter)."""
    return max(1, math.ceil(checkpoint_s / iteration_s - 1e-9))


def saturated_wasted_time_s(checkpoint_s: float) -> float:
    """Wasted time where the store is always busy: 1/f = t_ckpt = t_rtvl, 2.5 times that."""
    return wasted_time_s(
        checkpoint_s=checkpoint_s, interval_s=checkpoint_s, retrieval_s=checkpoint_s
    )
