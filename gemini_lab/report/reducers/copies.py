"""Which copy of which shard is whole on which node: what decides how many failures memory survives.

A holder's newest complete version stands for all shards that it keeps. Complete versions of two
nodes differ by at most one, and the older buffer is still there: a holder that has completed v also
answers for the version before it. The answers are those that `plan_recovery` would give, which the
tests hold them against; asked of it, position by position, they would take seconds at a thousand
nodes.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from gemini_lab.errors import ConfigError
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    LONGEST_PLACE,
    PersistFinished,
    Protected,
    RecoveryPlanned,
    RecoveryStep,
    Rewound,
    RunStarted,
    ShardRestored,
    VersionComplete,
    VersionRejected,
)
from gemini_lab.placement import Placement, plan_placement
from gemini_lab.report.reducers import MOST_KEPT, seconds, whole
from gemini_lab.report.reducers.nodes import Nodes
from gemini_lab.settings import Settings

NONE: Final = -1
"""No version is there."""
CANDIDATES: Final = 4
"""Newest versions that are looked at; more than two differ only while nodes are lost."""
REMEMBERED: Final = 16
"""Versions of which it is known when they became whole."""

Versions = npt.NDArray[np.int64]
Whole = npt.NDArray[np.bool_]


class Copies:
    """The copies of a run's shards; memory: some numbers for each rank."""

    def __init__(self, nodes: Nodes) -> None:
        self.placement: Placement | None = None  # who should keep what; `None` until it is known
        self.persistent = NONE  # newest version in the persistent tier, or `NONE`
        # Newest version that each rank has told to be whole, or `NONE`.
        self.complete: list[int] = []
        self.next_version: list[int] = []  # the one that each rank sends next
        self.places: list[str] = []  # what each rank is among ranks that differ; else empty
        self.shard_bytes: list[int] = []  # size of each rank's shard; 0 until it is known
        # Shard and position of the copies that are not there so far.
        self.missing: set[tuple[int, int]] = set()
        self._nodes = nodes
        self._job: RunStarted | None = None
        self._positions = 0
        self._epoch = 0
        self._tier = ""  # from where the newest plan loads
        self._is_cut = False  # whether it does so from the shards of another number of ranks
        self._rejected: set[int] = set()
        self._whole_at_s: dict[int, float] = {}

    @property
    def positions(self) -> int:
        return self._positions

    @property
    def per_node(self) -> int:
        return 1 if self._job is None else self._job.workers_per_node

    @property
    def is_simulated(self) -> bool:
        return self._job is not None and self._job.simulated is not None

    # -- what happens ----------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case RunStarted() if self._job is None:
                self._start(event)
            case Protected() if event.epoch >= self._epoch:
                self.shard_bytes[self._rank(event.rank)] = whole(event.shard_bytes)
                self.places[event.rank] = event.place[:LONGEST_PLACE]
                if event.rank == 0 and event.placement is not None:
                    self._place(event.placement)
            case VersionComplete() if event.epoch >= self._epoch:
                self._completed(event, entry.at_s)
            case Rewound() if event.epoch >= self._epoch:
                self._go_back(self._rank(event.rank), whole(event.version))
            case RecoveryPlanned() if event.epoch >= self._epoch:
                self._planned(event)
            case RecoveryStep(step="retrieve") if event.epoch >= self._epoch:
                if self._tier == "memory" and not self._is_cut:
                    self.missing.clear()  # peers have one another's replicas again
            case ShardRestored() if event.epoch >= self._epoch:
                position = event.rank // self.per_node
                self.missing.discard((position, position))
            case VersionRejected() if len(self._rejected) < MOST_KEPT:
                self._rejected.add(whole(event.version))
            case PersistFinished():
                self.persistent = max(self.persistent, whole(event.version))

    def _start(self, job: RunStarted) -> None:
        if not self._nodes.members:
            raise ValueError("this job's nodes make no sense")
        self._job = job
        self._resize(job.nodes)
        self._place(job.placement or _planned_placement(job))

    def _resize(self, nodes: int) -> None:
        self._positions = nodes
        ranks = 1 if self.is_simulated else nodes * self.per_node
        self.complete = [NONE] * ranks
        self.next_version = [0] * ranks
        self.shard_bytes = [0] * ranks
        self.places = [""] * ranks

    def _place(self, placement: Placement) -> None:
        if placement.nodes != self.positions:
            raise ConfigError(
                f"the log places {placement.nodes} nodes, but its run has {self.positions}"
            )
        self.placement = placement

    def _rank(self, rank: int) -> int:
        if not 0 <= rank < len(self.complete):
            raise ValueError(f"the run has no rank {rank}")
        return rank

    def _completed(self, event: VersionComplete, at_s: float) -> None:
        rank, version = self._rank(event.rank), whole(event.version)
        if version >= self.complete[rank]:
            self.complete[rank], self.next_version[rank] = version, whole(event.next_version)
        if self.missing:
            position = rank // self.per_node
            self.missing = {(s, p) for s, p in self.missing if p != position}
        self._whole_at_s[version] = seconds(at_s)
        if len(self._whole_at_s) > REMEMBERED:
            del self._whole_at_s[min(self._whole_at_s)]
        peers = 0 if self.placement is None else self.placement.replicas - 1
        if self.is_simulated and peers:
            self.shard_bytes[rank] = whole(event.sent_bytes) // peers

    def _go_back(self, rank: int, version: int) -> None:
        """Discard what a rank had after a version; in the tier it counts no more."""
        self.complete[rank], self.next_version[rank] = version, version + 1
        self._whole_at_s = {v: at_s for v, at_s in self._whole_at_s.items() if v <= version}
        self.persistent = self.persistent if self.persistent <= version else NONE

    def _planned(self, plan: RecoveryPlanned) -> None:
        self._epoch, self._tier = plan.epoch, plan.tier
        nodes = len(plan.members)
        if self._job is not None and nodes != self.positions:
            self._resize(nodes)
            replicas = 1 if self.placement is None else self.placement.replicas
            self._place(plan_placement(nodes=nodes, replicas=min(replicas, nodes)))
        version = NONE if plan.version is None else whole(plan.version)
        self._is_cut = plan.ranks_then is not None
        self.next_version = [version + 1] * len(self.next_version)
        self.complete = [NONE if plan.tier == "start" else version] * len(self.complete)
        self.missing = set()
        if plan.tier == "persistent" or plan.ranks_then is not None:
            self.missing = set(self.all_copies())
        elif plan.tier == "memory":
            position = {name: p for p, name in enumerate(plan.members)}
            self.missing = {
                (move.shard // self.per_node, position[move.receiver])
                for move in plan.transfers
                if move.receiver in position
            }

    # -- answers ---------------------------------------------------------------------------------

    def all_copies(self) -> Iterator[tuple[int, int]]:
        """Return shard and position of every planned copy, by shard, the owner first."""
        holders = () if self.placement is None else self.placement.holders
        return ((s, holder) for s, kept in enumerate(holders) for holder in kept)

    def by_position(self) -> Versions:
        """Return the newest whole version on each position, shape `(positions,)`, or `NONE`."""
        if self.is_simulated:
            versions = np.full(self.positions, self.complete[0], dtype=np.int64)
        else:
            ranks = np.array(self.complete, dtype=np.int64)
            versions = ranks.reshape(self.positions, self.per_node).min(axis=1)
        versions[sorted(self._nodes.gone)] = NONE
        return versions

    def holders(self) -> Versions:
        """Return the positions that keep each shard, `(shards, most copies)`; `NONE` pads."""
        assert self.placement is not None
        most = max(map(len, self.placement.holders))
        rows = [[*kept, *[NONE] * (most - len(kept))] for kept in self.placement.holders]
        return np.array(rows, dtype=np.int64)

    def whole(self) -> dict[int, Whole]:
        """Return which copies of each of the newest versions are whole, shape as `holders`."""
        if self.placement is None or not self.positions:
            return {}
        holders, versions = self.holders(), self.by_position()
        there = holders != NONE
        for shard, position in self.missing:
            there[shard] &= holders[shard] != position
        newest = [v for v in np.unique(versions)[::-1].tolist() if v != NONE]
        candidates = [v for v in newest if v not in self._rejected][:CANDIDATES]
        return {v: there & (versions[holders] >= v) for v in candidates}

    def newest(self) -> int | None:
        """Return the newest version of which memory has every shard whole."""
        whole_ones = (v for v, copies in self.whole().items() if copies.any(axis=1).all())
        return max(whole_ones, default=None)

    def whole_at_s(self, version: int | None) -> float | None:
        """Return when the last rank completed `version`, if that is known."""
        return None if version is None else self._whole_at_s.get(version)

    def survivable(self) -> tuple[int, int | None] | None:
        """Return how many nodes, whichever, may be lost now, and the version that is left then.

        -1 and `None` where memory has no whole version; `None` without a placement.
        """
        if self.placement is None:
            return None
        copies = [(int(c.sum(axis=1).min()) - 1, v) for v, c in self.whole().items()]
        most, version = max(copies, default=(-1, NONE))
        return (most, version) if most >= 0 else (-1, None)


def _planned_placement(job: RunStarted) -> Placement:
    """Return the placement that the planner derives from the launcher's values."""
    settings = Settings()
    replicas = job.settings.get("replicas", settings.replicas)
    return plan_placement(
        nodes=job.nodes,
        replicas=min(int(replicas or settings.replicas), job.nodes),
        strategy=str(job.settings.get("strategy", settings.strategy)),
        racks=None if job.racks is None else list(job.racks)[: job.nodes],
    )
