"""What the views draw: one snapshot of a run as plain data.

`gemini_lab.report.tables.tables_of` makes a `Tables`; a view takes the one part that it draws and
counts nothing. Times are seconds since the run's start. Names and what workers printed are those of
the log, not yet escaped.
"""

from dataclasses import dataclass
from typing import Literal

from gemini_lab.report.reducers.course import STEPS, Phase

__all__ = ["STEPS"]

Origin = Literal["measured here", "simulated", "model"]
NodeHealth = Literal["starting", "training", "recovering", "failed", "standby", "lost", "over"]
CopyState = Literal["whole", "missing", "lost"]
Part = Literal[
    "first_start",
    "training",
    "exposed",
    "redo",
    "between",
    "detect",
    "fence",
    "serialise",
    "start",
    "retrieve",
    "warm_up",
    "waiting",
    "other",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node as it is now.

    Attributes:
        name: As in the log.
        position: Where it trains; `None` for a standby or a lost node.
        health: What it does; `"failed"` where its worker exited or hung and no other was started,
            `"over"` where the run is.
        is_root: Whether its agent is the root agent.
    """

    name: str
    position: int | None
    health: NodeHealth
    is_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What checkpoints cost an iteration, as a share of one without them (0.01 is 1 %).

    Attributes:
        share: The estimate.
        low: Lower end of its 95 % bootstrap interval; `None` where only waiting was summed up.
        high: Its upper end.
        how: What was compared with what.
    """

    share: float
    low: float | None
    high: float | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The run in a few numbers.

    Attributes:
        run: Its name.
        origin: Whether it ran or was simulated.
        phase: What it does now.
        detail: The recovery's step, why a run failed, or nothing.
        error: What the worker raised because of which the run failed or recovers; or nothing.
        output: The last lines that this worker printed, in order.
        now_s: The moment of the snapshot.
        iteration: Newest iteration that every rank has finished.
        whole_version: Newest version of which every shard is whole in memory somewhere.
        whole_age_s: How long ago it became so.
        survivable: This many nodes, whichever, may be lost now, and memory still has a whole
            version; -1 where memory has none at all, `None` where the placement is not known.
        survivable_version: That version.
        persistent_version: Newest version in the persistent tier.
        nodes: In order of position, then standbys, then nodes that were lost last.
        lost_nodes: Nodes lost in the whole run.
        recoveries: In the whole run.
        wasted_s: Lost progress and retrieval of those recoveries, as far as measured.
        diverged: What came out otherwise when it was done again, and the likely cause; or nothing.
        conditions: What the run emulates or assumes, for people.
        notes: Newest remarks in the log.
        unread: Events that could not be made sense of.
        is_past: Whether this is a moment that somebody looks back at.
    """

    run: str
    origin: Origin
    phase: Phase
    detail: str
    error: str
    output: tuple[str, ...]
    now_s: float
    iteration: int
    whole_version: int | None
    whole_age_s: float | None
    survivable: int | None
    survivable_version: int | None
    persistent_version: int | None
    nodes: tuple[NodeRow, ...]
    lost_nodes: int
    recoveries: int
    wasted_s: float
    conditions: tuple[str, ...]
    notes: tuple[str, ...]
    unread: int
    diverged: tuple[str, ...] = ()
    is_past: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """One copy of one shard.

    Attributes:
        shard: The position whose shard it is.
        position: Where it lies; the same as `shard` for the owner's own copy.
        holder: The node there.
        version: Newest whole version; `None` if there is none.
        state: Whether a recovery could use it.
        is_writing: Whether a newer version is being written beside it.
    """

    shard: int
    position: int
    holder: str
    version: int | None
    state: CopyState
    is_writing: bool

    @property
    def is_own(self) -> bool:
        """Whether it is the owner's own copy (else a peer keeps it)."""
        return self.shard == self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What would happen if one node died now.

    Attributes:
        position: The node's.
        lost_copies: Shards of which a copy would be gone.
        lost_shards: Those of which memory would have no whole copy left.
        tier: From where training would go on: `"memory"`, `"persistent"` or `"start"`.
        version: With which version; `None` for the start.
        holder: Position that would give the node's own shard; `None` unless `tier` is memory.
    """

    position: int
    lost_copies: tuple[int, ...]
    lost_shards: tuple[int, ...]
    tier: Literal["memory", "persistent", "start"]
    version: int | None
    holder: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """The chance that memory keeps every shard when k nodes are lost at once, all copies whole.

    Attributes:
        lost: k.
        chance: From 0 to 1.
        how: `"exact"`, `"enumerated"` or `"sampled"`.
    """

    lost: int
    chance: float
    how: Literal["exact", "enumerated", "sampled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Who keeps whose replica.

    Attributes:
        strategy: Of the placement; empty where no placement is known.
        replicas: Copies of each shard, m.
        groups: Positions that exchange replicas.
        nodes: One a position, in order.
        standbys: Nodes without a position.
        copies: In order of shard, owner first.
        what_if: One a position.
        survival: For k = 1, 2, ...
        version: The version that memory would give now.
        persistent_version: The one that the persistent tier would give.
    """

    strategy: str
    replicas: int
    groups: tuple[tuple[int, ...], ...]
    nodes: tuple[NodeRow, ...]
    standbys: tuple[NodeRow, ...]
    copies: tuple[CopyRow, ...]
    what_if: tuple[WhatIf, ...]
    survival: tuple[Survival, ...]
    version: int | None
    persistent_version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """CPU memory for checkpoints on one position; every kept shard has two buffers.

    Attributes:
        node: Its name.
        own_bytes: The own shard, whole.
        peers_bytes: Replicas of peers' shards, whole.
        writing_bytes: Buffers into which a newer version goes right now.
        free_bytes: Buffers that are taken, but hold no whole or newer version.
    """

    node: str
    own_bytes: int
    peers_bytes: int
    writing_bytes: int
    free_bytes: int

    @property
    def taken_bytes(self) -> int:
        """All buffers together."""
        return self.own_bytes + self.peers_bytes + self.writing_bytes + self.free_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory by node, and what is known beside it.

    Attributes:
        rows: One a position; empty until the log tells the size of a shard.
        limit_bytes: What a node may take; `None` where the log does not say.
        notes: What is known and what is not, for people.
    """

    rows: tuple[MemoryRow, ...]
    limit_bytes: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of a recovery; times are seconds since the failure."""

    step: str
    label: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRow:
    """One recovery, or what a model says of one.

    Attributes:
        label: For the axis; unique in its table.
        origin: Measured, simulated or model.
        cause: What failed, or what the model assumes.
        steps: In order of time; the lost progress, to be done again, stands last.
        down_s: From the failure to the end of the first iteration; `None` while it lasts.
        wasted_s: Lost progress and retrieval; `None` while unknown.
        lost_iterations: Iterations done again.
        source: Version and tier that were loaded, for people.
        error: Which worker raised what, if one did.
        output: The last lines that this worker printed, in order.
    """

    label: str
    origin: Origin
    cause: str
    steps: tuple[StepRow, ...]
    down_s: float | None
    wasted_s: float | None
    lost_iterations: int
    source: str
    error: str = ""
    output: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoveries:
    """Recoveries of this run, of earlier ones, and the persistent baseline.

    Attributes:
        rows: This run's newest ones first in order of time, then others, then the model.
        total: Recoveries of this run, shown or not.
        notes: What is left out or assumed.
    """

    rows: tuple[RecoveryRow, ...]
    total: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at an iteration."""

    iteration: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationSeries:
    """Iterations of one kind.

    Attributes:
        name: For people.
        run: The earlier run that they are of; empty for this one.
        kind: `"with"` or `"without"` checkpoints, or `"first"` after a start.
        numbers: Iteration of each point that is shown.
        durations_s: Of the slowest rank, for each point.
        median_s: Over all iterations of the kind; `None` without any.
        low_s: Lower end of the median's 95 % bootstrap interval.
        high_s: Its upper end.
        count: All iterations of the kind, shown or not.
    """

    name: str
    run: str
    kind: Literal["with", "without", "first"]
    numbers: tuple[int, ...]
    durations_s: tuple[float, ...]
    median_s: float | None
    low_s: float | None
    high_s: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterations:
    """Iteration times with and without checkpoints, and where failures were."""

    series: tuple[IterationSeries, ...]
    marks: tuple[Mark, ...]
    overhead: Overhead | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WastedRow:
    """Wasted time of one failure, in the parts of Eq. (1).

    Attributes:
        label: For the axis; unique in its table.
        origin: Measured, simulated or model.
        parts: Name and seconds, in order.
        how: Where the numbers come from.
    """

    label: str
    origin: Origin
    parts: tuple[tuple[str, float], ...]
    how: str

    @property
    def total_s(self) -> float:
        """All parts together."""
        return sum(seconds for _, seconds in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wasted:
    """Wasted time, measured beside Eq. (1).

    Attributes:
        rows: What is known so far.
        each_s: What each measured failure wasted.
        notes: What is missing, or assumed.
    """

    rows: tuple[WastedRow, ...]
    each_s: tuple[float, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentRow:
    """What one part of a run's wall time came to.

    Attributes:
        part: Which.
        label: The same in words.
        seconds: In all.
        source: Where in the log they come from, for people.
    """

    part: Part
    label: str
    seconds: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a run's wall time went into.

    Attributes:
        rows: In the order of a bar; no moment is in two of them, and they add up to `wall_s`.
        wall_s: From the job's submission to its end, or to now.
    """

    rows: tuple[SpentRow, ...]
    wall_s: float

    def seconds(self, *parts: Part) -> float:
        """Of some parts together."""
        return sum(row.seconds for row in self.rows if row.part in parts)

    def share(self, *parts: Part) -> float:
        """Of the wall time, from 0 to 1."""
        return self.seconds(*parts) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def overhead(self) -> float:
        """The share of the wall time that was no training that counts, from 0 to 1."""
        return 1.0 - self.share("training") if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One value that a run logged, over its iterations.

    Attributes:
        name: What the script called it.
        run: The earlier run that logged it; empty for this one.
        numbers: Iteration of each point that is shown.
        means: Over the ranks, for each point.
        count: All iterations with such a value, shown or not.
    """

    name: str
    run: str
    numbers: tuple[int, ...]
    means: tuple[float, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Whether a value was the same in an earlier run, bit by bit.

    Attributes:
        name: What the script called it.
        run: The earlier run.
        compared: Values, of all ranks, that both runs have.
        iterations: Iterations of which both runs have values.
        first: The first iteration that differs, and the mean in this run and in the other;
            `None` where none does.
    """

    name: str
    run: str
    compared: int
    iterations: int
    first: tuple[int, float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """What scripts logged, where failures were, and how it compares with earlier runs.

    Attributes:
        curves: This run's, the loss first; then those of earlier runs under the same names.
        marks: The iteration in which each failure struck.
        matches: One for each earlier run and name that both have.
        ranks: Training processes.
        notes: What is left out.
    """

    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...]
    matches: tuple[Match, ...]
    ranks: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """One snapshot; each view draws one part of it."""

    status: Status
    curves: Curves
    spent: Spent
    replicas: Replicas
    memory: Memory
    recoveries: Recoveries
    iterations: Iterations
    wasted: Wasted
