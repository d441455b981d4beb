"""Which copy of which shard is whole on which node: what decides how many failures memory survives.

A holder's newest complete version stands for all shards that it keeps. Complete versions of two
nodes differ by at most one, and the older buffer is still there: a holder that has completed v also
answers for the version before it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gemini_lab.errors import ConfigError
from gemini_lab.placement import (
    Placement,
    enumerated_probability,
    recovery_probability,
    sampled_probability,
)
from gemini_lab_widgets.tables import CopyRow, CopyState, MemoryRow, Survival, WhatIf

NONE: Final = -1
"""No version is there."""
CANDIDATES: Final = 4
"""Newest versions that are looked at; more than two differ only while nodes are lost."""
REMEMBERED: Final = 16
"""Versions of which it is known when they became whole."""
ENUMERATED: Final = 20_000
"""Sets of lost nodes that are tried one by one where there is no closed form."""


class Copies:
    """The copies of a run's shards, kept up to date event by event.

    Attributes:
        placement: Who should keep what; `None` until it is known.
        members: The node on each position.
        gone: Positions whose node was lost and not yet replaced.
        persistent: Newest version in the persistent tier, or `NONE`.
    """

    def __init__(self, *, positions: int = 0, per_node: int = 1, simulated: bool = False) -> None:
        self.positions, self.per_node, self.simulated = positions, per_node, simulated
        self.placement: Placement | None = None
        self.members: list[str | None] = [f"node-{p}" for p in range(positions)]
        self.gone: set[int] = set()
        self.persistent = NONE
        ranks = 1 if simulated else positions * per_node  # a simulation's rank 0 speaks for all
        self.complete = [NONE] * ranks
        self.reached = [0] * ranks
        self.next_version = [0] * ranks
        self.shard_bytes = [0] * ranks
        self._missing: set[tuple[int, int]] = set()  # (shard, position) without a copy so far
        self._tier = ""  # from where the newest plan loads
        self._rejected: set[int] = set()
        self._whole_at_s: dict[int, float] = {}

    # -- what happens --------------------------------------------------------------------------

    def knows(self, rank: int) -> bool:
        """Whether there is such a rank."""
        return 0 <= rank < self.positions * self.per_node

    def place(self, placement: Placement) -> None:
        """From now on `placement` says who keeps what."""
        if placement.nodes != self.positions:
            raise ConfigError(
                f"the log places {placement.nodes} nodes, but its run has {self.positions}"
            )
        self.placement = placement

    def completed(self, rank: int, version: int, next_version: int, at_s: float) -> None:
        """A rank's shard and the replicas that it receives are whole."""
        if version >= self.complete[rank]:
            self.complete[rank] = version
            self.next_version[rank] = next_version
        if self._missing:
            position = rank // self.per_node
            self._missing = {(s, p) for s, p in self._missing if p != position}
        self._whole_at_s[version] = at_s
        if len(self._whole_at_s) > REMEMBERED:
            del self._whole_at_s[min(self._whole_at_s)]

    def planned(self, plan: Mapping[str, Any]) -> None:
        """A recovery decided who sits where and what is loaded from where."""
        members = [None if name is None else str(name) for name in plan["members"]]
        if len(members) != self.positions:
            raise ValueError("the plan is for another number of nodes")
        self.members = members
        self.gone = {p for p, name in enumerate(members) if name is None}
        version = NONE if plan["version"] is None else int(plan["version"])
        self.reached = [max(0, version)] * len(self.reached)
        self.next_version = [version + 1] * len(self.next_version)
        self.complete = [NONE if plan["tier"] == "start" else version] * len(self.complete)
        self._missing, self._tier = set(), str(plan["tier"])
        if self._tier == "persistent":
            self._missing = set(self._all_copies())
        elif self._tier == "memory":
            position = {name: p for p, name in enumerate(members)}
            self._missing = {
                (int(move["shard"]) // self.per_node, position[move["receiver"]])
                for move in plan.get("transfers", ())
                if move["receiver"] in position
            }

    def retrieved(self) -> None:
        """The recovery's bytes have moved: from memory, peers have one another's replicas again."""
        if self._tier == "memory":
            self._missing = set()

    def restored(self, rank: int) -> None:
        """A rank has loaded its own shard."""
        position = rank // self.per_node
        self._missing.discard((position, position))

    def lost(self, name: str) -> None:
        """A node is gone with its memory."""
        self.gone |= {p for p, member in enumerate(self.members) if member == name}

    def rejected(self, version: int) -> None:
        """A version will not be tried again."""
        self._rejected.add(version)

    def _all_copies(self) -> Iterable[tuple[int, int]]:
        if self.placement is None:
            return ()
        return (
            (s, holder) for s, holders in enumerate(self.placement.holders) for holder in holders
        )

    # -- what that means -----------------------------------------------------------------------

    def by_position(self) -> npt.NDArray[np.int64]:
        """Newest whole version on each position, shape `(positions,)`; `NONE` where none is."""
        if self.simulated:
            versions = np.full(self.positions, self.complete[0], dtype=np.int64)
        else:
            ranks = np.array(self.complete, dtype=np.int64)
            versions = ranks.reshape(self.positions, self.per_node).min(axis=1)
        versions[sorted(self.gone)] = NONE
        return versions

    def _holders(self) -> npt.NDArray[np.int64]:
        """Holders of each shard, shape `(shards, most copies)`; `NONE` fills up."""
        assert self.placement is not None
        most = max(map(len, self.placement.holders))
        rows = [[*kept, *[NONE] * (most - len(kept))] for kept in self.placement.holders]
        return np.array(rows, dtype=np.int64)

    def _whole(self) -> dict[int, npt.NDArray[np.bool_]]:
        """For each of the newest versions which copies are whole, shape as `_holders`."""
        if self.placement is None or not self.positions:
            return {}
        holders, versions = self._holders(), self.by_position()
        there = holders != NONE
        for shard, position in self._missing:
            there[shard] &= holders[shard] != position
        newest = [v for v in np.unique(versions)[::-1].tolist() if v != NONE]
        candidates = [v for v in newest if v not in self._rejected][:CANDIDATES]
        return {v: there & (versions[holders] >= v) for v in candidates}

    def newest(self) -> int | None:
        """The newest version of which memory has every shard whole."""
        whole = (v for v, copies in self._whole().items() if copies.any(axis=1).all())
        return max(whole, default=None)

    def whole_at_s(self, version: int | None) -> float | None:
        """When the last rank to complete `version` did so, if that is known."""
        return None if version is None else self._whole_at_s.get(version)

    def survivable(self) -> tuple[int, int | None] | None:
        """How many nodes, whichever they are, may be lost now, and the version that is then left.

        -1 and `None` where memory has no whole version; `None` without a placement.
        """
        if self.placement is None:
            return None
        copies = [(int(c.sum(axis=1).min()) - 1, v) for v, c in self._whole().items()]
        most, version = max(copies, default=(-1, NONE))
        return (most, version) if most >= 0 else (-1, None)

    def rows(self, *, writing: bool) -> tuple[CopyRow, ...]:
        """Every copy that there should be, in order of shard, owner first.

        Args:
            writing: Whether training runs, so that newer versions may be on their way.
        """
        if self.placement is None:
            return ()
        versions = self.by_position().tolist()
        newer = self._newer() if writing else [False] * self.positions
        return tuple(
            CopyRow(
                shard=shard,
                position=holder,
                holder=self.members[holder] or "no node",
                version=version
                if (state := self._state(shard, holder, version)) == "whole"
                else None,
                state=state,
                is_writing=newer[holder] and state != "lost",
            )
            for shard, holder in self._all_copies()
            for version in (versions[holder],)
        )

    def _state(self, shard: int, position: int, version: int) -> CopyState:
        if position in self.gone:
            return "lost"
        return "missing" if version == NONE or (shard, position) in self._missing else "whole"

    def _newer(self) -> list[bool]:
        """Whether a newer version is on its way into each position's second buffers."""
        ranks = [
            reached > complete and reached >= following
            for reached, complete, following in zip(
                self.reached, self.complete, self.next_version, strict=True
            )
        ]
        if self.simulated:
            return ranks * self.positions
        per_node = self.per_node
        return [any(ranks[p * per_node : (p + 1) * per_node]) for p in range(self.positions)]

    def what_if(self) -> tuple[WhatIf, ...]:
        """For each position what would follow if its node died now."""
        if self.placement is None:
            return ()
        whole, holders = self._whole(), self._holders()
        sole = {v: _sole_holders(copies, holders) for v, copies in whole.items()}
        now = max((v for v in sole if (sole[v] != NONE - 1).all()), default=None)
        return tuple(
            self._if_lost(position, whole, sole, now, holders) for position in range(self.positions)
        )

    def _if_lost(
        self,
        position: int,
        whole: Mapping[int, npt.NDArray[np.bool_]],
        sole: Mapping[int, npt.NDArray[np.int64]],
        now: int | None,
        holders: npt.NDArray[np.int64],
    ) -> WhatIf:
        assert self.placement is not None
        left = [v for v, alone in sole.items() if ((alone != position) & (alone > NONE - 1)).all()]
        version = max(left, default=NONE)
        is_memory = version != NONE and version >= self.persistent
        holder = None
        if is_memory:
            others = whole[version][position] & (holders[position] != position)
            holder = int(holders[position][others.argmax()])
        stored = version if is_memory else self.persistent
        return WhatIf(
            position=position,
            lost_copies=self.placement.kept_by(position),
            lost_shards=()
            if now is None
            else tuple(np.flatnonzero(sole[now] == position).tolist()),
            tier="memory" if is_memory else "persistent" if stored != NONE else "start",
            version=None if stored == NONE else stored,
            holder=holder,
        )

    def memory(self, *, writing: bool) -> tuple[MemoryRow, ...]:
        """Memory by position; empty until the sizes of shards are known."""
        if self.placement is None or not all(self.shard_bytes):
            return ()
        sizes = self._sizes()
        whole: dict[int, set[int]] = {p: set() for p in range(self.positions)}
        rows = self.rows(writing=writing)
        for row in rows:
            if row.state == "whole":
                whole[row.position].add(row.shard)
        newer = {row.position for row in rows if row.is_writing}
        return tuple(
            _memory_row(
                self.members[p] or "no node", p, self.placement.kept_by(p), sizes, whole[p],
                is_writing=p in newer, is_gone=p in self.gone,
            )
            for p in range(self.positions)
        )  # fmt: skip

    def _sizes(self) -> list[int]:
        """Bytes of each position's shard."""
        if self.simulated:
            return self.shard_bytes * self.positions
        per_node = self.per_node
        return [sum(self.shard_bytes[p * per_node : (p + 1) * per_node])
                for p in range(self.positions)]  # fmt: skip


def _sole_holders(
    copies: npt.NDArray[np.bool_], holders: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The only position with a whole copy of each shard; -1 with more of them, -2 with none."""
    count = copies.sum(axis=1)
    only = holders[np.arange(len(holders)), copies.argmax(axis=1)]
    return np.where(count == 1, only, np.where(count == 0, NONE - 1, NONE))


def _memory_row(
    node: str,
    position: int,
    kept: Sequence[int],
    sizes: Sequence[int],
    whole: set[int],
    *,
    is_writing: bool,
    is_gone: bool,
) -> MemoryRow:
    total = 0 if is_gone else sum(sizes[shard] for shard in kept)
    own = sizes[position] if position in whole else 0
    peers = sum(sizes[shard] for shard in whole if shard != position)
    writing = total if is_writing else 0
    return MemoryRow(
        node=node, own_bytes=own, peers_bytes=peers, writing_bytes=writing,
        free_bytes=2 * total - own - peers - writing,
    )  # fmt: skip


@lru_cache(maxsize=8)
def survival(placement: Placement) -> tuple[Survival, ...]:
    """The chance that memory keeps every shard, for one loss up to a few more than m."""
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
