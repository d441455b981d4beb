"""Whether chunks are felt: iterations that carry a version take longer than their plan says.

Then the job is profiled again. Where iterations without a version have become as long, it was the
machine. Else it was the chunks, and the next plan counts each with what it took more: it has fewer
and larger ones, in longer spans, or says what they delay.
"""

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
    """What is expected of the plan that is followed.

    Attributes:
        iteration_s: Of an iteration that carries a version.
        delay_s: What of that the version's chunks cost.
        allowed_s: How much longer it may take.
        chunks: That a rank sends in it, at most.
        start_s: What each was counted with, beside the wire's own start-up time.
    """

    iteration_s: float
    delay_s: float
    allowed_s: float
    chunks: int
    start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Felt:
    """Iterations that carry a version take longer than expected.

    Attributes:
        iteration_s: How long they take.
        expected: What was expected.
    """

    iteration_s: float
    expected: Expected

    @property
    def difference(self) -> str:
        """By how much, in words."""
        return (
            f"iterations that carry a version take {format_seconds(self.iteration_s)} where "
            f"{format_seconds(self.expected.iteration_s)} were planned, in {WINDOW * WINDOWS} of "
            "them in a row"
        )

    def start_s(self, profile: Profile) -> float:
        """What each chunk is to be counted with from now on, beside the wire's own start-up time.

        Args:
            profile: Made since: it says how long iterations take now that carry none.
        """
        expected = self.expected
        more_s = self.iteration_s - expected.delay_s - profile.iteration_s
        if more_s <= expected.allowed_s:  # the machine has become slower
            return expected.start_s
        return expected.start_s + more_s / expected.chunks


def expected_of(
    profile: Profile, schedules: Iterable[ChunkSchedule], *, start_s: float
) -> Expected:
    """What is expected where ranks follow these schedules.

    Args:
        profile: By which they were made.
        schedules: One a rank.
        start_s: See `Expected`.
    """
    slowest = max(schedules, key=lambda one: one.predicted_iteration_s)
    return Expected(
        iteration_s=slowest.predicted_iteration_s,
        delay_s=slowest.delay_s,
        allowed_s=SHARE * profile.iteration_s + profile.iteration_std_s,
        chunks=len(slowest.chunks),
        start_s=start_s,
    )


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
        if self._longer < WINDOWS or not self._expected.chunks:
            return None
        return Felt(iteration_s=now_s, expected=self._expected)
