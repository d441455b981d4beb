"""Tables of a run at one moment: its nodes, the copies of its shards, and their memory.

Values for views, plain data. Times are seconds since the run's start. Names and what workers
printed are those of the log, not yet escaped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gemini_lab.report.reducers.course import Phase

Origin = Literal["measured here", "simulated", "model"]
NodeHealth = Literal[
    "starting", "training", "recovering", "failed", "standby", "lost", "over", "drained", "left"
]
CopyState = Literal["whole", "missing", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node as it is now.

    Attributes:
        name: As in the log.
        position: Where it trains; `None` for a standby or a node that is gone or about to go.
        health: What it does; `"failed"` where its worker exited or hung and no other was started,
            `"over"` where the run is, `"drained"` where its ranks have moved so that its machine
            may be taken, `"left"` where that has happened.
        leaving: What its ranks wait for before they move, as its machine is to go; empty where
            they wait for nothing, `None` where the machine stays.
        is_root: Whether its agent is the root agent.
        rack: Where its position is; empty where the log does not say.
    """

    name: str
    position: int | None
    health: NodeHealth
    is_root: bool = False
    rack: str = ""
    leaving: str | None = None


def leaving_of(nodes: Iterable[NodeRow]) -> list[str]:
    """In words, what becomes of nodes whose machines are to go or may be taken."""
    lines = []
    for node in nodes:
        if node.leaving is not None:
            lines.append(
                f"{node.name} is to leave: {node.leaving or 'its ranks are about to move'}"
            )
        elif node.health == "drained":
            lines.append(f"{node.name} has no ranks any more: its machine may be taken")
    return lines


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
        is_open: Whether the newest of them has not come to its end.
        diverged: Losses that are no numbers now; what came out otherwise when it was done
            again, and the likely cause; or nothing.
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
    is_open: bool = False
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
    """The consequences of one node's loss now.

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
    """The holders of each shard's replicas.

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

    @property
    def racks(self) -> frozenset[str]:
        """The racks that the log names."""
        return frozenset(node.rack for node in self.nodes if node.rack)

    @property
    def in_one_rack(self) -> dict[int, str]:
        """Shards of which all copies belong into one rack, and that."""
        found: dict[int, set[str]] = {}
        for copy in self.copies:
            found.setdefault(copy.shard, set()).add(self.nodes[copy.position].rack)
        return {
            shard: min(racks) for shard, racks in found.items() if len(racks) == 1 and any(racks)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """CPU memory for checkpoints on one position; every kept shard has two buffers or more.

    Attributes:
        node: Its name.
        own_bytes: The own shard, whole.
        peers_bytes: Replicas of peers' shards, whole.
        writing_bytes: Buffers into which a newer version goes right now.
        free_bytes: Buffers that are taken, but hold no newer version: older ones, or nothing.
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
