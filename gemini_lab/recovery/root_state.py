"""The state of a run that a root agent leaves to the next one, in parts."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from gemini_lab.log.events import RecoveryFinished, RecoveryStarted, RunFailed, RunFinished
from gemini_lab.placement import Placement, Risk
from gemini_lab.recovery.messages import ExecutedAs, JobOrder
from gemini_lab.recovery.plan import Copy, VersionId
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
    """The job and its settings.

    Attributes:
        order: The job under way, as the lab submitted it.
        placed: The seats and, once workers have called `protect`, the placement of copies.
        settings: The settings that `protect` sent; `None` before that.
        fingerprint: Identity of model, optimizer and world size, to recognise another model.
        code: How workers executed the script's files last, by file name.
        shard_bytes: Size of the largest shard; 0 before it is known.
        own: JSON that a user's own root agent keeps.
    """

    order: JobOrder | None = None
    placed: Seats | None = None
    settings: Settings | None = None
    fingerprint: str | None = None
    code: dict[str, ExecutedAs] = field(default_factory=dict)
    shard_bytes: int = 0
    own: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """How far training has come.

    Attributes:
        iteration: Newest iteration that all ranks have finished.
        newest: Newest version that is known to have been whole.
        begun: Version from which workers started last; 0 for none.
        trained: Epoch in which workers started last.
        rendezvous: Address of their rendezvous.
        is_unsure: Whether versions may have become whole that no root agent heard of, because
            one was lost while workers ran.
    """

    iteration: int = 0
    newest: int = 0
    begun: int = 0
    trained: int = 0
    rendezvous: str = ""
    is_unsure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InTier:
    """The run's versions in the persistent tier.

    Attributes:
        saved: Newest version that is known to be there and still counts.
        saved_at_s: When that save began, or when the job was submitted.
        is_behind: Whether training went back behind the tier and has saved nothing since.
    """

    saved: int = 0
    saved_at_s: float = 0.0
    is_behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """Versions and copies that count no more.

    Attributes:
        rejected: Versions in the persistent tier that do not load and that a user gave up.
        bad_copies: Copies in memory that could not be used.
        left: Versions that rewinds left behind; see `recovery.discarded_versions`.
        let_go: Oldest version that a user agreed to go on from; -1 for none.
        has_given_up: Whether a user gave up what the next plan waits for.
        given_up: Number of the last request to give up progress.
        asked_back: Number of the last request for a rewind, and how many there were.
    """

    rejected: tuple[VersionId, ...] = ()
    bad_copies: tuple[Copy, ...] = ()
    left: tuple[VersionId, ...] = ()
    let_go: int = -1
    has_given_up: bool = False
    given_up: int = 0
    asked_back: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSetAside:
    """Nodes that are not used like the others.

    Attributes:
        silent: Nodes that were lost without a sign that their memory is gone.
        excluded: Nodes that are used last of all, because every attempt on them failed.
        again: Nodes that were excluded and used again since training last got further.
        wrong: Nodes that computed wrong sums; they are never used again.
    """

    silent: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

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
    """Nodes whose machines are to go.

    Attributes:
        leaving: Nodes whose ranks train there until they can move.
        holding: The node for which all ranks are stopping; empty for none.
        moved: Nodes whose ranks have moved, or move now; they are used last of all.
        drains: Number of the last request for a drain.
    """

    leaving: tuple[str, ...] = ()
    holding: str = ""
    moved: tuple[str, ...] = ()
    drains: int = 0

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
    """Failures since training last got on.

    Attributes:
        attempts: Workers that failed since an iteration was finished.
        errors: Errors of the script's own in this run, the newest last.
        offences: Nodes of these failures, the newest last.
        barren: Nodes of starts in a row that got no further; see `faults.has_got_further`.
        fruitless: Recoveries in a row that began before the start of the one before got further.
    """

    attempts: int = 0
    errors: tuple[str, ...] = ()
    offences: tuple[str, ...] = ()
    barren: tuple[str, ...] = ()
    fruitless: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Numbers of nodes.

    Attributes:
        wanted: Nodes that a user asked for last; 0: as many as the job was submitted with.
        asked_size: Number of the last request for a size.
        size: Nodes with which training went on last; 0 before it has.
        resizing: Nodes that the run gets once all ranks have stopped; 0 if they do not stop.
        refused: Numbers of nodes with which the script cannot go on.
        resized_at_s: When training last went on with another number.
        growths: How often machines that came made the run larger.
        none_come: Whether the provider said, in this recovery, that no machine comes.
        is_unsettled: Whether agents keep versions of another world size.
    """

    wanted: int = 0
    asked_size: int = 0
    size: int = 0
    resizing: int = 0
    refused: tuple[int, ...] = ()
    resized_at_s: float = 0.0
    growths: int = 0
    none_come: bool = False
    is_unsettled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlacement:
    """The placement of copies, which follows the failures that are seen.

    Attributes:
        risk: Failures seen of each machine.
        later: Placement that follows once the copies of this one are whole.
        placed_at_s: When copies were placed again last; 0 for never.
        is_replacing: Whether all ranks are stopping for that.
    """

    risk: Risk = field(default_factory=Risk)
    later: Placement | None = None
    placed_at_s: float = 0.0
    is_replacing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The failure that the recovery under way answers.

    Attributes:
        cause: How the first failure was noticed.
        lost: Nodes that were lost, in the order of notice.
        at_s: When the first failure was noticed.
        since_s: When waiting began, on the clock of this root agent.
        reached: Newest version or finished iteration known before.
    """

    cause: str
    lost: tuple[str, ...]
    at_s: float
    since_s: float
    reached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStory:
    """The run's recoveries and its end.

    Attributes:
        recoveries: Failures until now, this one included.
        trouble: The failure that the recovery under way answers; `None` without one.
        said: The last recovery's end and the start of the one under way. A newly elected root
            agent emits them again, because they may have been lost.
        ending: The run's end that is still to be emitted.
        parting: The run's end once its newest version is saved.
        clock_s: The writer's clock when it stored this; 0 in its own memory.
    """

    recoveries: int = 0
    trouble: Trouble | None = None
    said: tuple[RecoveryStarted | RecoveryFinished, ...] = ()
    ending: RunFinished | RunFailed | None = None
    parting: RunFailed | None = None
    clock_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RootState:
    """The state that a newly elected root agent goes on from.

    Attributes:
        phase: Where the run stands; see `recovery.root.lifecycle`.
        epoch: Rises with every restart; agents end workers of an older epoch.
    """

    phase: Phase = "idle"
    epoch: int = 0
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
        return replace(
            self,
            story=replace(
                self.story,
                trouble=trouble and replace(trouble, since_s=trouble.since_s + ahead_s),
                clock_s=0.0,
            ),
            resize=replace(self.resize, resized_at_s=resized_at_s and resized_at_s + ahead_s),
            copies=replace(self.copies, placed_at_s=placed_at_s and placed_at_s + ahead_s),
        )

    def written_at(self, clock_s: float) -> "RootState":
        """Return the state as it is stored, with the writer's clock."""
        return replace(self, story=replace(self.story, clock_s=clock_s))

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
        """The seats for workers; with the machines' risk only as long as they choose by it."""
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
        known = self.setup.settings
        return known or Settings.parse({**self.job.defaults, **self.job.settings})

    def to_text(self) -> str:
        """Return the state as JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> "RootState":
        """Return the state that `to_text` gave."""
        return msgspec.json.decode(text, type=cls)
