"""The decision what is loaded from where after a failure (paper, section 6.2), without I/O."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

from gemini_lab.errors import shortened
from gemini_lab.limits import Count
from gemini_lab.recovery.seating import fill_positions, positions_kept
from gemini_lab.shard.lineage import NO_LINEAGE, Lineage

MOST_KEPT: Final = 64
"""Rewinds that are kept: older ones left versions that no memory and no tier has any more."""
Tier = Literal["memory", "persistent", "start"]


class PlacementLike(Protocol):
    """A placement as recovery sees it: which positions keep each position's shards."""

    @property
    def nodes(self) -> int:
        """Number of positions."""

    @property
    def holders(self) -> Sequence[Sequence[int]]:
        """`holders[p]`: the positions that keep the shards of position `p`, owner first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One whole, verified copy of a shard in a node's memory, and the history that it is of."""

    shard: Count
    version: Count
    node: str
    lineage: Lineage = NO_LINEAGE
    # How many ranks made its version; 0 where it goes without saying.
    ranks: Count = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A version that is whole in the persistent tier."""

    version: Count
    lineage: Lineage = NO_LINEAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclear:
    """A saved version that is not whole as an agent sees it."""

    version: Count  # its number; of which history it is, its manifest does not say
    seen: str  # what was seen of it

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", shortened(self.seen))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class VersionId:
    """A version of one history; of two the later one has the greater number, or epoch."""

    version: Count
    lineage: Lineage = NO_LINEAGE
    # Where it says what a rewind left: whether a person wanted batches skipped with it.
    skips: bool = field(default=False, compare=False)


def is_left(version: int, lineage: Lineage, left: Iterable[VersionId]) -> bool:
    """Return whether one of these rewinds left a version behind."""
    return any(
        lineage.run == one.lineage.run and lineage <= one.lineage and version > one.version
        for one in left
    )


def joined(left: Sequence[VersionId], more: Iterable[VersionId]) -> tuple[VersionId, ...]:
    """Return the known rewinds with more of them, in the order in which they happened.

    One that went further back than those of its run before it says all that these did. Nodes may
    know of other runs, too.
    """
    kept: list[VersionId] = []
    for one in sorted({*left, *more}, key=lambda each: each.lineage):
        run = one.lineage.run
        kept = [each for each in kept if each.lineage.run != run or each.version < one.version]
        kept.append(one)
    return tuple(kept[-MOST_KEPT:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The origin of one shard: `tier` is local, peer, persistent or start."""

    shard: Count
    tier: Literal["local", "peer", "persistent", "start"]
    holder: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTransfer:
    """One copy of a shard's chosen version that goes from node to node before training resumes."""

    shard: Count
    sender: str
    receiver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A shard of another number of ranks, of which new ones are made: who can read it out."""

    shard: Count  # which
    holders: tuple[str, ...]  # members with a whole copy of it

    def reader(self, node: str, *, number: int) -> str:
        """Return the node that reads it for a node: that node itself, or they take turns."""
        return node if node in self.holders else self.holders[number % len(self.holders)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPart:
    """One node's part of a plan; all parts together are the plan."""

    # The version that every rank loads; `None` when training starts from scratch.
    version: Count | None
    tier: Tier  # from where the version as a whole comes
    lineage: Lineage = NO_LINEAGE  # the history that it is of
    # The copies that this node sends or gets, in the plan's order: whoever sends finds its
    # receiver, for both meet theirs in one order.
    transfers: tuple[CopyTransfer, ...] = ()
    # All shards of the version, in order, where another number of ranks made it and it is in
    # memory; else empty.
    cuts: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """The plan by which all nodes bring training back."""

    # The version that every rank loads; `None` when training starts from scratch.
    version: int | None
    tier: Tier  # from where the version as a whole comes
    members: tuple[str | None, ...]  # the node on each position; `None` where no machine is left
    sources: tuple[Source, ...]  # one for each shard, in shard order
    # What brings the version to every holder that lacks it; afterwards each shard has all its
    # replicas again. Empty unless `tier` is `"memory"`.
    transfers: tuple[CopyTransfer, ...]
    reason: str  # why this version and tier, for people
    lineage: Lineage = NO_LINEAGE  # the history that it is of
    cuts: tuple[Cut, ...] = ()  # as `PlanPart.cuts`

    @property
    def missing(self) -> tuple[int, ...]:
        """Positions that have no machine."""
        return tuple(p for p, node in enumerate(self.members) if node is None)

    def parts(self) -> dict[str, PlanPart]:
        """Return each member's part, in time that grows with members and transfers."""
        moves: dict[str, list[CopyTransfer]] = defaultdict(list)
        for transfer in self.transfers:
            moves[transfer.sender].append(transfer)
            moves[transfer.receiver].append(transfer)
        return {
            node: PlanPart(
                version=self.version,
                tier=self.tier,
                lineage=self.lineage,
                transfers=tuple(moves.get(node, ())),
                cuts=self.cuts,
            )
            for node in self.members
            if node is not None
        }

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "RecoveryPlan":
        """Return the plan that `to_json` gave."""
        return cls(
            version=record["version"],
            tier=record["tier"],
            members=tuple(record["members"]),
            sources=tuple(Source(**source) for source in record["sources"]),
            transfers=tuple(CopyTransfer(**transfer) for transfer in record["transfers"]),
            reason=record["reason"],
            lineage=Lineage(**record.get("lineage", {})),
            cuts=tuple(
                Cut(shard=cut["shard"], holders=tuple(cut["holders"]))
                for cut in record.get("cuts", ())
            ),
        )


def plan_recovery(
    *,
    placement: PlacementLike,
    members: Sequence[str | None],
    copies: Iterable[Copy],
    living: Collection[str],
    standbys: Sequence[str] = (),
    persistent: Iterable[Stored] = (),
    rejected: Collection[VersionId] = (),
    workers_per_node: int = 1,
    rack_of: Mapping[str, str] = MappingProxyType({}),
    late: Collection[str] = (),
) -> RecoveryPlan:
    """Return the newest version of which every shard is whole somewhere, and how to load it.

    Living nodes keep their positions; of the standbys, the one takes a lost node's position whose
    memory has most of what is kept there (the best match first), then one that leaves no shard
    with all its copies in one rack, then as `seating.fill_positions` says. The test is made shard
    by shard: in the ring part of a mixed placement two lost neighbours lose a shard although their
    group still has living machines (the paper's per-group test misses that). Copies count where a
    worker can send them, so on members that keep the shard, and only copies of one lineage make a
    version. If standbys hold what makes a newer version whole, they take the positions of living
    members: nodes that fell silent and were replaced may come back with it. When no version is
    whole in memory, all nodes load the newest persistent one, also those whose memory is intact:
    versions of two iterations must not be mixed (paper, section 6.2, case 2).

    Args:
        placement: Who keeps whose shard, by position.
        members: The node on each position before the failure.
        copies: Whole, verified copies in memory; those on nodes not in `living` are ignored.
        living: Nodes whose agents live, standbys included.
        standbys: Living nodes without a position, in the order in which they are to be used.
        persistent: Versions that are whole in the persistent tier.
        rejected: Versions in the persistent tier that must not be tried again.
        workers_per_node: Ranks on each position; shard `r` belongs to position
            `r // workers_per_node`.
        rack_of: The rack of each node whose rack is known.
        late: Standbys on which a start has to wait.
    """
    living = frozenset(living)
    alive = [c for c in copies if c.node in living]
    spares = [node for node in standbys if node in living and node not in members]
    kept = positions_kept(placement.holders)
    new_members = fill_positions(
        members=[node if node in living else None for node in members],
        spares=spares,
        copies=alive,
        holders=placement.holders,
        workers_per_node=workers_per_node,
        rack_of=rack_of,
        late=late,
    )
    shards = range(placement.nodes * workers_per_node)
    in_store = [VersionId(version=one.version, lineage=one.lineage) for one in persistent]
    stored = [one for one in in_store if one not in rejected]
    newest_stored = max((one.version for one in stored), default=-1)
    seats = _Seats(placement.holders, kept, workers_per_node)
    holders = seats.holders(alive, new_members)
    whole = _whole(holders, shards)
    anywhere = _holders(alive)
    for newer in sorted(_whole(anywhere, shards), reverse=True):
        if newer.version <= newest_stored or (whole and newer <= max(whole)):
            break
        if better := seats.with_holders(new_members, anywhere[newer], shards):
            new_members, holders, whole = better, seats.holders(alive, better), [newer]
            break
    if whole and max(whole).version >= newest_stored:
        chosen = max(whole)
        sources, transfers = _from_memory(placement, new_members, holders[chosen], workers_per_node)
        return RecoveryPlan(
            version=chosen.version,
            lineage=chosen.lineage,
            tier="memory",
            members=new_members,
            sources=sources,
            transfers=transfers,
            reason=f"version {chosen.version} is whole in memory",
        )
    reason = _why_not_memory({v.version: held for v, held in sorted(holders.items())}, shards)
    return _from_elsewhere(stored, new_members, shards, reason)


def _from_elsewhere(
    stored: Collection[VersionId],
    members: tuple[str | None, ...],
    shards: Collection[int],
    reason: str,
) -> RecoveryPlan:
    """Return the plan that loads the tier's newest version; without one, training starts."""
    newest = max(stored, default=None)
    if newest is None:
        tier: Literal["persistent", "start"] = "start"
        found_there = "has none: training starts from scratch"
    else:
        tier, found_there = "persistent", f"has version {newest.version}"
    return RecoveryPlan(
        version=None if newest is None else newest.version,
        lineage=NO_LINEAGE if newest is None else newest.lineage,
        tier=tier,
        members=members,
        sources=tuple(Source(shard=shard, tier=tier, holder=None) for shard in shards),
        transfers=(),
        reason=f"{reason}; the persistent tier {found_there}",
    )


@dataclass(frozen=True, slots=True)
class _Seats:
    """Positions, and whose copies can be sent from them."""

    keepers: Sequence[Sequence[int]]
    kept: Sequence[Collection[int]]
    workers_per_node: int

    def holders(
        self, copies: Iterable[Copy], members: Sequence[str | None]
    ) -> dict[VersionId, dict[int, list[str]]]:
        """Return, for each version, the members that can send each shard."""
        at = {node: position for position, node in enumerate(members) if node is not None}
        return _holders(c for c in copies if c.node in at and self.keeps(at[c.node], c.shard))

    def keeps(self, position: int, shard: int) -> bool:
        """Return whether a position keeps a shard."""
        return shard // self.workers_per_node in self.kept[position]

    def with_holders(
        self,
        members: Sequence[str | None],  # the node on each position
        # All living nodes that hold each shard of the version.
        nodes_of: Mapping[int, Sequence[str]],
        shards: Collection[int],  # of the version
    ) -> tuple[str | None, ...] | None:
        """Return the members with standbys seated so that a version is whole, if that can be."""
        seated = list(members)
        held: dict[str, list[int]] = defaultdict(list)
        for shard, nodes in nodes_of.items():
            for node in nodes:
                held[node].append(shard)

        def covered(places: Sequence[str | None]) -> set[int]:
            return {
                shard
                for position, node in enumerate(places)
                if node is not None
                for shard in held.get(node, ())
                if self.keeps(position, shard)
            }

        for _ in seated:  # each turn seats one node for good, or is the last
            there = covered(seated)
            lacking = next((shard for shard in shards if shard not in there), None)
            if lacking is None:
                return tuple(seated)
            tries = [
                _with_node(seated, node, position)
                for node in nodes_of[lacking]
                for position in self.keepers[lacking // self.workers_per_node]
            ]
            seated = max(tries, key=lambda places: len(covered(places)), default=seated)
            if len(covered(seated)) <= len(there):
                return None
        return tuple(seated) if covered(seated).issuperset(shards) else None


def _with_node(members: Sequence[str | None], node: str, position: int) -> list[str | None]:
    """Return the members with a node on a position; a seated one changes places."""
    seated = list(members)
    if node in seated:
        seated[seated.index(node)] = seated[position]
    seated[position] = node
    return seated


def _whole(
    holders: Mapping[VersionId, Mapping[int, Sequence[str]]], shards: Collection[int]
) -> list[VersionId]:
    """Return the versions of which every shard has a holder."""
    return [one for one, nodes_of in holders.items() if all(nodes_of.get(s) for s in shards)]


def _holders(copies: Iterable[Copy]) -> dict[VersionId, dict[int, list[str]]]:
    """Return, for each version, the nodes that have each shard."""
    found: dict[tuple[int, ...], tuple[VersionId, dict[int, list[str]]]] = {}
    for copy in copies:
        key = (
            copy.version,
            copy.lineage.run,
            copy.lineage.epoch,
            copy.lineage.rewinds,
        )  # plain numbers are quick to find
        if key not in found:
            version = VersionId(version=copy.version, lineage=copy.lineage)
            found[key] = version, defaultdict(list)
        found[key][1][copy.shard].append(copy.node)
    return dict(found.values())


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
        owner, holder = wanted[0], None  # who sends the owner its shard
        for receiver in wanted:
            if receiver is not None and receiver not in nodes:
                sender = min(nodes, key=lambda node: (sends[node], node))
                sends[sender] += 1
                transfers.append(CopyTransfer(shard=shard, sender=sender, receiver=receiver))
                holder = sender if receiver == owner else holder
        if owner in nodes:
            sources.append(Source(shard=shard, tier="local", holder=owner))
        else:  # where the owner's place is empty, nobody gets it yet
            sources.append(Source(shard=shard, tier="peer", holder=holder or nodes[0]))
    return tuple(sources), tuple(transfers)


def _why_not_memory(
    holders: Mapping[int, Mapping[int, Sequence[str]]], shards: Collection[int]
) -> str:
    if not holders:
        return "no version is in memory"
    newest = max(holders)
    lacking = [s for s in shards if not holders[newest].get(s)]
    some = ", ".join(str(s) for s in lacking[:8]) + (" and more" if len(lacking) > 8 else "")
    what = "shard" if len(lacking) == 1 else "shards"
    return f"no version is whole in memory (the newest, {newest}, lacks {what} {some})"
