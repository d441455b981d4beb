"""Detection of chunks that slow training: iterations with a version take longer than planned.

Then the job is profiled again. Where iterations without a version have become as long, it was the
machine. Else it was the chunks, and what they cost beside what is modelled counts in the next plan,
and so in how often a version is sent where `max_overhead` says what is tolerated.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final

from gemini_lab.pipeliner.schedule import ChunkSchedule
from gemini_lab.profiler.drift import WINDOW, WINDOWS
from gemini_lab.profiler.profile import Profile
from gemini_lab.units import format_seconds

SHARE: Final = 0.1
"""Iterations may take longer than planned by this share, beside what they vary by anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected effect of the plan in use."""

    iteration_s: float  # of an iteration that carries a version
    delay_s: float  # what of that the version's chunks cost
    felt_s: float  # what of that was seen under earlier plans, and is not modelled
    allowed_s: float  # how much longer such an iteration may take


def expected_of(profile: Profile, schedules: Iterable[ChunkSchedule], *, felt_s: float) -> Expected:
    """Return the expected effect of these schedules.

    Args:
        profile: By which they were made.
        schedules: One a rank.
        felt_s: See `Expected`.
    """
    slowest = max(schedules, key=lambda one: one.predicted_iteration_s)
    allowed_s = SHARE * profile.iteration_s + profile.iteration_std_s
    return Expected(
        iteration_s=slowest.predicted_iteration_s,
        delay_s=slowest.delay_s,
        felt_s=felt_s,
        allowed_s=allowed_s if slowest.chunks else math.inf,  # what is not sent is not felt
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Felt:
    """Iterations that carry a version take longer than expected."""

    iteration_s: float  # how long they take
    expected: Expected  # what was expected

    @property
    def difference(self) -> str:
        return (
            f"iterations that carry a version take {format_seconds(self.iteration_s)} where "
            f"{format_seconds(self.expected.iteration_s)} were planned, in {WINDOW * WINDOWS} of "
            "them in a row"
        )

    def felt_s(self, profile: Profile) -> float:
        """Return the cost of chunks, in seconds, that measurements add to the model from now on.

        Args:
            profile: Made since: it says how long iterations take now that carry none.
        """
        more_s = self.iteration_s - self.expected.delay_s - profile.iteration_s
        if more_s <= self.expected.allowed_s:  # the machine has become slower
            return self.expected.felt_s
        return self.expected.felt_s + more_s


class FeltWatch:
    """Looks at the iterations that carry a version, by their medians: one that stalls says nothing.

    Args:
        expected: What is expected of them.
    """

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._window_s: list[float] = []
        self._longer = 0  # windows in a row

    def observe(self, iteration_s: float) -> Felt | None:
        """Take one more; gives a word once it is certain that they take longer."""
        self._window_s.append(iteration_s)
        if len(self._window_s) < WINDOW:
            return None
        now_s = median(self._window_s)
        self._window_s.clear()
        is_longer = now_s > self._expected.iteration_s + self._expected.allowed_s
        self._longer = self._longer + 1 if is_longer else 0
        if self._longer < WINDOWS:
            return None
        return Felt(iteration_s=now_s, expected=self._expected)
