"""Which part of the checkpoint traffic training had to share its time with."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

from gemini_lab.log.events import Collectives

MAX_BUSY: Final = 100_000
"""Intervals of one node that are remembered for judging, if no iteration ever ends there."""
SHORTEST_EXPOSED_S: Final = 0.0001
"""Shorter exposed parts are counted like any other, but get no bar."""

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
        exposed_s = 0.0  # one after the other: `sum` rounds otherwise in some versions of Python
        for start_s, end_s in self.exposed:
            exposed_s += end_s - start_s
        return self.sending.size_bytes * exposed_s / whole_s


class CallTimes(NamedTuple):
    """An iteration's collectives on one node."""

    until_s: float  # none of them ends later
    began_s: float
    starts_us: Sequence[int]  # when each call began since then
    durations_us: Sequence[int]

    def times(self, from_s: float, to_s: float) -> list[Interval]:
        """Return when each call that touches a time began and ended, in the order of calling."""
        from_us, to_us = (1e6 * (at_s - self.began_s) for at_s in (from_s, to_s))
        return [
            (self.began_s + start_us / 1e6, self.began_s + (start_us + duration_us) / 1e6)
            for start_us, duration_us in zip(self.starts_us, self.durations_us, strict=True)
            if start_us <= to_us and start_us + duration_us >= from_us
        ]


class Busy:
    """When training used one node's network, as far as it is still of interest."""

    def __init__(self) -> None:
        self.told: list[CallTimes] = []  # by iterations, in the order in which they were told
        self.count = 0  # calls in all of them

    def add(self, event: Collectives, *, until_s: float) -> None:
        """Add an iteration's collectives; if there are too many, drop the older half."""
        starts_us = tuple(accumulate(event.gaps_us))
        self.told.append(CallTimes(until_s, event.began_s, starts_us, event.durations_us))
        self.count += len(event.order)
        if self.count > MAX_BUSY:
            self.keep(self.told[-(len(self.told) // 2) :])

    def near(self, from_s: float, to_s: float) -> list[Interval]:
        return [
            interval
            for told in self.told
            if told.began_s <= to_s and told.until_s >= from_s
            for interval in told.times(from_s, to_s)
        ]

    def forget(self, before_s: float) -> None:
        """Forget iterations whose collectives were over before a moment."""
        kept = [told for told in self.told if told.until_s > before_s]
        if len(kept) < len(self.told):
            self.keep(kept)

    def keep(self, told: list[CallTimes]) -> None:
        self.told = told
        self.count = sum(len(each.starts_us) for each in told)


def judge(sendings: Iterable[Sending], busy: Iterable[Interval]) -> list[Judged]:
    """Hold each sending against the times in which training used the network or waited.

    A sending is *exposed* while a training collective of its node was under way, and while the
    step waited for the version to be whole; it is *hidden* the rest of the time (paper, section
    5: checkpoint traffic belongs in the idle spans of the network).
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
    """Return the union of `intervals`, in order of time."""
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
    """Return the parts of `merged` between two moments, one moment alone if it lies inside."""
    if start_s == end_s:
        return [(start_s, end_s) for s, e in merged if s <= start_s < e][:1]
    return [(max(s, start_s), min(e, end_s)) for s, e in merged if s < end_s and e > start_s]
