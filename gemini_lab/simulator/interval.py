"""Interval of a mean of few values: Student-t, because 1.96 covers only 81 % at three values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from gemini_lab.errors import ConfigError
from gemini_lab.placement.student import student_t


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and where it is with 95 %."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval's length."""
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
