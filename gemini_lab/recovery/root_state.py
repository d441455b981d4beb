"""The state of a run that a root agent leaves to the next one, in parts."""

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

import msgspec

from gemini_lab.log.events import RecoveryFinished, RecoveryStarted, RunFailed, RunFinished
from gemini_lab.placement import Placement, Risk
from gemini_lab.recovery.messages import ExecutedAs, JobOrder
from gemini_lab.recovery.plan import Copy, VersionId
from gemini_lab.recovery.told_seats import ToldSeats
from gemini_lab.seats import Seats
from gemini_lab.settings import Settings
from gemini_lab.shard.lineage import Lineage

Phase = Literal[
    "idle",
    "fencing",
    "inventory",
    "waiting",
    "starting",
    "running",
    "finishing",
    "done",
    "failed",
]
ACTIVE: Final = frozenset({"fencing", "inventory", "waiting", "starting", "running", "finishing"})
RESTARTING: Final = frozenset({"fencing", "inventory", "waiting", "starting"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The job and its settings."""

    order: JobOrder | None = None  # the job under way, as the lab submitted it
    # The seats and, once workers have called `protect`, the placement of copies.
    placed: Seats | None = None
    settings: Settings | None = None  # the settings that `protect` sent; `None` before that
    # Identity of model, optimizer and world size, to recognise another model.
    fingerprint: str | None = None
    # How workers executed the script's files last, by file name.
    code: dict[str, ExecutedAs] = field(default_factory=dict)
    shard_bytes: int = 0  # size of the largest shard; 0 before it is known
    # Ranks that hold one model between them; see `events.Protected`.
    model_parallel_size: int = 1
    own: str = ""  # JSON that a user's own root agent keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """How far training has come."""

    iteration: int = 0  # newest iteration that all ranks have finished
    newest: int = 0  # newest version that is known to have been whole
    begun: int = 0  # version from which workers started last; 0 for none
    trained: int = 0  # epoch in which workers started last
    rendezvous: str = ""  # address of their rendezvous
    # Whether versions may have become whole that no root agent heard of, because one was lost while
    # workers ran.
    is_unsure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InTier:
    """The run's versions in the persistent tier."""

    saved: int = 0  # newest version that is known to be there and still counts
    saved_at_s: float = 0.0  # when that save began, or when the job was submitted
    # Whether training went back behind the tier and has saved nothing since.
    is_behind: bool = False
    asked: int = 0  # number of the last request to save that a save has answered
    # The iteration since which losses are not finite, so that good versions stay; `None` for none.
    not_finite_since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """Versions and copies that count no more."""

    # Versions in the persistent tier that do not load and that a user gave up.
    rejected: tuple[VersionId, ...] = ()
    bad_copies: tuple[Copy, ...] = ()  # copies in memory that could not be used
    # Versions that rewinds left behind; see `recovery.discarded_versions`.
    left: tuple[VersionId, ...] = ()
    let_go: int = -1  # oldest version that a user agreed to go on from; -1 for none
    has_given_up: bool = False  # whether a user gave up what the next plan waits for
    given_up: int = 0  # number of the last request to give up progress
    # Number of the last request for a rewind, and how many there were.
    asked_back: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSetAside:
    """Nodes that are not used like the others."""

    silent: tuple[str, ...] = ()  # nodes that were lost without a sign that their memory is gone
    # Nodes that are used last of all, because every attempt on them failed.
    excluded: tuple[str, ...] = ()
    # Nodes that were excluded and used again since training last got further.
    again: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()  # nodes that computed wrong sums; they are never used again

    def without(self, *nodes: str) -> "NodesSetAside":
        """Return this after other machines have taken these names."""
        return replace(
            self,
            excluded=tuple(name for name in self.excluded if name not in nodes),
            again=tuple(name for name in self.again if name not in nodes),
            wrong=tuple(name for name in self.wrong if name not in nodes),
        )

    def used_again(self, nodes: Collection[str]) -> "NodesSetAside":
        """Return this after excluded nodes came into use again."""
        return replace(
            self,
            excluded=tuple(name for name in self.excluded if name not in nodes),
            again=tuple(dict.fromkeys((*self.again, *nodes))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Nodes whose machines are to go."""

    leaving: tuple[str, ...] = ()  # nodes whose ranks train there until they can move
    holding: str = ""  # the node for which all ranks are stopping; empty for none
    # Nodes whose ranks have moved, or move now; they are used last of all.
    moved: tuple[str, ...] = ()
    drains: int = 0  # number of the last request for a drain

    def without(self, node: str) -> "Drain":
        """Return this without a node, because its machine is not to go any more."""
        return replace(
            self,
            leaving=tuple(name for name in self.leaving if name != node),
            holding="" if self.holding == node else self.holding,
            moved=tuple(name for name in self.moved if name != node),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Failures since training last got on."""

    attempts: int = 0  # workers that failed since an iteration was finished
    errors: tuple[str, ...] = ()  # errors of the script's own in this run, the newest last
    offences: tuple[str, ...] = ()  # nodes of these failures, the newest last
    # Nodes of starts in a row that got no further; see `faults.has_got_further`.
    barren: tuple[str, ...] = ()
    # Recoveries in a row that began before the start of the one before got further.
    fruitless: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Numbers of nodes."""

    wanted: int = 0  # nodes that a user asked for last; 0: as many as the job was submitted with
    asked_size: int = 0  # number of the last request for a size
    size: int = 0  # nodes with which training went on last; 0 before it has
    resizing: int = 0  # nodes that the run gets once all ranks have stopped; 0 if they do not stop
    refused: tuple[int, ...] = ()  # numbers of nodes with which the script cannot go on
    resized_at_s: float = 0.0  # when training last went on with another number
    growths: int = 0  # how often machines that came made the run larger
    none_come: bool = False  # whether the provider said, in this recovery, that no machine comes
    is_unsettled: bool = False  # whether agents keep versions of another world size


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlacement:
    """The placement of copies, which follows the failures that are seen."""

    risk: Risk = field(default_factory=Risk)  # failures seen of each machine
    later: Placement | None = None  # placement that follows once the copies of this one are whole
    placed_at_s: float = 0.0  # when copies were placed again last; 0 for never
    is_replacing: bool = False  # whether all ranks are stopping for that


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The failure that the recovery under way answers."""

    cause: str  # how the first failure was noticed
    lost: tuple[str, ...]  # nodes that were lost, in the order of notice
    at_s: float  # when the first failure was noticed
    since_s: float  # when waiting began, on the clock of this root agent
    reached: int = 0  # newest version or finished iteration known before


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStory:
    """The run's recoveries and its end."""

    recoveries: int = 0  # failures until now, this one included
    # The failure that the recovery under way answers; `None` without one.
    trouble: Trouble | None = None
    # The last recovery's end and the start of the one under way. A newly elected root agent emits
    # them again, because they may have been lost.
    said: tuple[RecoveryStarted | RecoveryFinished, ...] = ()
    ending: RunFinished | RunFailed | None = None  # the run's end that is still to be emitted
    parting: RunFailed | None = None  # the run's end once its newest version is saved
    clock_s: float = 0.0  # the writer's clock when it stored this; 0 in its own memory


@dataclass(frozen=True, slots=True, kw_only=True)
class RootState:
    """The state that a newly elected root agent goes on from."""

    phase: Phase = "idle"  # where the run stands; see `recovery.root.lifecycle`
    epoch: int = 0  # rises with every restart; agents end workers of an older epoch
    setup: Setup = field(default_factory=Setup)
    reached: TrainingProgress = field(default_factory=TrainingProgress)
    tier: InTier = field(default_factory=InTier)
    discarded: Discarded = field(default_factory=Discarded)
    nodes: NodesSetAside = field(default_factory=NodesSetAside)
    drain: Drain = field(default_factory=Drain)
    faults: Faults = field(default_factory=Faults)
    resize: Resize = field(default_factory=Resize)
    copies: CopyPlacement = field(default_factory=CopyPlacement)
    story: RecoveryStory = field(default_factory=RecoveryStory)

    def with_parts(self, *parts: "StatePart") -> "RootState":
        """Return the state with these parts in the place of those of their kinds."""
        changed: dict[str, Any] = {_NAMES[type(part)]: part for part in parts}
        return replace(self, **changed)

    def on_clock(self, at_s: float) -> "RootState":
        """Return the state for a root agent whose clock reads `at_s` now.

        Another machine's clock may differ by any amount. So waits go on as if no time had passed
        since the state was written: nothing is given up too early.
        """
        if not self.story.clock_s:
            return self
        ahead_s = at_s - self.story.clock_s
        trouble, resized_at_s = self.story.trouble, self.resize.resized_at_s
        placed_at_s = self.copies.placed_at_s
        return self.with_parts(
            replace(
                self.story,
                trouble=trouble and replace(trouble, since_s=trouble.since_s + ahead_s),
                clock_s=0.0,
            ),
            replace(self.resize, resized_at_s=resized_at_s and resized_at_s + ahead_s),
            replace(self.copies, placed_at_s=placed_at_s and placed_at_s + ahead_s),
        )

    @property
    def job(self) -> JobOrder:
        """The job; only for a state that has one."""
        assert self.setup.order is not None
        return self.setup.order

    @property
    def seats(self) -> Seats:
        """The seats; only for a state that has a job."""
        assert self.setup.placed is not None
        return self.setup.placed

    @property
    def seats_to_tell(self) -> Seats:
        """The seats for workers; with the machines' risk only as long as they choose by it.

        Rank 0 alone is told the risk, which grows with the nodes; it tells the others.
        """
        return self.seats if self.seats.placement is None else replace(self.seats, risk=Risk())

    @property
    def members(self) -> tuple[str | None, ...]:
        """The node on each position; empty without a job."""
        return () if self.setup.placed is None else self.setup.placed.members

    @property
    def avoided(self) -> frozenset[str]:
        """Nodes that are used only if there is no other."""
        return frozenset((*self.nodes.excluded, *self.drain.moved))

    @property
    def goal(self) -> int:
        """How many nodes are to train."""
        return self.resize.wanted or self.job.seats.nodes

    @property
    def ranks(self) -> range:
        """All ranks of the job."""
        return self.seats.ranks

    @property
    def lineage(self) -> Lineage:
        """The history in which versions are made now."""
        return Lineage(run=self.job.run, epoch=self.epoch)

    @property
    def recovery(self) -> int:
        """Number of the recovery under way; 0 is the first start."""
        return self.story.recoveries if self.story.trouble is not None else 0

    @property
    def is_disowning(self) -> bool:
        """Whether the run has failed and its tier has yet to learn what counts no more."""
        ending = self.story.ending
        is_wrong = isinstance(ending, RunFailed) and ending.cause == "wrong_sums"
        return is_wrong and bool(self.discarded.left)

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the script's files as this run executed them last, by name."""
        return {name: digest for name, (_, digest) in self.setup.code.items()}

    def read_settings(self) -> Settings:
        """Return the workers' settings; before `protect` sent them, the launcher's."""
        return self.setup.settings or self.job.launched_with

    def to_text(self, clock_s: float = 0.0) -> str:
        """Return the state as JSON, with the seats in few words: a store takes 1.5 MB at most.

        Args:
            clock_s: The writer's clock.
        """
        placed = self.setup.placed
        story = replace(self.story, clock_s=clock_s)
        rest = self.with_parts(replace(self.setup, placed=None), story)
        stored = _Stored(rest=rest, seats=None if placed is None else ToldSeats.of(placed))
        return msgspec.json.encode(stored).decode()

    @classmethod
    def from_text(cls, text: str) -> "RootState":
        """Return the state that `to_text` gave."""
        stored = msgspec.json.decode(text, type=_Stored)
        placed = None if stored.seats is None else stored.seats.whole()
        return stored.rest.with_parts(replace(stored.rest.setup, placed=placed))


StatePart = (
    Setup
    | TrainingProgress
    | InTier
    | Discarded
    | NodesSetAside
    | Drain
    | Faults
    | Resize
    | CopyPlacement
    | RecoveryStory
)
_NAMES: Final = {type(getattr(RootState(), one.name)): one.name for one in fields(RootState)}


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A state as it is stored."""

    rest: RootState  # all but the seats
    seats: ToldSeats | None
