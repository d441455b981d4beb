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
from gemini_lab.recovery.discarded_versions import joined, left_of
from gemini_lab.recovery.messages import EndReached, ExecutedAs, ScriptFinished
from gemini_lab.recovery.plan import VersionId
from gemini_lab.recovery.wrong_sums import left_by

REMEMBERED: Final = 32  # words of a worker on its iterations, two of each


_DECISIVE: Final = (
    Protected,
    CodeSeen,
    ShardRestored,
    IterationBegun,
    VersionComplete,
    RewindFailed,
)
"""Of these the newest of each rank is said again when a connection to a root agent broke: the last
version of a run, say, is saved when all ranks have said that it is whole. So are the ends that a
rank has come to since its last iteration: another rank that has begun one waits in vain."""

Word = Entry | EndReached | ScriptFinished


class WorkerHistory:
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
        self._decisive: dict[tuple[int, type, str], tuple[int, Word]] = {}  # in order; its epoch
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

    def decisive(self, epoch: int) -> list[Word]:
        """Return what workers of an epoch said once, and the root agent waits for, in order."""
        return [word for made_in, word in self._decisive.values() if made_in == epoch]

    def end(self, said: EndReached | ScriptFinished) -> None:
        """Keep that something of a rank is over, until the rank does another iteration."""
        what = said.what if isinstance(said, EndReached) else ""
        self._keep(said.rank, type(said), said.epoch, said, what=what)

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
            self._keep(event.rank, type(event), event.epoch, entry)
        match event:
            case IterationBegun():
                self._said[event.rank].append(event)
            case Iteration(restored=False):
                self._said[event.rank].append(event)
                self._forget(event.rank, EndReached)
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
        self._forget(event.rank, EndReached, IterationBegun)
        self.left = joined(self.left, [left])

    def _keep(self, rank: int, kind: type, epoch: int, word: Word, *, what: str = "") -> None:
        """Keep a word as the newest of its kind."""
        self._decisive.pop((rank, kind, what), None)
        self._decisive[rank, kind, what] = epoch, word

    def _forget(self, rank: int, *kinds: type) -> None:
        for key in [key for key in self._decisive if key[0] == rank and key[1] in kinds]:
            del self._decisive[key]
