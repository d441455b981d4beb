"""What is loaded from where after a failure (paper, section 6.2): the decision, without any I/O."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from gemini_lab.shown import Shown

Tier = Literal["memory", "persistent", "start"]


class PlacementLike(Protocol):
    """What recovery needs to know of a placement: who keeps whose shard, by position."""

    @property
    def nodes(self) -> int:
        """Number of positions."""

    @property
    def holders(self) -> Sequence[Sequence[int]]:
        """`holders[p]`: the positions that keep the shards of position `p`, owner first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One whole, verified copy of a shard in a node's memory."""

    shard: int
    version: int
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where one shard comes from: `tier` is local, peer, persistent or start."""

    shard: int
    tier: Literal["local", "peer", "persistent", "start"]
    holder: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTransfer:
    """One copy of a shard's chosen version that goes from node to node before training resumes."""

    shard: int
    sender: str
    receiver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan(Shown):
    """What every node does to bring training back.

    Attributes:
        version: The version that every rank loads; `None` when training starts anew.
        tier: From where the version as a whole comes.
        members: The node on each position; `None` where no machine is left.
        sources: One for each shard, in shard order.
        transfers: What brings the version to every holder that lacks it; afterwards each shard
            has all its replicas again. Empty unless `tier` is `"memory"`.
        reason: Why this version and tier, for people.
    """

    version: int | None
    tier: Tier
    members: tuple[str | None, ...]
    sources: tuple[Source, ...]
    transfers: tuple[CopyTransfer, ...]
    reason: str

    @property
    def missing(self) -> tuple[int, ...]:
        """Positions that have no machine."""
        return tuple(p for p, node in enumerate(self.members) if node is None)

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "RecoveryPlan":
        """The plan that `to_json` gave."""
        return cls(
            version=record["version"],
            tier=record["tier"],
            members=tuple(record["members"]),
            sources=tuple(Source(**source) for source in record["sources"]),
            transfers=tuple(CopyTransfer(**transfer) for transfer in record["transfers"]),
            reason=record["reason"],
        )


def plan_recovery(
    *,
    placement: PlacementLike,
    members: Sequence[str | None],
    copies: Iterable[Copy],
    living: Collection[str],
    standbys: Sequence[str] = (),
    persistent: Collection[int] = (),
    rejected: Collection[int] = (),
    workers_per_node: int = 1,
) -> RecoveryPlan:
    """The newest version of which every shard is whole somewhere, and how to load it.

    Living nodes keep their positions; standbys take the positions of lost ones in order. The test
    is made shard by shard: in the ring part of a mixed placement two lost neighbours lose a shard
    although their group still has living machines (the paper's per-group test misses that). When
    no version is whole in memory, all nodes load the newest persistent one, also those whose
    memory is intact: versions of two iterations must not be mixed (paper, section 6.2, case 2).

    Args:
        placement: Who keeps whose shard, by position.
        members: The node on each position before the failure.
        copies: Whole, verified copies in memory; those on nodes not in `living` are ignored.
        living: Nodes whose agents live, standbys included.
        standbys: Living nodes without a position, in the order in which they are to be used.
        persistent: Versions that are whole in the persistent tier.
        rejected: Versions that must not be tried again.
        workers_per_node: Ranks on each position; shard `r` belongs to position
            `r // workers_per_node`.
    """
    new_members = _fill_positions(members, living, standbys)
    holders: dict[int, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for copy in copies:
        if copy.node in living and copy.version not in rejected:
            holders[copy.version][copy.shard].append(copy.node)
    shards = range(placement.nodes * workers_per_node)
    whole = [v for v, by_shard in holders.items() if all(by_shard.get(s) for s in shards)]
    stored = [v for v in persistent if v not in rejected]
    if whole and max(whole) >= max(stored, default=-1):
        version = max(whole)
        sources, transfers = _from_memory(
            placement, new_members, holders[version], workers_per_node
        )
        return RecoveryPlan(
            version=version, tier="memory", members=new_members, sources=sources,
            transfers=transfers, reason=f"version {version} is whole in memory",
        )  # fmt: skip
    reason = _why_not_memory(holders, shards)
    if stored:
        version = max(stored)
        return RecoveryPlan(
            version=version, tier="persistent", members=new_members,
            sources=tuple(Source(shard=s, tier="persistent", holder=None) for s in shards),
            transfers=(), reason=f"{reason}; the persistent tier has version {version}",
        )  # fmt: skip
    return RecoveryPlan(
        version=None, tier="start", members=new_members,
        sources=tuple(Source(shard=s, tier="start", holder=None) for s in shards),
        transfers=(), reason=f"{reason}; the persistent tier has none: training starts anew",
    )  # fmt: skip


def _fill_positions(
    members: Sequence[str | None], living: Collection[str], standbys: Sequence[str]
) -> tuple[str | None, ...]:
    spares = iter([node for node in standbys if node in living and node not in members])
    return tuple(node if node in living else next(spares, None) for node in members)


def _from_memory(
    placement: PlacementLike,
    members: Sequence[str | None],
    nodes_of: Mapping[int, Sequence[str]],
    workers_per_node: int,
) -> tuple[tuple[Source, ...], tuple[CopyTransfer, ...]]:
    sources: list[Source] = []
    transfers: list[CopyTransfer] = []
    sends: Counter[str] = Counter()
    for shard, nodes in sorted(nodes_of.items()):
        wanted = [members[p] for p in placement.holders[shard // workers_per_node]]
        for receiver in wanted:
            if receiver is not None and receiver not in nodes:
                sender = min(nodes, key=lambda node: (sends[node], node))
                sends[sender] += 1
                transfers.append(CopyTransfer(shard=shard, sender=sender, receiver=receiver))
        owner = wanted[0]
        fetched = [t.sender for t in transfers if t.shard == shard and t.receiver == owner]
        if owner in nodes:
            sources.append(Source(shard=shard, tier="local", holder=owner))
        else:
            sources.append(Source(shard=shard, tier="peer", holder=next(iter(fetched), None)))
    return tuple(sources), tuple(transfers)


def _why_not_memory(
    holders: Mapping[int, Mapping[int, Sequence[str]]], shards: Collection[int]
) -> str:
    if not holders:
        return "no version is in memory"
    newest = max(holders)
    lacking = [s for s in shards if not holders[newest].get(s)]
    some = ", ".join(str(s) for s in lacking[:8]) + (" and more" if len(lacking) > 8 else "")
    return f"no version is whole in memory (the newest, {newest}, lacks shard {some})"
