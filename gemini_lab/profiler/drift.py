"""Drift of a job's idle spans: times can change although calls and bytes repeat."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from gemini_lab.profiler.average import gaps
from gemini_lab.profiler.observe import IterationRecord
from gemini_lab.profiler.profile import Profile
from gemini_lab.units import format_seconds

WINDOW: Final = 10
"""So many iterations are looked at together, by their medians: one that stalls says nothing."""
WINDOWS: Final = 2
"""So many windows in a row have to show a drift."""
SHARE: Final = 0.2
"""Spans may differ by this share of an iteration in all, beside what they vary by anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The idle spans are no longer those that the plan was followed with at first.

    Attributes:
        difference: By how much, in words.
    """

    difference: str


class DriftWatch:
    """Compares the idle spans of a job that follows a plan with those of its first iterations.

    Not with the profile's: that was made without checkpoints, which are in all of these. Spans of
    the same iteration that became longer and shorter both count, as a chunk waits for its span.

    Args:
        profile: That of the plan.
    """

    def __init__(self, profile: Profile) -> None:
        self._before = profile.collectives_before_update
        self._allowed_s = SHARE * profile.iteration_s + sum(
            span.std_s for span in profile.idle_spans if span.before_update
        )
        self._first_s: list[float] | None = None
        self._window: list[list[float]] = []
        self._shifted = 0  # windows in a row

    def observe(self, record: IterationRecord) -> Drift | None:
        """Take one more iteration of the profile's sequence; gives a drift once it is certain."""
        found = gaps(record.collectives, record.iteration_s, record.update_s, before=self._before)
        # Gaps before the update alone: checkpoints use no other.
        self._window.append([end_s - start_s for start_s, end_s in found[: self._before + 1]])
        if len(self._window) < WINDOW:
            return None
        now_s = [median(lengths_s) for lengths_s in zip(*self._window, strict=True)]
        self._window.clear()
        if self._first_s is None:
            self._first_s = now_s
            return None
        by_s = sum(abs(now - then) for now, then in zip(now_s, self._first_s, strict=True))
        self._shifted = self._shifted + 1 if by_s > self._allowed_s else 0
        if self._shifted < WINDOWS:
            return None
        return Drift(difference=self._in_words(self._first_s, now_s, by_s))

    def _in_words(self, then_s: Sequence[float], now_s: Sequence[float], by_s: float) -> str:
        return (
            f"idle time before the update was {format_seconds(sum(then_s))} of an iteration and is "
            f"{format_seconds(sum(now_s))}; its spans differ by {format_seconds(by_s)} in all, in "
            f"{WINDOW * WINDOWS} iterations in a row ({format_seconds(self._allowed_s)} is allowed)"
        )
