"""Which part of the checkpoint traffic training had to share its time with."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from gemini_lab.log.events import Collectives

MAX_BUSY: Final = 100_000
"""Intervals of one node that are remembered for judging, if no iteration ever ends there."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Checkpoint bytes that were under way from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    size_bytes: float
    version: int
    peer: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A sending and the times in which it was exposed, in order and apart from one another."""

    sending: Sending
    exposed: tuple[Interval, ...]

    @property
    def exposed_bytes(self) -> float:
        """Its bytes in proportion to the exposed time; all or none of one that took no time."""
        whole_s = self.sending.end_s - self.sending.start_s
        if not whole_s > 0:
            return self.sending.size_bytes if self.exposed else 0.0
        return self.sending.size_bytes * sum(e - s for s, e in self.exposed) / whole_s


class Busy:
    """When training used one node's network, as far as it is still of interest."""

    def __init__(self) -> None:
        self._told: list[tuple[float, Collectives]] = []  # until when there were any; they
        self._count = 0

    def add(self, event: Collectives, *, until_s: float) -> None:
        """Remember an iteration's collectives; where there are too many, the older half goes.

        Args:
            event: They.
            until_s: None of them ends later.
        """
        self._told.append((until_s, event))
        self._count += len(event.order)
        if self._count > MAX_BUSY:
            self._keep(self._told[-(len(self._told) // 2) :])

    def near(self, from_s: float, to_s: float) -> list[Interval]:
        """All that touch a time."""
        return [
            interval
            for until_s, event in self._told
            if event.began_s <= to_s and until_s >= from_s
            for interval in event.times(from_s, to_s)
        ]

    def forget(self, before_s: float) -> None:
        """Forget iterations whose collectives were over before a moment."""
        kept = [told for told in self._told if told[0] > before_s]
        if len(kept) < len(self._told):
            self._keep(kept)

    def _keep(self, told: list[tuple[float, Collectives]]) -> None:
        self._told = told
        self._count = sum(len(event.order) for _, event in told)


def judge(sendings: Iterable[Sending], busy: Iterable[Interval]) -> list[Judged]:
    """Hold each sending against the times in which training used the network or waited.

    A sending is *exposed* while a training collective of its node was under way, and while the
    step waited for the version to be whole; it is *hidden* the rest of the time (paper, section
    5: checkpoint traffic belongs in the idle spans of the network).

    Args:
        sendings: In any order.
        busy: Collectives and waits, in any order; they may overlap.
    """
    merged = merge(busy)
    starts_s, ends_s = [start_s for start_s, _ in merged], [end_s for _, end_s in merged]
    judged = []
    for sending in sendings:
        near = slice(bisect_right(ends_s, sending.start_s), bisect_right(starts_s, sending.end_s))
        exposed = tuple(clip(merged[near], sending.start_s, sending.end_s))
        judged.append(Judged(sending=sending, exposed=exposed))
    return judged


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of `intervals`, in order of time."""
    merged: list[Interval] = []
    last_s = -inf
    for start_s, end_s in sorted(intervals):
        if start_s > last_s:
            merged.append((start_s, end_s))
            last_s = end_s
        elif end_s > last_s:
            merged[-1] = (merged[-1][0], end_s)
            last_s = end_s
    return merged


def clip(merged: Sequence[Interval], start_s: float, end_s: float) -> list[Interval]:
    """The parts of `merged` between two moments; a moment of no length counts if it lies inside."""
    if start_s == end_s:
        return [(start_s, end_s) for s, e in merged if s <= start_s < e][:1]
    return [(max(s, start_s), min(e, end_s)) for s, e in merged if s < end_s and e > start_s]
