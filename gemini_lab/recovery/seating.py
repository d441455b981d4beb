"""The choice of machines for empty positions: by useful memory, then by safe racks."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from typing import Final, Protocol

from gemini_lab.seats import listed

MOST_TRIED: Final = 4096
"""So many ways to choose racks are all tried; of more, a way that no one exchange makes better."""


class SpareCopy(Protocol):
    """A copy in a node's memory, as far as it decides where the node sits."""

    @property
    def shard(self) -> int:
        """The rank whose shard it is."""

    @property
    def node(self) -> str:
        """The node that has it."""


def fill_positions(
    *,
    members: Sequence[str | None],
    spares: Sequence[str],
    copies: Collection[SpareCopy],
    holders: Sequence[Sequence[int]],
    workers_per_node: int = 1,
    rack_of: Mapping[str, str],
    late: Collection[str] = (),
) -> tuple[str | None, ...]:
    """Return the members with spares on the empty positions; `None` if none is left.

    A spare whose memory has what a position keeps takes that one, the best match first. Of the
    others, those are chosen, and so put, that as few shards as possible have all their copies in
    one rack; then those on which a start need not wait, then those with as few copies of a shard
    as possible in one rack, then the first.

    Args:
        members: The node on each position; `None` where one is needed.
        spares: Nodes to choose from, in the order in which they are to be used.
        copies: What the nodes have in memory.
        holders: For each position's shards the positions that keep them, owner first.
        workers_per_node: Ranks on each position.
        rack_of: The rack of each node whose rack is known.
        late: Spares on which a start has to wait.
    """
    filled, left = list(members), dict.fromkeys(spares)
    empty = {position: None for position, node in enumerate(filled) if node is None}
    kept = positions_kept(holders)
    useful = Counter(
        (position, copy.node)
        for copy in copies
        if copy.node in left
        for position in empty
        if copy.shard // workers_per_node in kept[position]
    )
    order = {node: number for number, node in enumerate(left)}
    best_first = sorted(useful.items(), key=lambda at: (-at[1], at[0][0], order[at[0][1]]))
    for (position, node), _ in best_first:  # whose memory is of use is not wasted elsewhere
        if position in empty and node in left:
            filled[position] = node
            del empty[position], left[node]
    _Seating(filled, holders, kept, rack_of, {*late}).seat(list(empty), list(left))
    return tuple(filled)


def positions_kept(holders: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the positions whose shards each position keeps, its own first."""
    kept: list[list[int]] = [[position] for position in range(len(holders))]
    for owner, keepers in enumerate(holders):
        for keeper in keepers[1:]:
            kept[keeper].append(owner)
    return kept


def in_one_rack(
    holders: Sequence[Sequence[int]],
    members: Sequence[str | None],
    rack_of: Mapping[str, str],
) -> dict[int, str]:
    """Return the positions whose shards have several copies, all in one rack, and the rack."""
    found: dict[int, str] = {}
    for owner, keepers in enumerate(holders):
        racks = [_rack(members[keeper], rack_of) for keeper in keepers]
        if len(racks) > 1 and len(set(racks)) == 1 and racks[0]:
            found[owner] = racks[0]
    return found


def rack_warning(
    holders: Sequence[Sequence[int]],
    before: Sequence[str | None],
    members: Sequence[str | None],
    rack_of: Mapping[str, str],
) -> str:
    """Return, for users, what new machines on the positions cost of safety; else empty."""
    known = in_one_rack(holders, before, rack_of) if len(before) == len(members) else {}
    new = {p: r for p, r in in_one_rack(holders, members, rack_of).items() if p not in known}
    if not new:
        return ""
    places = [f"{members[position]} (rack {rack})" for position, rack in new.items()]
    return (
        f"all copies of the shards of {listed(places)} are in one rack now, for no standby of "
        "another rack could take the place: if that rack is lost, memory does not suffice; have a "
        "standby in each rack"
    )


def _rack(node: str | None, rack_of: Mapping[str, str]) -> str:
    return "" if node is None else rack_of.get(node, "")


class _Seating:
    """Positions that are filled one by one, and then exchanged as long as that helps."""

    def __init__(
        self,
        filled: list[str | None],
        holders: Sequence[Sequence[int]],
        kept: Sequence[Sequence[int]],
        rack_of: Mapping[str, str],
        late: Collection[str],
    ) -> None:
        self._filled, self._holders, self._kept = filled, holders, kept
        self._rack_of, self._late = rack_of, late

    def seat(self, empty: Sequence[int], spares: list[str]) -> None:
        """Put spares on empty positions, as many as there are of both."""
        taken = empty[: len(spares)]
        racks = {_rack(node, self._rack_of) for node in spares}
        if len(racks) ** len(taken) <= MOST_TRIED:
            for position, node in self._best(taken, spares, sorted(racks)).items():
                self._filled[position] = node
            return
        for position in taken:
            node = min(spares, key=lambda one: self._harm({position: one}))  # of equals the first
            self._filled[position] = node
            spares.remove(node)
        while any(self._improve(position, taken, spares) for position in taken):
            pass

    def _best(
        self, taken: Sequence[int], spares: Sequence[str], racks: Sequence[str]
    ) -> dict[int, str]:
        """Return the best seating; of a rack's spares those without a wait come first."""
        in_rack = {
            rack: sorted(
                (node for node in spares if _rack(node, self._rack_of) == rack),
                key=lambda node: node in self._late,
            )
            for rack in racks
        }
        number = {node: place for place, node in enumerate(spares)}
        ways = []
        for chosen in product(racks, repeat=len(taken)):
            if any(count > len(in_rack[rack]) for rack, count in Counter(chosen).items()):
                continue
            nodes = {rack: iter(each) for rack, each in in_rack.items()}
            ways.append({p: next(nodes[rack]) for p, rack in zip(taken, chosen, strict=True)})
        return min(ways, key=lambda way: (self._harm(way), [number[node] for node in way.values()]))

    def _improve(self, position: int, taken: Sequence[int], spares: list[str]) -> bool:
        """Replace or exchange a node if that does less harm; return whether it did."""
        here = self._filled[position]
        assert here is not None
        now = self._harm({position: here})
        if not now[0]:
            return False
        for node in spares:
            if self._harm({position: node})[0] < now[0]:
                self._filled[position] = node
                spares[spares.index(node)] = here
                return True
        for other in taken:
            there = self._filled[other]
            if there is None or other == position:
                continue
            swapped = {position: there, other: here}
            if self._harm(swapped)[0] < self._harm({position: here, other: there})[0]:
                self._filled[position], self._filled[other] = there, here
                return True
        return False

    def _harm(self, put: Mapping[int, str]) -> tuple[int, int, int]:
        """Return the shards in one rack alone, the nodes to wait for, the copies that share a rack.

        A position that is still empty may get any rack.
        """
        touched = {owner for position in put for owner in self._kept[position]}
        alone = shared = 0
        for owner in touched:
            racks = [self._rack_at(keeper, put) for keeper in self._holders[owner]]
            alone += len(racks) > 1 and racks[0] != "" and len(set(racks)) == 1
            shared += _shared(racks)
        return alone, sum(node in self._late for node in put.values()), shared

    def _rack_at(self, position: int, put: Mapping[int, str]) -> str:
        return _rack(put.get(position, self._filled[position]), self._rack_of)


def _shared(racks: Iterable[str]) -> int:
    """Return how many copies share a rack with another one."""
    known = Counter(rack for rack in racks if rack)
    return sum(count - 1 for count in known.values())
