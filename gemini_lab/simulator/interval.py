"""Interval of a mean of few values: Student-t, because 1.96 covers only 81 % at three values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

from gemini_lab.errors import ConfigError

T_95: Final = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
"""The 97.5 % point of Student's t for 1, 2, ... 30 degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and where it is with 95 %."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with its 95 % interval; unbounded for one value.

    Raises:
        ConfigError: There is no value.
    """
    if not values:
        raise ConfigError("the mean of no values is not known")
    mean = fmean(values)
    if len(values) == 1:
        return Interval(mean=mean, low=-math.inf, high=math.inf)
    half = student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(mean=mean, low=mean - half, high=mean + half)


def student_t(freedom: int) -> float:
    """Return the 97.5 % point of Student's t; beyond the table by Cornish-Fisher expansion.

    Raises:
        ConfigError: There is no freedom: one value has no spread.
    """
    if freedom < 1:
        raise ConfigError(f"an interval needs two values or more (got {freedom + 1})")
    if freedom <= len(T_95):
        return T_95[freedom - 1]
    z = 1.959964  # of the normal law, which it becomes
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
