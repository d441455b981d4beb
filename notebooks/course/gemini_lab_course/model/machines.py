"""Slabs, the persistent tier, the store and workers, as far as the protocol can tell."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gemini_lab.recovery.messages import Commit, Persist, RootOrder, StartWorkers, WorkerStatus
from gemini_lab.recovery.plan import CopyTransfer, PlanPart, Stored
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import Seats
from gemini_lab.shard.lineage import Lineage
from gemini_lab_course.model.truth import HeldVersion, Histories

Moment = tuple[int, int]
"""How many rewinds there were, and a version: of two moments the later one is greater."""
NEVER = (-1, -1)
LEASE_S = 2.0
ITERATION_S = 1.0


class ModelledSlab:
    """Two buffers a shard of so many, chosen as `gemini_lab.memory.slab` chooses them."""

    def __init__(self, shards: Sequence[int], histories: Histories, *, ranks: int) -> None:
        self.shards, self.ranks = tuple(shards), ranks
        self._histories = histories
        self._buffers: dict[int, list[HeldVersion | None]] = {
            shard: [None, None] for shard in shards
        }

    def begin(self, shard: int, version: int, lineage: Lineage, state: int) -> HeldVersion:
        """Overwrite the buffer without the newest complete version before this one."""
        pair = self._buffers[shard]

        def worth(index: int) -> tuple[bool, int]:
            held = pair[index]
            if held is None or not held.is_whole:
                return (False, -1)
            return (held.version < version, held.version)

        index = min(range(2), key=worth)
        new = pair[index] = HeldVersion(
            shard=shard, version=version, lineage=lineage, state=state, ranks=self.ranks
        )
        return new

    def commit(self, held: HeldVersion) -> None:
        """Seal it as whole, unless its buffer was taken for another meanwhile."""
        self._histories.check_label(held)
        held.is_whole = True

    def copies(self) -> Iterator[HeldVersion]:
        """Yield the whole ones."""
        for pair in self._buffers.values():
            for held in pair:
                if held is not None and held.is_whole:
                    yield held

    def find(self, shard: int, version: int, lineage: Lineage | None) -> HeldVersion | None:
        """Return a whole copy; without a lineage, of whichever."""
        for held in self._buffers.get(shard, ()):
            is_it = held is not None and held.is_whole and held.version == version
            if held is not None and is_it and lineage in {None, held.lineage}:
                return held
        return None

    def discard(self, copy: HeldVersion) -> None:
        """Make a copy not exist any more."""
        pair = self._buffers[copy.shard]
        pair[next(i for i, held in enumerate(pair) if held is copy)] = None

    def laid_out(self, shards: Sequence[int]) -> "ModelledSlab":
        """Return a slab for another position, with the copies that it has room for."""
        new = ModelledSlab(shards, self._histories, ranks=self.ranks)
        for copy in self.copies():
            if copy.shard in new.shards:
                held = new.begin(copy.shard, copy.version, copy.lineage, copy.state)
                held.is_whole, held.is_good = True, copy.is_good
        return new


@dataclass(slots=True)
class Tier:
    """The persistent tier: manifests by version, the last written last.

    Attributes:
        is_mute: Whether it lists and does not read.
        shown: What it lists instead of what it has, if it lists late.
    """

    is_up: bool = True
    is_full: bool = False
    is_mute: bool = False
    shown: list[Stored] | None = None
    versions: dict[int, tuple[Lineage, dict[int, int]]] = field(default_factory=dict)

    def stored(self) -> list[Stored]:
        """Return what it lists."""
        if self.shown is not None:
            return self.shown
        return [Stored(version=v, lineage=lineage) for v, (lineage, _) in self.versions.items()]

    def commit(self, order: Commit) -> None:
        """Write the manifest; then remove the oldest, as `PersistentTier` does."""
        self.versions.pop(order.version, None)
        states = {record.shard: int(record.file) for record in order.records}
        self.versions[order.version] = (order.meta.lineage, states)
        by_age = list(self.versions)
        kept = {*by_age[-order.keep :], *(v for v in by_age if v > order.version)}
        self.versions = {v: one for v, one in self.versions.items() if v in kept}


@dataclass(slots=True)
class TierRecord:
    """Who is root."""

    name: str
    term: int


@dataclass(slots=True)
class Store:
    """The control store: leases by node, the root's record under its owner's lease, the state."""

    is_up: bool = True
    leases: dict[str, float] = field(default_factory=dict)  # until when
    root: TierRecord | None = None
    term: int = 0
    state: RootState | None = None
    cancel: int | None = None
    give_up: int | None = None
    drains: dict[str, int] = field(default_factory=dict)
    resize: tuple[int, int] | None = None  # the number of the word, and how many nodes

    def drop(self, node: str) -> None:
        """End a lease, and delete every key under it."""
        self.leases.pop(node, None)
        if self.root is not None and self.root.name == node:
            self.root = None


@dataclass(slots=True)
class ModelledJob:
    """The workers of one start: what they exchange, wherever they are by now.

    Attributes:
        reached: Of each rank, the last barrier that it came to.
        updated: Of each rank, the version that it has, after so many rewinds.
        states: The state of each rank at each version.
        begun, committed: Of each rank, the last version that it began, or has whole, likewise.
        sent: What was sent in a restore.
        wants: The versions with which a rank told that it was asked to stop.
        wish: After which version training is to go back, and by how many more.
        offers: Of each rank that came to go back, the versions that would do.
    """

    order: StartWorkers
    reached: dict[int, int] = field(default_factory=dict)
    loaded: dict[int, int] = field(default_factory=dict)
    updated: dict[int, Moment] = field(default_factory=dict)
    states: dict[tuple[int, int], int] = field(default_factory=dict)
    begun: dict[int, Moment] = field(default_factory=dict)
    committed: dict[int, Moment] = field(default_factory=dict)
    sent: dict[CopyTransfer, HeldVersion] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    full_at: Moment = NEVER
    wish: tuple[int, int] | None = None
    offers: dict[int, set[tuple[int, Lineage]]] = field(default_factory=dict)
    wants: set[Moment] = field(default_factory=set)

    @property
    def seats(self) -> Seats:
        return self.order.seats

    @property
    def is_halfway(self) -> bool:
        """Whether some ranks, but not all, have a version whole that was made in this start."""
        newest = max(self.committed.values(), default=NEVER)
        has = sum(moment == newest for moment in self.committed.values())
        return newest[1] > (self.version or 0) and has < self.seats.world_size

    @property
    def version(self) -> int | None:
        """The version that all ranks load."""
        return self.order.plan.version


@dataclass(slots=True)
class ModelledWorker:
    """One rank's process."""

    rank: int
    epoch: int
    job: ModelledJob
    plan: PlanPart
    stage: int = 0  # 0 starting, 1 at the rendezvous, 2 protected, 3 forgot, 4 training
    transfer: int = 0
    version: int = 0
    state: int = 0
    updated_s: float = 0.0
    moving: int = 3  # of `version`: 1 begun, 2 committed here, 3 whole everywhere, 0 to go back
    rewinds: int = 0
    buffers: list[HeldVersion] = field(default_factory=list)
    status: WorkerStatus = "running"
    is_hung: bool = False
    moved_s: float = 0.0
    wants_hold: bool = False
    holds_at: int | None = None  # the version after which it stands still
    has_held: bool = False
    told: tuple[str, object] = ("", None)  # what its agent said of it last, and over which link

    @property
    def moment(self) -> Moment:
        """The moment at which it stands."""
        return self.rewinds, self.version


class Link:
    """One connection between a root and an agent: first in, first out, both ways."""

    def __init__(self) -> None:
        self.to_agent: deque[RootOrder] = deque()
        self.to_root: deque[object] = deque()
        self.is_broken = False

    def cut(self, arrive_at_agent: int, arrive_at_root: int) -> None:
        """Break; of what is on its way only so much arrives."""
        self.is_broken = True
        for queue, kept in ((self.to_agent, arrive_at_agent), (self.to_root, arrive_at_root)):
            while len(queue) > kept:
                queue.pop()


Writing = Persist | Commit
