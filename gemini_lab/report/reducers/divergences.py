"""Whether iterations that were done again are what they were before their failure."""

from collections.abc import Collection

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Diverged,
    Iteration,
    IterationBegun,
    RecoveryPlanned,
    Rewound,
    RunStarted,
    WrongSums,
)
from gemini_lab.recovery.faulty_machines import left_by
from gemini_lab.recovery.repeats import MOST_SAID, Repeats
from gemini_lab.report.reducers.checks import MOST_KEPT, MOST_RANKS, whole


class Divergences:
    """What the root agent noticed while the run went, and what a look at the whole log finds.

    Args:
        ranks: Whether to compare all iterations of the log: a root that was just elected knows only
            some of those from before. Without, what was noticed is taken as it was told.

    Attributes:
        found: In order of the log; of each rank the first in each start.
        changes: Counts changes of `found`.
    """

    def __init__(self, *, ranks: bool) -> None:
        self.found: list[Diverged] = []
        self.changes = 0
        self._known: set[tuple[int, int]] = set()  # epoch and rank
        self._repeats = Repeats(newest=None) if ranks else None

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.event:
            case IterationBegun() | Iteration() as done:  # the most frequent ones first
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

    def _compare(self, done: IterationBegun | Iteration) -> None:
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
        """Those after a start in one of `epochs`, the earliest iteration first."""
        found = [one for one in self.found if one.epoch in epochs]
        return tuple(sorted(found, key=lambda one: (one.iteration, one.rank)))

    def compared(self, epochs: Collection[int]) -> int:
        """How many iterations of ranks could be compared after these starts."""
        counted = {} if self._repeats is None else self._repeats.compared
        return sum(counted.get(epoch, 0) for epoch in epochs)
