"""Seats in few words, as a root agent tells them to every node and stores them.

Each of N nodes hears where all N sit and who keeps whose copies. In full that is N lists of N; but
nodes are mostly numbered as they sit, and a placement mostly repeats itself. So what repeats is
told once, with how often it comes. What does not is told in full: nothing is worked out again from
how it was planned, and any placement is told exactly.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from gemini_lab.errors import MessageError
from gemini_lab.limits import Count
from gemini_lab.placement import Placement, Risk
from gemini_lab.seats import Seats, node_name, node_number
from gemini_lab.units import LARGEST

Item = TypeVar("Item", bound=Hashable)
Step = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
"""A number, as its distance from another one."""
Name = Step | str | None
"""A node: how much its number is above that of the numbered one before; a name as it is; or none.
"""
Offsets = tuple[Step, ...]
ToldRanks = list[tuple[Count, Count]]
"""Ranks in ascending order: the first and the last of each unbroken row of them."""
LONGEST: Final = 16
"""Of a pattern that is looked for, in items; a group of more nodes than that is rare."""


class ToldPlacement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A placement, with each position that keeps a shard as its distance from the owner."""

    replicas: Count
    strategy: str
    # Each group's first position as its distance from the one before, the others from that first.
    groups: list[tuple[Count, list[Offsets]]]
    holders: list[tuple[Count, list[Offsets]]]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, placement: Placement) -> "ToldPlacement":
        """Return a placement in few words."""
        firsts = [0, *(group[0] for group in placement.groups)]
        return cls(
            replicas=placement.replicas,
            strategy=placement.strategy,
            groups=runs_of(
                [
                    (group[0] - before, *(one - group[0] for one in group[1:]))
                    for before, group in zip(firsts, placement.groups, strict=False)
                ]
            ),
            holders=runs_of(
                [tuple(one - p for one in kept) for p, kept in enumerate(placement.holders)]
            ),
            notes=placement.notes,
        )

    def whole(self, nodes: int) -> Placement:
        """Return the placement, which is of so many nodes.

        Raises:
            MessageError: It is of another number of them.
        """
        groups, first = list[tuple[int, ...]](), 0
        for step, *others in items_of(self.groups, most=nodes):
            first += step
            groups.append((first, *(first + one for one in others)))
        holders = items_of(self.holders, most=nodes)
        return Placement(
            nodes=nodes,
            replicas=self.replicas,
            strategy=self.strategy,
            groups=tuple(groups),
            holders=tuple(tuple(p + one for one in kept) for p, kept in enumerate(holders)),
            notes=self.notes,
        )


class ToldSeats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seats in few words; each field as in `Seats`."""

    nodes: Count
    standbys: Count
    workers_per_node: Count
    members: list[tuple[Count, list[Name]]]
    nodes_in_racks: list[tuple[Count, list[Name]]] = []
    racks: list[tuple[Count, list[str]]] = []  # of these nodes, in order
    placement: ToldPlacement | None = None
    risk: Risk = msgspec.field(default_factory=Risk)

    @classmethod
    def of(cls, seats: Seats) -> "ToldSeats":
        """Return seats in few words."""
        return cls(
            nodes=seats.nodes,
            standbys=seats.standbys,
            workers_per_node=seats.workers_per_node,
            members=runs_of([*_steps(seats.members)]),
            nodes_in_racks=runs_of([*_steps(seats.rack_of)]),
            racks=runs_of([*seats.rack_of.values()]),
            placement=None if seats.placement is None else ToldPlacement.of(seats.placement),
            risk=seats.risk,
        )

    def whole(self) -> Seats:
        """Return the seats.

        Raises:
            MessageError: A list is longer than it may be, or racks are told of other nodes.
            ConfigError: There are no such seats.
        """
        # Racks may be known of machines that come later, or have gone.
        racked = [*_names(items_of(self.nodes_in_racks, most=MOST_MACHINES))]
        racks = items_of(self.racks, most=MOST_MACHINES)
        if len(racked) != len(racks):
            raise MessageError(f"{len(racked)} nodes come with {len(racks)} racks")
        return Seats(
            nodes=self.nodes,
            standbys=self.standbys,
            workers_per_node=self.workers_per_node,
            members=tuple(_names(items_of(self.members, most=self.nodes))),
            rack_of={str(node): rack for node, rack in zip(racked, racks, strict=True)},
            placement=None if self.placement is None else self.placement.whole(self.nodes),
            risk=self.risk,
        )


def told_ranks(ranks: Iterable[int]) -> ToldRanks:
    """Return ascending ranks in few words."""
    rows: ToldRanks = []
    for rank in ranks:
        if rows and rows[-1][1] == rank - 1:
            rows[-1] = rows[-1][0], rank
        else:
            rows.append((rank, rank))
    return rows


def whole_ranks(rows: ToldRanks, among: range) -> list[int]:
    """Return the ranks that were told, as far as there are such ranks."""
    return [rank for first, last in rows for rank in among[first : last + 1]]


MOST_MACHINES: Final = 10**6
"""Whose racks may be told."""


def runs_of(items: Sequence[Item]) -> list[tuple[int, list[Item]]]:
    """Return patterns of items, in order, each with how often it comes."""
    runs: list[tuple[int, list[Item]]] = []
    at = 0
    while at < len(items):
        times, length = max(
            ((_times(items, at, length), length) for length in range(1, LONGEST + 1)),
            key=lambda run: (run[0] > 1, run[0] * run[1], -run[1]),
        )
        if times > 1:
            runs.append((times, [*items[at : at + length]]))
            at += times * length
            continue
        if runs and runs[-1][0] == 1:
            runs[-1][1].append(items[at])
        else:
            runs.append((1, [items[at]]))
        at += 1
    return runs


def _times(items: Sequence[Item], at: int, length: int) -> int:
    """Return how often the pattern of this length comes at this place, one after the other."""
    pattern, times = items[at : at + length], 1
    while items[at + times * length : at + (times + 1) * length] == pattern:
        times += 1
    return times


def items_of(runs: Iterable[tuple[int, Sequence[Item]]], *, most: int) -> list[Item]:
    """Return what `runs_of` gave as runs.

    Raises:
        MessageError: There are more items than there may be.
    """
    told = [*runs]
    # An empty pattern counts: to repeat nothing 10**15 times has no end, either.
    count = sum(times * max(1, len(pattern)) for times, pattern in told)
    if count > most:
        raise MessageError(
            f"a list of seats has {count:,} entries, and may have {most:,}; do all nodes run the "
            "same gemini_lab?"
        )
    return [item for times, pattern in told for _ in range(times) for item in pattern]


def _steps(names: Iterable[str | None]) -> Iterator[Name]:
    """Yield each node as how much its number is above that of the one before, if it has one."""
    before = 0
    for name in names:
        number = _number(name)
        yield name if number is None else number - before
        before = before if number is None else number


def _number(name: str | None) -> int | None:
    digits = (name or "").rpartition("-")[2]
    is_number = digits.isascii() and digits.isdecimal() and len(digits) < 10
    return node_number(str(name)) if is_number and node_name(int(digits)) == name else None


def _names(steps: Iterable[Name]) -> Iterator[str | None]:
    """Yield the names of nodes that `_steps` gave as steps."""
    number = 0
    for step in steps:
        if isinstance(step, int):
            number += step
            yield node_name(number)
        else:
            yield step
