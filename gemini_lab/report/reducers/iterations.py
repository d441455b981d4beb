"""The iterations of every rank that count, and those that came out otherwise when done again."""

from bisect import bisect_right, insort
from collections.abc import Collection

from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Diverged,
    IterationBegun,
    RecoveryPlanned,
    Rewound,
    RunStarted,
    WrongSums,
)
from gemini_lab.recovery.repeats import MOST_SAID, Repeats
from gemini_lab.recovery.wrong_sums import left_by
from gemini_lab.report.reducers import MOST_KEPT, MOST_RANKS, is_lost, seconds, whole
from gemini_lab.report.values import Iteration


class CountedIterations:
    """Each rank's part of each iteration; a report needs all of them, a dashboard none.

    When an epoch starts from version v, what earlier epochs did beyond v is lost and goes; an
    event of theirs that arrives after the plan counts for as little.

    Memory: a value for each iteration of each rank.
    """

    def __init__(self) -> None:
        self._kept: dict[int, dict[int, tuple[int, bool, Iteration]]] = {}  # by number and rank
        self._numbers: list[int] = []  # in order
        self._plans: list[tuple[int, int]] = []  # epoch and version, in order of epochs

    def take(self, entry: Entry) -> None:
        match entry.event:
            case events.RecoveryPlanned() as plan:
                insort(self._plans, (whole(plan.epoch), whole(plan.version or 0)))
                self._lose(plan.epoch, plan.version or 0)
            case events.Rewound() as said:
                self._take_back(whole(said.rank), whole(said.version))
            case events.Iteration() as done:
                self._add(entry, done)

    def _lose(self, epoch: int, version: int) -> None:
        place = bisect_right(self._numbers, version)
        beyond, self._numbers[place:] = self._numbers[place:], []
        for number in beyond:
            ranks = self._kept.pop(number)
            if left := {rank: one for rank, one in ranks.items() if one[0] >= epoch}:
                self._kept[number] = left
                self._numbers.append(number)

    def _take_back(self, rank: int, version: int) -> None:
        """Discard what a rank did beyond a version that it went back to."""
        place = bisect_right(self._numbers, version)
        for number in self._numbers[place:]:
            self._kept[number].pop(rank, None)
            if not self._kept[number]:
                del self._kept[number]
        self._numbers[place:] = [number for number in self._numbers[place:] if number in self._kept]

    def _add(self, entry: Entry, done: events.Iteration) -> None:
        number, rank, epoch = whole(done.iteration), whole(done.rank), whole(done.epoch)
        if is_lost(number, epoch, self._plans):
            return
        ranks = self._kept.get(number)
        if ranks is None:
            ranks = self._kept[number] = {}
            insort(self._numbers, number)
        before = ranks.get(rank)
        if before is not None and (before[0] > epoch or done.restored) and not before[1]:
            return
        ranks[rank] = (
            epoch,
            done.restored,
            Iteration(
                rank=rank,
                number=number,
                node=entry.node,
                ended_at_s=seconds(entry.at_s),
                duration_s=seconds(done.duration_s),
                waited_s=seconds(done.waited_s),
                loss=done.value("loss"),
            ),
        )

    def counted(self) -> tuple[Iteration, ...]:
        """Return those that count, in order of number, then rank."""
        return tuple(
            ranks[rank][2]
            for ranks in map(self._kept.__getitem__, self._numbers)
            for rank in sorted(ranks)
        )


class Divergences:
    """Differences that the root agent noticed in the run, and that the whole log shows.

    Args:
        ranks: Whether to compare all iterations of the log: a root that was just elected knows only
            some of those from before. Without, what was noticed is taken as it was told.
    """

    def __init__(self, *, ranks: bool) -> None:
        self.found: list[Diverged] = []  # in order of the log; of each rank the first in each start
        self.changes = 0
        self._known: set[tuple[int, int]] = set()  # epoch and rank
        self._repeats = Repeats(newest=None) if ranks else None

    def take(self, entry: Entry) -> None:
        match entry.event:
            case IterationBegun() | events.Iteration() as done:  # the most frequent ones first
                self._compare(done)
            case RunStarted() as job if job.simulated is not None:
                self._repeats = None  # its numbers are those of a model
            case Rewound() as said if self._repeats is not None:
                whole(said.version)
                self._repeats.go_back(said)
            case WrongSums(goes_back=True) as said if self._repeats is not None:
                whole(said.version)
                self._repeats.learn((), [left_by(said, run=0)])
            case RecoveryPlanned(version=version) as plan if self._repeats is not None:
                self._repeats.restart(version, epoch=plan.made_in, rewinds=plan.made_after)
            case Diverged() as noticed:
                self._add(noticed)

    def _compare(self, done: IterationBegun | events.Iteration) -> None:
        if self._repeats is None:
            return
        if whole(done.rank) >= MOST_RANKS:
            raise ValueError(f"no run has a rank {done.rank}")
        whole(done.iteration)
        if (noticed := self._repeats.take(done)) is not None:
            self._add(noticed)

    def _add(self, noticed: Diverged) -> None:
        whole(noticed.iteration)
        key = whole(noticed.epoch), whole(noticed.rank)
        of_epoch = sum(epoch == noticed.epoch for epoch, _ in self._known)
        if key in self._known or of_epoch >= 2 * MOST_SAID or len(self.found) >= MOST_KEPT:
            return
        self._known.add(key)
        self.changes += 1
        self.found.append(noticed)

    # -- answers ---------------------------------------------------------------------------------

    def of(self, epochs: Collection[int]) -> tuple[Diverged, ...]:
        """Return the differences after a start in one of `epochs`, the earliest iteration first."""
        found = [one for one in self.found if one.epoch in epochs]
        return tuple(sorted(found, key=lambda one: (one.iteration, one.rank)))

    def compared(self, epochs: Collection[int]) -> int:
        counted = {} if self._repeats is None else self._repeats.compared
        return sum(counted.get(epoch, 0) for epoch in epochs)
