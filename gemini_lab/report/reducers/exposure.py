"""Which part of the checkpoint traffic training had to share its time with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

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
    return [Judged(sending=s, exposed=tuple(clip(merged, s.start_s, s.end_s))) for s in sendings]


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
