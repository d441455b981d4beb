"""Placement of replicas (paper, section 4, Algorithm 1)."""

import random
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Final

import msgspec

from gemini_lab.errors import ConfigError, kind_of, shown
from gemini_lab.placement.domains import spread_groups, spread_notes
from gemini_lab.placement.memory import fill_by_capacity, seat_guests, shards_that_fit
from gemini_lab.units import MOST_COPIES, check_number

STRATEGIES: Final = ("auto", "group", "mixed", "ring", "random", "hosted")
"""The strategies of `plan_placement`; `"auto"` is Algorithm 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Placement: the positions that keep a copy of each shard.

    Positions run from 0 to N-1 and outlive the machines that sit on them: a standby takes a lost
    node's position, so that a placement stays as it is when machines change.

    Attributes:
        nodes: Positions in the cluster, N in the paper.
        replicas: Copies of each shard, the owner's own among them: m in the paper. A shard may
            have more where the planner was asked to protect it better.
        strategy: `"group"`, `"mixed"` (groups and one ring), `"ring"`, `"random"`, `"hosted"`
            (groups that take in the nodes left over), `"uneven"` where memory per node decided, or
            `"following"` where it was changed as the risk did.
        groups: Positions that exchange replicas with one another, in sending order; where none
            are given, those that `holders` connect.
        holders: For each position's shard the positions that keep it, owner first.
        notes: What could not be had, in words: domains that share all copies of a shard.
    """

    nodes: int
    replicas: int
    strategy: str
    groups: tuple[tuple[int, ...], ...]
    holders: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            plain = tuple(tuple(map(index, kept)) for kept in self.holders)
        except TypeError:
            raise ConfigError(
                "holders= has to say for each shard the positions that keep it, as in "
                f"((0, 1), (1, 0)), and this is {self.holders!r}"
            ) from None
        object.__setattr__(self, "holders", plain)  # lists and other libraries' numbers will do
        if len(self.holders) != self.nodes:
            raise ConfigError(
                f"a placement of {self.nodes} nodes needs holders for as many shards "
                f"(got {len(self.holders)})"
            )
        positions = frozenset(range(self.nodes))
        for shard, holders in enumerate(self.holders):
            distinct = len(set(holders)) == len(holders) >= self.replicas
            if not distinct or holders[0] != shard or not set(holders) <= positions:
                raise ConfigError(
                    f"shard {shard} needs {self.replicas} distinct holders among positions 0 to "
                    f"{self.nodes - 1}, its owner first (got {holders})"
                )
        if not self.groups:
            object.__setattr__(self, "groups", _connected(self.holders))

    def __repr__(self) -> str:
        groups = f"{len(self.groups)} group{'s' if len(self.groups) != 1 else ''}"
        return f"Placement({self.nodes} nodes, {self.replicas} replicas, {self.strategy}, {groups})"

    def kept_by(self, position: int) -> tuple[int, ...]:
        """Return the shards that `position` keeps, its own first."""
        return _kept(self.holders)[position]

    @property
    def loads(self) -> tuple[int, ...]:
        """Return the number of shards on each position."""
        return tuple(len(kept) for kept in _kept(self.holders))

    def survives(self, lost: Collection[int]) -> bool:
        """Return whether every shard keeps a copy in memory if all of `lost` fail at once.

        Only shards of lost owners are looked at, since any other owner still has its own.
        """
        gone = frozenset(lost)
        return not any(gone.issuperset(self.holders[position]) for position in gone)

    def to_json(self) -> dict[str, object]:
        """Return the placement as plain JSON values."""
        return {
            "nodes": self.nodes,
            "replicas": self.replicas,
            "strategy": self.strategy,
            "groups": [list(group) for group in self.groups],
            "holders": [list(holders) for holders in self.holders],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "Placement":
        """Return the placement that `to_json` gave as `data`."""
        return msgspec.convert(data, cls)


def _connected(holders: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return sets of positions between which no replica goes."""
    set_of = {position: {position} for position in range(len(holders))}
    for kept in holders:
        joined = set[int]().union(*(set_of[position] for position in kept))
        set_of |= dict.fromkeys(joined, joined)
    return tuple(sorted({tuple(sorted(group)) for group in set_of.values()}))


@lru_cache(maxsize=8)
def _kept(holders: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return for each position the shards that it keeps, its own first."""
    kept: list[list[int]] = [[position] for position in range(len(holders))]
    for shard, keepers in enumerate(holders):
        for keeper in keepers[1:]:
            kept[keeper].append(shard)
    return tuple(map(tuple, kept))


def plan_placement(
    *,
    nodes: int,
    replicas: int = 2,
    strategy: str = "auto",
    racks: Sequence[str] | None = None,
    memory_bytes: Sequence[int] | None = None,
    shard_bytes: int | None = None,
    node_bytes: Sequence[int] = (),
    seed: int = 0,
) -> Placement:
    """Return the positions that keep each shard.

    Algorithm 1 cuts the nodes into groups of m that keep all of one another's shards; nodes left
    over join the last group, which then is a ring: each member's shard also lies on the next m-1.

    Args:
        nodes: Positions, N.
        replicas: Copies of each shard, the own one included, m.
        strategy: `"auto"` (or `"mixed"`): Algorithm 1; `"group"`: groups or nothing; `"ring"` and
            `"random"` (random order, random distances, even load) for comparison. `"hosted"`: the
            nodes left over share the copies of all their shards with some of a group, so that only
            ceil(N/m) sets of nodes are fatal, which is the best possible (5 nodes, m = 3: memory
            suffices for three lost nodes with 0.8 where Algorithm 1 gives 0.5); its price is that
            those hosts keep more shards than m.
        racks: Failure domain of each position; copies of a shard go to different ones as far as
            that is possible, and `Placement.notes` says where it is not.
        memory_bytes: Memory that each position has for checkpoints; needs `shard_bytes`.
        shard_bytes: Size of one shard. Each kept shard takes two buffers of it: the complete
            version and the one being written. Where a node has no room for m shards, the others
            form groups and take its shard in as a guest's; where they have no room either, copies
            go wherever there is room.
        node_bytes: Size of each position's own shards, if they are known. Where they are unlike,
            as those of a pipeline's stages, large ones share a group with small ones, so that
            groups have about the same to keep; racks come first.
        seed: For `"random"`.

    Raises:
        ConfigError: A number is out of range, m does not divide N under `"group"`, or a list has
            not one entry a node.
        CapacityError: The memory cannot hold m copies of every shard.
    """
    check_placement(nodes=nodes, replicas=replicas, strategy=strategy, racks=racks)
    groups = _groups(nodes, replicas, strategy, racks, seed)
    shifts: Sequence[int] = range(1, replicas)
    if strategy == "random":
        shifts = random.Random(seed).sample(range(1, nodes), replicas - 1)
    elif strategy != "ring" and not (strategy == "hosted" and nodes % replicas):
        strategy = "mixed" if nodes % replicas else "group"
        if racks is None and _are_unlike(node_bytes, nodes):
            ways = groups, _balanced(node_bytes, [len(group) for group in groups])
            groups = min(ways, key=lambda way: _most_kept(_send_on(way, shifts, nodes), node_bytes))
    holders = _send_on(groups, shifts, nodes)
    if strategy == "hosted" and nodes % replicas:
        holders = _hosted(groups[-1], replicas, holders, racks=racks or range(nodes))
    if memory_bytes is not None or shard_bytes is not None:
        fits = shards_that_fit(nodes=nodes, memory_bytes=memory_bytes, shard_bytes=shard_bytes)
        loads = Counter(node for kept in holders for node in kept)
        if any(count < loads[node] for node, count in enumerate(fits)):
            strategy, groups = "uneven", (tuple(range(nodes)),)
            holders = _with_guests(fits, replicas, racks) or fill_by_capacity(
                fits=fits, replicas=replicas, racks=racks
            )
    notes = spread_notes(holders, racks) if racks is not None and replicas > 1 else ()
    return Placement(
        nodes=nodes,
        replicas=replicas,
        strategy=strategy,
        groups=groups,
        holders=holders,
        notes=notes,
    )


def check_counts(*, nodes: int, replicas: int) -> None:
    """Refuse an m that is not between 1 and N, and a placement for which memory is short."""
    check_number("nodes", nodes, least=1, is_whole=True)
    check_number("replicas", replicas, least=1, is_whole=True)
    if replicas > nodes:
        raise ConfigError(
            f"replicas={replicas} needs at least {replicas} nodes (got {nodes}); "
            "lower `replicas` or add nodes"
        )
    if nodes * replicas > MOST_COPIES:
        raise ConfigError(
            f"{nodes:,} nodes and replicas={replicas:,} are {nodes * replicas:,} copies, and a "
            f"placement has {MOST_COPIES:,} at most; lower one of them"
        )


def check_placement(
    *, nodes: int, replicas: int, strategy: str, racks: Sequence[str] | None = None
) -> None:
    """Refuse what `plan_placement` could not plan, without planning it.

    Raises:
        ConfigError: As `plan_placement`.
    """
    check_counts(nodes=nodes, replicas=replicas)
    if strategy not in STRATEGIES:
        raise ConfigError(f"there is no strategy {shown(strategy)}; choose one of {STRATEGIES}")
    if strategy == "group" and nodes % replicas:
        raise ConfigError(
            f"groups of {replicas} do not divide {nodes} nodes ({nodes % replicas} left over); "
            "use strategy='auto', which makes the last group a ring"
        )
    if racks is not None and not (isinstance(racks, Sequence) and len(racks) == nodes):
        raise ConfigError(f"`racks` needs one entry a node: {nodes} (got {_count(racks)})")


def _count(racks: object) -> str:
    return str(len(racks)) if isinstance(racks, Sequence) else kind_of(racks)


def _groups(
    nodes: int, replicas: int, strategy: str, racks: Sequence[str] | None, seed: int
) -> tuple[tuple[int, ...], ...]:
    """Return Algorithm 1's groups, or one group of all if the strategy is a ring or random."""
    if strategy == "random":
        return (tuple(random.Random(seed).sample(range(nodes), nodes)),)
    size = nodes if strategy == "ring" else replicas
    if racks is not None:
        return spread_groups(size=size, racks=racks)
    count = nodes // size
    groups = [tuple(range(size * i, size * (i + 1))) for i in range(count)]
    groups[-1] += tuple(range(size * count, nodes))
    return tuple(groups)


_UNLIKE: Final = 1.25
"""The largest shard over the smallest: below it, groups stay as Algorithm 1 cuts them."""


def _are_unlike(node_bytes: Sequence[int], nodes: int) -> bool:
    if len(node_bytes) not in {0, nodes}:
        raise ConfigError(f"`node_bytes` needs one entry a node: {nodes} (got {len(node_bytes)})")
    for size in node_bytes:
        check_number("node_bytes", size, is_whole=True)
    return bool(node_bytes) and max(node_bytes) > _UNLIKE * min(node_bytes)


def _balanced(node_bytes: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return groups of these sizes: the largest shard left goes where least is kept so far."""
    groups: list[list[int]] = [[] for _ in sizes]
    for node in sorted(range(len(node_bytes)), key=lambda node: (-node_bytes[node], node)):
        free = [number for number, size in enumerate(sizes) if len(groups[number]) < size]
        least = min(free, key=lambda number: sum(node_bytes[one] for one in groups[number]))
        groups[least].append(node)
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _most_kept(holders: tuple[tuple[int, ...], ...], node_bytes: Sequence[int]) -> int:
    """Return the bytes on the position that keeps most."""
    return max(sum(node_bytes[shard] for shard in kept) for kept in _kept(holders))


def _send_on(
    groups: Sequence[Sequence[int]], shifts: Sequence[int], nodes: int
) -> tuple[tuple[int, ...], ...]:
    """Return the holders if each member also sends its shard `shifts` places further.

    In a group of exactly m members, shifts 1 to m-1 reach all others: group and ring are one rule.
    """
    holders: list[tuple[int, ...]] = [()] * nodes
    for group in groups:
        size = len(group)
        for place, owner in enumerate(group):
            holders[owner] = (owner, *[group[(place + shift) % size] for shift in shifts])
    return tuple(holders)


def _hosted(
    last: Sequence[int],
    replicas: int,
    holders: Sequence[tuple[int, ...]],
    *,
    racks: Sequence[Hashable],
) -> tuple[tuple[int, ...], ...]:
    """Return the holders if the last group's nodes beyond m, the guests, share copies with a few.

    Guests come from the racks that most of the group sit in, so that the other m are apart whenever
    they can be; hosts are those of the m that share a rack with no guest, as far as there are.
    """
    home, guests = list(last), list[int]()
    while len(home) > replicas:
        sizes = Counter(racks[node] for node in home)
        guests.append(max(home, key=lambda node: (sizes[racks[node]], home.index(node))))
        home.remove(guests[-1])
    guests.sort(key=last.index)
    found = list(holders)
    for owner in home:
        found[owner] = (owner, *(node for node in home if node != owner))
    near = {racks[guest] for guest in guests}
    hosts = sorted(home, key=lambda node: racks[node] in near)[: replicas - len(guests)]
    for owner in guests:
        found[owner] = (owner, *(node for node in (*guests, *hosts) if node != owner))
    return tuple(found)


def _with_guests(
    fits: Sequence[int], replicas: int, racks: Sequence[str] | None
) -> tuple[tuple[int, ...], ...] | None:
    """Apply Algorithm 1 to the nodes with room for m shards, which also keep the others' shards.

    A guest's copies all go to one group, so that few sets of nodes are fatal; `None` if no group
    has room left for some guest.
    """
    hosts = [node for node, count in enumerate(fits) if count >= replicas]
    if len(hosts) < replicas:
        return None
    core = plan_placement(
        nodes=len(hosts),
        replicas=replicas,
        racks=None if racks is None else [racks[host] for host in hosts],
    )
    holders = {
        hosts[i]: tuple(hosts[position] for position in kept) for i, kept in enumerate(core.holders)
    }
    groups = [[hosts[position] for position in group] for group in core.groups]
    return seat_guests(holders, groups=groups, fits=fits, replicas=replicas, racks=racks)
