"""How far each rank came, in every try: what was done before a failure, and what is done now.

A root agent that was just elected knows of no iteration, so what a failure cost is counted from the
iterations that the ranks themselves told, never from what a root agent says.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Iteration, RecoveryPlanned, Rewound, RunStarted
from gemini_lab.report.reducers import MOST_KEPT, MOST_RANKS, whole

TRIES: Final = 8
"""Newest tries of which every rank is known; of older ones it is known how far they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Furthest:
    """How far some tries came."""

    by_all: int  # newest iteration that every rank ended
    by_any: int  # newest iteration that some rank ended


@dataclass(slots=True)
class _Try:
    """The workers of one epoch, of so many ranks, that went on from version `base`."""

    ranks: int
    base: int = 0
    newest: dict[int, int] = field(default_factory=dict)
    over: Furthest | None = None


class Reached:
    """The newest iteration of every rank, by epoch; memory: `TRIES` times the ranks."""

    def __init__(self) -> None:
        self._ranks = 0  # of the newest try; 0 where a job is not known
        self._per_node = 0
        self._tries: dict[int, _Try] = {}
        self._epochs: list[int] = []  # in order

    def take(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case RunStarted() if not self._ranks:
                ranks = event.nodes * event.workers_per_node
                self._ranks = 1 if event.simulated else min(ranks, MOST_RANKS)
                self._per_node = 0 if event.simulated else event.workers_per_node
            case RecoveryPlanned(members=members):
                if self._per_node and not (self._epochs and event.epoch < self._epochs[-1]):
                    self._ranks = min(len(members) * self._per_node, MOST_RANKS)
                self._try(event.epoch).base = whole(event.version or 0)
            case Iteration(restored=False):
                self._note(event)
            case Rewound(rank=rank, version=version):
                told = self._try(event.epoch)
                if rank in told.newest:
                    told.newest[rank] = min(whole(version), told.newest[rank])

    def _note(self, event: Iteration) -> None:
        told = self._try(event.epoch)
        if not 0 <= event.rank < (told.ranks or MOST_RANKS):
            raise ValueError(f"the run has no rank {event.rank}")
        if told.over is None:
            told.newest[event.rank] = max(whole(event.iteration), told.newest.get(event.rank, 0))

    def _try(self, epoch: int) -> _Try:
        found = self._tries.get(epoch)
        if found is None:
            if len(self._tries) >= MOST_KEPT:
                raise ValueError("no run starts so often")
            found = self._tries[whole(epoch)] = _Try(self._ranks)
            insort(self._epochs, epoch)
            if len(self._epochs) > TRIES:
                old = self._tries[self._epochs[-TRIES - 1]]
                old.over, old.newest = self._furthest(old), {}
        return found

    def _furthest(self, one: _Try) -> Furthest:
        if one.over is not None:
            return one.over
        ranks = range(one.ranks or len(one.newest))
        return Furthest(
            by_all=min((one.newest.get(rank, one.base) for rank in ranks), default=one.base),
            by_any=max(one.newest.values(), default=one.base),
        )

    # -- answers ---------------------------------------------------------------------------------

    def now(self) -> list[int]:
        """Return the newest iteration of each rank, in order, after the newest start."""
        newest = self._tries[self._epochs[-1]] if self._epochs else _Try(self._ranks)
        ranks = range(newest.ranks or len(newest.newest))
        return [newest.newest.get(rank, newest.base) for rank in ranks]

    def done(self) -> int:
        """Return the newest iteration that every rank has finished."""
        return min(self.now(), default=0)

    def between(self, first: int, end: int | None) -> Furthest:
        """Return how far the tries from epoch `first` to before `end` came; `None` for no end."""
        since = bisect_left(self._epochs, first)
        until = None if end is None else bisect_left(self._epochs, end)
        tries = [self._furthest(self._tries[epoch]) for epoch in self._epochs[since:until]]
        return Furthest(
            by_all=max((each.by_all for each in tries), default=0),
            by_any=max((each.by_any for each in tries), default=0),
        )
