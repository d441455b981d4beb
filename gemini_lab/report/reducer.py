"""One reducer of a run's log: entries go in as they arrive, and it can be asked at any time.

Report, dashboard, saved page, comparison and benches all read the parts of a `RunReducer`; a `Run`
and a trace use some of the same parts. An entry costs constant time on average, whatever was told
before. A part is a small class with `take` and answers that are plain values; what it keeps stands
in its docstring, and `Keep` bounds what would grow with a run's length.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Collectives,
    Event,
    Iteration,
    IterationBegun,
    Transfer,
    VersionComplete,
)
from gemini_lab.log.file import LogFeed, name_of
from gemini_lab.report.bars import BATCH
from gemini_lab.report.blocks import FileBlocks
from gemini_lab.report.pyramid import Pyramid
from gemini_lab.report.reducers import seconds
from gemini_lab.report.reducers.copies import Copies
from gemini_lab.report.reducers.course import Course
from gemini_lab.report.reducers.facts import (
    Arrivals,
    CopiesPlaced,
    Finite,
    Persistent,
    Plans,
    Rewinds,
    RunTroubles,
    Sizes,
    Sums,
    VerifiedSums,
)
from gemini_lab.report.reducers.iteration_pace import IterationPace
from gemini_lab.report.reducers.iterations import CountedIterations, Divergences
from gemini_lab.report.reducers.logged import Logged
from gemini_lab.report.reducers.nodes import Nodes
from gemini_lab.report.reducers.rank_progress import Reached
from gemini_lab.report.reducers.recoveries import RecoveryReducer
from gemini_lab.report.reducers.spans import Seated, Spans
from gemini_lab.report.reducers.traffic_bars import TrafficBars


class Reducer(Protocol):
    """A part of what a log comes to."""

    def take(self, entry: Entry) -> None:
        """Take in one entry.

        Raises:
            ArithmeticError, LookupError, ValueError: The entry makes no sense; then it changed
                nothing that matters.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How much of a run is kept; `None` for all of it."""

    bars: int  # the timeline's newest ones in memory, at `bars.ROW_BYTES` each; 0 for no timeline
    recoveries: int | None  # newest recoveries, with their receipts, and injections and exits
    notes: int | None  # newest remarks
    ranks: bool  # whether to keep what each rank told of each iteration, such as its loss
    levels: bool = False  # whether all other bars are kept on disk, in levels of detail
    # Whether nothing is kept but the run's phase, its nodes, and how far it came.
    is_brief: bool = False


FOR_REPORT: Final = Keep(bars=0, recoveries=None, notes=None, ranks=True)
"""All that a report says; its memory grows with iterations times ranks."""
FOR_METRICS: Final = Keep(bars=0, recoveries=100, notes=5, ranks=False)
FOR_PROGRESS: Final = Keep(bars=0, recoveries=0, notes=0, ranks=False, is_brief=True)
"""What a person waits for; its memory does not grow with the run."""
FOR_DASHBOARD: Final = Keep(bars=4 * BATCH, recoveries=100, notes=5, ranks=False, levels=True)
"""What views draw: at most about 40 MB, and beyond that 41 bytes an iteration, 32 for each value
that is logged, 8 a version and 12 a version and rank. What is on disk is about 20 bytes a bar."""


BRIEF: Final = frozenset({"course", "nodes", "reached"})
"""The parts of a brief state, by name."""
READERS: Final[dict[type[Event], frozenset[type[Reducer]]]] = {
    Collectives: frozenset({RunTroubles, TrafficBars}),
    IterationBegun: frozenset({Divergences, TrafficBars}),
    Transfer: frozenset({TrafficBars}),
    VersionComplete: frozenset({Copies, IterationPace, Sums, TrafficBars}),
    Iteration: frozenset(
        {Course, Divergences, CountedIterations, Logged, Nodes, IterationPace, Reached, TrafficBars}
    ),
}
"""The parts that read each kind of event that every rank tells in every iteration.

No other part is asked, because such entries are nearly all of a log.
"""


class RunReducer:
    """The state of a run, made of its log's entries.

    Each part is an attribute, and takes an entry in before the parts that are made after it.

    Args:
        blocks: Where the timeline's levels are kept, if they are; by default in a file that goes
            with this process.
    """

    def __init__(
        self, *, name: str = "", keep: Keep = FOR_DASHBOARD, blocks: FileBlocks | None = None
    ) -> None:
        self.count = 0
        self.unread = 0  # those among them that made no sense, and lines that were no events
        # The latest time told, on the log's clock; `None` before the first entry.
        self.newest_s: float | None = None
        self.course = Course(most_notes=keep.notes)
        self.nodes = Nodes()
        self.arrivals = Arrivals()
        self.reached = Reached()
        self.copies = Copies(self.nodes)
        self.pace = IterationPace()
        self.iterations = CountedIterations()
        self.divergences = Divergences(ranks=keep.ranks)
        self.finite = Finite()
        self.rewinds = Rewinds()
        self.ailments = RunTroubles()
        self.verified = VerifiedSums()
        self.sizes = Sizes()
        self.copies_placed = CopiesPlaced()
        self.seated = Seated()
        self.spans = Spans(self.seated)
        self.recoveries = RecoveryReducer(
            self.reached, self.pace, self.divergences, self.spans, self.seated, most=keep.recoveries
        )
        self.logged = Logged()
        self.persistent = Persistent()
        self.sums = Sums()
        self.plans = Plans()
        self.blocks = blocks or FileBlocks()
        pyramid = Pyramid(self.blocks) if keep.levels and keep.bars else None
        self.traffic = TrafficBars(self.nodes, limit=keep.bars, pyramid=pyramid)
        self._name = name
        unkept = {"iterations"} if not keep.ranks else set()
        unkept |= {"traffic"} if not keep.bars else set()
        parts: dict[str, Reducer] = {
            name: part
            for name, part in vars(self).items()
            if hasattr(part, "take") and (name in BRIEF if keep.is_brief else name not in unkept)
        }
        self._parts = tuple(part.take for part in parts.values())
        self._readers = {
            kind: tuple(part.take for part in parts.values() if type(part) in readers)
            for kind, readers in READERS.items()
        }

    @classmethod
    def load(cls, path: Path | str, *, keep: Keep = FOR_DASHBOARD) -> Self:
        """Return the state that a log gives, named by its file or its run's folder.

        Raises:
            ConfigError: No log is there, or it is of a version that this package cannot read.
        """
        feed = LogFeed(Path(path))
        if not feed.path.is_file():
            raise ConfigError(f"there is no log at {feed.path}; name a run's folder or its log")
        reducer = cls(name=name_of(feed.path), keep=keep)
        while reducer.read(feed):
            pass
        return reducer

    @property
    def name(self) -> str:
        return self._name or ("" if self.course.job is None else self.course.job.name)

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.take(entry)

    def read(self, feed: LogFeed, *, limit: int = 20_000) -> int:
        """Take in what a log has next, and count lines of it that were no events.

        Returns:
            How many entries there were; 0 if the log has no more now.

        Raises:
            SchemaError: The log is of a version that this package cannot read.
        """
        bad_lines = feed.bad_lines
        entries = feed.poll(limit=limit)
        self.extend(entries)
        self.unread += feed.bad_lines - bad_lines
        return len(entries)

    def take(self, entry: Entry) -> None:
        """Take in one entry; one that makes no sense to a part is counted and left out there."""
        self.count += 1
        is_odd = False
        for take in self._readers.get(type(entry.event), self._parts):
            try:
                take(entry)
            except (ArithmeticError, LookupError, ValueError):
                is_odd = True
        try:
            at_s = seconds(entry.at_s)
            if self.newest_s is None or at_s > self.newest_s:
                self.newest_s = at_s
        except ValueError:
            is_odd = True
        self.unread += is_odd
