"""Failure domains (racks, switches, power): groups whose members do not fail together."""

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import cycle


def spread_groups(*, size: int, racks: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return groups of `size` positions in different racks; the last one is larger.

    Each group takes one position from each of the racks with most positions left. So all members
    of all groups sit in different racks whenever any grouping can have that. If a rack has more
    positions than there are groups, none can: then as few shards as possible have all copies in
    that rack.
    """
    if max(Counter(racks).values()) > len(racks) // size:
        return _dealt(size=size, racks=racks)
    members: dict[str, list[int]] = defaultdict(list)
    for position in range(len(racks) - 1, -1, -1):
        members[racks[position]].append(position)
    heap = [(-len(left), rack) for rack, left in members.items()]
    heapq.heapify(heap)
    groups = []
    for _ in range(len(racks) // size - 1):
        group: list[int] = []
        while len(group) < size:
            taken = [heapq.heappop(heap) for _ in range(min(size - len(group), len(heap)))]
            for left, rack in taken:
                group.append(members[rack].pop())
                if left + 1:
                    heapq.heappush(heap, (left + 1, rack))
        groups.append(tuple(sorted(group)))
    rest = _far_apart([(rack, position) for rack, left in members.items() for position in left])
    return (*sorted(groups), rest)


def _dealt(*, size: int, racks: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return groups that each have a position outside the largest rack, as long as there are any.

    The last group needs a second one, if it is larger, so that it gets the first of each round.
    """
    sizes, count = Counter(racks), len(racks) // size
    placed = sorted((-sizes[rack], rack, position) for position, rack in enumerate(racks))
    of_largest = sizes[placed[0][1]]
    groups: list[list[tuple[str, int]]] = [[] for _ in range(count)]
    rooms = [len(racks) - size * (count - 1), *[size] * (count - 1)]
    in_turn = cycle(range(count))
    for _, rack, position in placed[of_largest:] + placed[:of_largest]:
        into = next(n for n in in_turn if len(groups[n]) < rooms[n])
        groups[into].append((rack, position))
    rest, *whole = groups
    return (*sorted(tuple(sorted(at for _, at in group)) for group in whole), _far_apart(rest))


def _far_apart(placed: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Return the positions ordered so that those of one rack are far apart."""
    sizes = Counter(rack for rack, _ in placed)
    ordered = sorted(placed, key=lambda item: (-sizes[item[0]], item))
    stride = -(-len(ordered) // max(sizes.values()))
    return tuple(position for start in range(stride) for _, position in ordered[start::stride])


def spread_notes(holders: Sequence[Sequence[int]], racks: Sequence[str]) -> tuple[str, ...]:
    """Describe what the racks do not allow; nothing if all copies of each shard are apart."""
    shared = [i for i, kept in enumerate(holders) if len({racks[p] for p in kept}) < len(kept)]
    fatal = Counter(
        racks[kept[0]] for kept in holders if len({racks[position] for position in kept}) == 1
    )
    notes = []
    if shared:
        sizes = Counter(racks)
        rack, count = sizes.most_common(1)[0]
        notes.append(
            f"{len(shared)} of {len(holders)} shards have two copies in one rack (first: shard "
            f"{shared[0]}): {len(sizes)} racks, the largest ({rack!r}) with {count} of "
            f"{len(racks)} nodes"
        )
    if fatal:
        rack, count = fatal.most_common(1)[0]
        notes.append(
            f"{sum(fatal.values())} shards have every copy in one rack: losing rack {rack!r} "
            f"alone loses {count}; add racks or move nodes"
        )
    return tuple(notes)
