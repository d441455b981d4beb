"""Tables of replicas: their holders, the consequences of a loss, and the memory they take."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from gemini_lab.errors import ConfigError
from gemini_lab.placement import (
    Placement,
    enumerated_probability,
    recovery_probability,
    sampled_probability,
)
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.reducers.copies import NONE, Copies, Versions, Whole
from gemini_lab.report.reducers.nodes import Nodes
from gemini_lab.report.tables.status import NodeRow, seated, standbys
from gemini_lab.settings import SCHEDULED
from gemini_lab.units import format_bytes

CopyState = Literal["whole", "missing", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """One copy of one shard."""

    shard: int  # the position whose shard it is
    position: int  # where it lies; the same as `shard` for the owner's own copy
    holder: str
    version: int | None  # newest whole version; `None` if there is none
    state: CopyState  # whether a recovery could use it
    is_writing: bool  # whether a newer version is being written beside it

    @property
    def is_own(self) -> bool:
        return self.shard == self.position


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutcome:
    """The consequences of one node's loss now."""

    position: int
    lost_copies: tuple[int, ...]  # shards of which a copy would be gone
    lost_shards: tuple[int, ...]  # those of which memory would have no whole copy left
    # From where training would go on: `"memory"`, `"persistent"` or `"start"`.
    tier: Literal["memory", "persistent", "start"]
    version: int | None  # with which version; `None` for the start
    # Position that would give the node's own shard; `None` unless `tier` is memory.
    holder: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """The chance that memory keeps every shard when k nodes are lost at once, all copies whole."""

    lost: int
    chance: float
    how: Literal["exact", "enumerated", "sampled"]  # `"exact"`, `"enumerated"` or `"sampled"`

    @property
    def percent(self) -> str:
        """The chance for people; only certainty reads as 100 %."""
        if self.chance in {0.0, 1.0}:
            return f"{self.chance:.0%}"
        digits = max(1, min(12, -math.floor(math.log10(min(self.chance, 1 - self.chance))) - 1))
        return f"{self.chance:.{digits}%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTable:
    """The holders of each shard's replicas."""

    strategy: str  # of the placement; empty where no placement is known
    replicas: int
    groups: tuple[tuple[int, ...], ...]  # positions that exchange replicas
    nodes: tuple[NodeRow, ...]  # one a position, in order
    standbys: tuple[NodeRow, ...]
    copies: tuple[CopyRow, ...]  # in order of shard, owner first
    what_if: tuple[LossOutcome, ...]  # one a position
    survival: tuple[Survival, ...]  # for k = 1, 2, ..
    version: int | None  # the version that memory would give now
    persistent_version: int | None  # the one that the persistent tier would give

    @property
    def racks(self) -> frozenset[str]:
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
    """CPU memory for checkpoints on one position; every kept shard has two buffers or more."""

    node: str
    own_bytes: int
    peers_bytes: int  # replicas of peers' shards, whole
    writing_bytes: int  # buffers into which a newer version goes right now
    free_bytes: int  # buffers that are taken, but hold no newer version: older ones, or nothing

    @property
    def taken_bytes(self) -> int:
        return self.own_bytes + self.peers_bytes + self.writing_bytes + self.free_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """Memory by node, and what is known beside it."""

    rows: tuple[MemoryRow, ...]  # one a position; empty until the log tells the size of a shard
    limit_bytes: int | None  # what a node may take; `None` where the log does not say
    notes: tuple[str, ...]  # what is known and what is not, for people


ENUMERATED: Final = 20_000
"""Sets of lost nodes that are tried one by one where there is no closed form."""


def replicas(run: RunReducer) -> ReplicaTable:
    """Return the holders of each shard's replicas."""
    copies, placement = run.copies, run.copies.placement
    return ReplicaTable(
        strategy="" if placement is None else placement.strategy,
        replicas=0 if placement is None else placement.replicas,
        groups=() if placement is None else placement.groups,
        nodes=seated(run),
        standbys=standbys(run.nodes),
        copies=copy_rows(run),
        what_if=what_if(copies),
        survival=() if placement is None else survival(placement),
        version=copies.newest(),
        persistent_version=None if copies.persistent == NONE else copies.persistent,
    )


def planned(placement: Placement) -> ReplicaTable:
    """Return the map of a placement by itself: nodes by their numbers, and every copy whole."""
    return ReplicaTable(
        strategy=placement.strategy,
        replicas=placement.replicas,
        groups=placement.groups,
        nodes=tuple(
            NodeRow(name=f"node {position}", position=position, health="training")
            for position in range(placement.nodes)
        ),
        standbys=(),
        copies=tuple(
            CopyRow(
                shard=shard,
                position=holder,
                holder=f"node {holder}",
                version=None,
                state="whole",
                is_writing=False,
            )
            for shard, holders in enumerate(placement.holders)
            for holder in holders
        ),
        what_if=(),
        survival=survival(placement),
        version=None,
        persistent_version=None,
    )


# -- copies ----------------------------------------------------------------------------------------


def copy_rows(run: RunReducer) -> tuple[CopyRow, ...]:
    """Return every copy that there should be, in order of shard, owner first."""
    copies, nodes = run.copies, run.nodes
    if copies.placement is None:
        return ()
    versions = copies.by_position().tolist()
    newer = _newer(run)
    rows = []
    for shard, holder in copies.all_copies():
        state = _state(copies, nodes, shard, holder, versions[holder])
        rows.append(
            CopyRow(
                shard=shard,
                position=holder,
                holder=nodes.members[holder] or "no node",
                version=versions[holder] if state == "whole" else None,
                state=state,
                is_writing=newer[holder] and state != "lost",
            )
        )
    return tuple(rows)


def _state(copies: Copies, nodes: Nodes, shard: int, position: int, version: int) -> CopyState:
    if position in nodes.gone:
        return "lost"
    return "missing" if version == NONE or (shard, position) in copies.missing else "whole"


def _newer(run: RunReducer) -> list[bool]:
    """Return whether a newer version is being written on each position."""
    copies = run.copies
    if run.course.phase != "training":
        return [False] * copies.positions
    ranks = [
        reached > complete and reached >= following
        for reached, complete, following in zip(
            run.reached.now(), copies.complete, copies.next_version, strict=True
        )
    ]
    if copies.is_simulated:
        return ranks * copies.positions
    per_node = copies.per_node
    return [any(ranks[p * per_node : (p + 1) * per_node]) for p in range(copies.positions)]


# -- what would follow a loss ----------------------------------------------------------------------


def what_if(copies: Copies) -> tuple[LossOutcome, ...]:
    """Return for each position what would follow if its node died now."""
    if copies.placement is None:
        return ()
    whole, holders = copies.whole(), copies.holders()
    sole = {v: _sole_holders(there, holders) for v, there in whole.items()}
    now = max((v for v in sole if (sole[v] != NONE - 1).all()), default=None)
    return tuple(
        _if_lost(copies, position, whole, sole, now=now, holders=holders[position])
        for position in range(copies.positions)
    )


def _if_lost(
    copies: Copies,
    position: int,
    whole: Mapping[int, Whole],
    sole: Mapping[int, Versions],
    *,
    now: int | None,
    holders: Versions,
) -> LossOutcome:
    assert copies.placement is not None
    left = [v for v, alone in sole.items() if ((alone != position) & (alone > NONE - 1)).all()]
    version = max(left, default=NONE)
    is_memory = version != NONE and version >= copies.persistent
    holder = None
    if is_memory:
        holder = int(holders[(whole[version][position] & (holders != position)).argmax()])
    stored = version if is_memory else copies.persistent
    lost = () if now is None else tuple(np.flatnonzero(sole[now] == position).tolist())
    return LossOutcome(
        position=position,
        lost_copies=copies.placement.kept_by(position),
        lost_shards=lost,
        tier="memory" if is_memory else "persistent" if stored != NONE else "start",
        version=None if stored == NONE else stored,
        holder=holder,
    )


def _sole_holders(copies: Whole, holders: Versions) -> Versions:
    """Return the only position with a whole copy of each shard; -1: there are more, -2: none."""
    count = copies.sum(axis=1)
    only = holders[np.arange(len(holders)), copies.argmax(axis=1)]
    return np.where(count == 1, only, np.where(count == 0, NONE - 1, NONE))


@lru_cache(maxsize=8)
def survival(placement: Placement) -> tuple[Survival, ...]:
    """Return the chance that memory keeps every shard, for one loss up to a few more than m."""
    most = min(placement.nodes, max(4, 2 * placement.replicas))
    return tuple(_survival(placement, lost) for lost in range(1, most + 1))


def _survival(placement: Placement, lost: int) -> Survival:
    try:
        chance = float(recovery_probability(placement, lost))
    except ConfigError:  # no closed form
        if math.comb(placement.nodes, lost) <= ENUMERATED:
            chance = float(enumerated_probability(placement, lost))
            return Survival(lost=lost, chance=chance, how="enumerated")
        chance = sampled_probability(placement, lost, trials=2000).value
        return Survival(lost=lost, chance=chance, how="sampled")
    return Survival(lost=lost, chance=chance, how="exact")


# -- memory ----------------------------------------------------------------------------------------


def memory(run: RunReducer) -> MemoryTable:
    """Return memory by node, and what the log does not tell."""
    rows = _memory_rows(run)
    notes = []
    if not rows:
        notes.append("the log has not told the size of a shard yet")
    elif run.copies.is_simulated:
        notes.append("simulated: a shard's size follows from what a version sends")
    if rows:
        notes.append(
            "the log states no limit of a node's memory; the outline is what its buffers take, "
            "two for each shard that it keeps"
        )
    settings = run.course.settings
    if str(settings.get("scheme")) in SCHEDULED:
        buffer_bytes = settings.get("buffer_bytes")
        if isinstance(buffer_bytes, int):
            size = format_bytes(buffer_bytes)
            notes.append(f"besides, {size} of sub-buffers between wire and memory")
    return MemoryTable(rows=rows, limit_bytes=None, notes=tuple(notes))


def _memory_rows(run: RunReducer) -> tuple[MemoryRow, ...]:
    """Return memory by position; nothing until the sizes of shards are known."""
    copies, nodes = run.copies, run.nodes
    if copies.placement is None or not all(copies.shard_bytes):
        return ()
    whole: dict[int, set[int]] = {p: set() for p in range(copies.positions)}
    rows = copy_rows(run)
    for row in rows:
        if row.state == "whole":
            whole[row.position].add(row.shard)
    newer = {row.position for row in rows if row.is_writing}
    sizes = _sizes(copies)
    buffers = int(run.course.settings.get("keep_in_memory", 1)) + 1
    return tuple(
        _memory_row(
            nodes.members[p] or "no node",
            p,
            copies.placement.kept_by(p),
            sizes,
            whole[p],
            buffers=buffers,
            is_writing=p in newer,
            is_gone=p in nodes.gone,
        )
        for p in range(copies.positions)
    )


def _sizes(copies: Copies) -> list[int]:
    if copies.is_simulated:
        return copies.shard_bytes * copies.positions
    per_node = copies.per_node
    return [
        sum(copies.shard_bytes[p * per_node : (p + 1) * per_node]) for p in range(copies.positions)
    ]


def _memory_row(
    node: str,
    position: int,
    kept: Sequence[int],
    sizes: Sequence[int],
    whole: set[int],
    *,
    buffers: int,
    is_writing: bool,
    is_gone: bool,
) -> MemoryRow:
    total = 0 if is_gone else sum(sizes[shard] for shard in kept)
    own = sizes[position] if position in whole else 0
    peers = sum(sizes[shard] for shard in whole if shard != position)
    writing = total if is_writing else 0
    return MemoryRow(
        node=node,
        own_bytes=own,
        peers_bytes=peers,
        writing_bytes=writing,
        free_bytes=buffers * total - own - peers - writing,
    )
