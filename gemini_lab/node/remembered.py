"""What workers of a node said of themselves, for a root agent that asks later."""

from collections import defaultdict, deque
from typing import Final

from msgspec.structs import replace

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    CodeSeen,
    Iteration,
    IterationBegun,
    Protected,
    RewindFailed,
    Rewound,
    ShardRestored,
    VersionComplete,
    WrongSums,
)
from gemini_lab.recovery.distrust import left_by
from gemini_lab.recovery.messages import ExecutedAs
from gemini_lab.recovery.plan import VersionId
from gemini_lab.recovery.rewinds import joined, left_of

REMEMBERED: Final = 32  # words of a worker on its iterations, two of each


_DECISIVE: Final = (Protected, CodeSeen, ShardRestored, VersionComplete, RewindFailed)
"""Of these the newest of each rank is said again when a connection to a root agent broke: the last
version of a run, say, is saved when all ranks have said that it is whole."""


class Remembered:
    """What workers of one node said.

    Attributes:
        protected: What the last one that is protected said of it.
        left: What their rewinds left behind.
        wrong_sums: What one of the last start said of machines that compute wrong.
    """

    def __init__(self) -> None:
        self.protected: Protected | None = None
        self.left: tuple[VersionId, ...] = ()
        self.wrong_sums: WrongSums | None = None
        self._decisive: dict[tuple[type, int], tuple[int, Entry]] = {}  # and its epoch
        self._code: dict[str, ExecutedAs] = {}
        self._run: int | None = None  # whose all of this is
        self._said: defaultdict[int, deque[IterationBegun | Iteration]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED)
        )

    def begin(self, run: int) -> None:
        """Workers of a run start; what those of another one said is nobody's any more."""
        if run != self._run:
            self._said.clear()
            self._run, self.left, self.protected, self._code = run, (), None, {}
        self.wrong_sums = None
        self._decisive.clear()

    def decisive(self, epoch: int) -> list[Entry]:
        """Return what workers of an epoch said once, and the root agent waits for, in order."""
        return [entry for made_in, entry in self._decisive.values() if made_in == epoch]

    def code(self, run: int) -> dict[str, ExecutedAs]:
        """Return how a run's workers executed the script's files last, by name."""
        return self._code if run == self._run else {}

    def iterations(self, run: int) -> list[IterationBegun | Iteration]:
        """What a run's workers said of their newest iterations, rank by rank."""
        return [one for said in self._said.values() for one in said] if run == self._run else []

    def take(self, entry: Entry) -> None:
        """A worker said something."""
        event = entry.event
        if isinstance(event, CodeSeen):  # a rank that imports while it trains says several
            self._code |= {name: (event.epoch, one) for name, one in event.files.items()}
            of_epoch = {n: one for n, (epoch, one) in self._code.items() if epoch == event.epoch}
            entry = replace(entry, event=replace(event, files=of_epoch))
        if isinstance(event, _DECISIVE):
            self._decisive[type(event), event.rank] = event.epoch, entry
        match event:
            case IterationBegun() | Iteration(restored=False):
                self._said[event.rank].append(event)
            case Protected():
                self.protected = event
            case Rewound():
                self._go_back(event, left_of(event, run=self._run or 0))
            case WrongSums():
                self.wrong_sums = event
                if event.goes_back:
                    self._go_back(event, left_by(event, run=self._run or 0))

    def _go_back(self, event: Rewound | WrongSums, left: VersionId) -> None:
        """A worker goes back to a version: what it did after that counts no more."""
        kept = [one for one in self._said[event.rank] if one.iteration <= event.version]
        self._said[event.rank] = deque(kept, maxlen=REMEMBERED)
        self.left = joined(self.left, [left])
