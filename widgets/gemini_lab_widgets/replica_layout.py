"""The places of nodes and copies in the replica map: plain numbers, for the live and static map.

Up to `RING_NODES` nodes stand in a ring, with an arrow from each owner to its shard's other
holders. Of more nodes each shard is a column of its copies, the owner's on top. Shards that belong
together, a placement group or a rack, are a unit; units flow like words, in lines as wide as the
map.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gemini_lab.report.tables.replica_map import CopyRow, ReplicaTable

RING_NODES: Final = 32
"""Nodes that are drawn as a ring, at most."""
GROUP_GAP: Final = 0.5
"""Between two groups, in distances between nodes; between two units, in columns."""
NODE_RADIUS: Final = 0.13
LABEL_RADIUS: Final = 1.26
CLOSE: Final = 16
"""With more nodes, names at the ring's top and bottom would cover each other."""
CLOSE_RADIUS: Final = 1.15
STEEP: Final = 0.55
"""Names are tilted if the cosine of their angle is beyond this, above and below the ring."""
TILT: Final = math.radians(35)
BEND: Final = 0.16
"""Distance of an arrow from a straight line, by its length: there and back are two arrows."""
PULL: Final = 0.35
"""How far an arrow is drawn towards the middle."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPlace:
    """A position on the ring: its angle, from the top clockwise."""

    position: int
    angle: float

    def at(self, radius: float) -> Point:
        """Return the point at this angle, `radius` from the middle."""
        return radius * math.sin(self.angle), radius * math.cos(self.angle)


def ring_places(groups: Sequence[Sequence[int]], nodes: int) -> dict[int, RingPlace]:
    """Place all positions around the ring, groups side by side."""
    order = [position for group in groups for position in group]
    order += [position for position in range(nodes) if position not in set(order)]
    gaps = len(groups) if len(groups) > 1 else 0
    step = 2 * math.pi / (len(order) + gaps * GROUP_GAP) if order else 0.0
    starts = {group[0] for group in groups if group} if gaps else set()
    angle, result = -step, {}
    for position in order:
        angle += step * (1 + GROUP_GAP if position in starts else 1)
        result[position] = RingPlace(position=position, angle=angle)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLabel:
    """The place of a node's name outside of the ring, and its direction.

    Attributes:
        x: Of the point at which it begins, or ends if it is on the left.
        align: The side of the name that is there.
        baseline: The part of its height that is there.
        angle: Its tilt in radians, counterclockwise.
    """

    x: float
    y: float
    align: str
    baseline: str
    angle: float = 0.0


def ring_label(place: RingPlace, nodes: int) -> RingLabel:
    """Return a name's place; if many stand close above and below the ring, they part like rays."""
    side = "left" if place.angle < math.pi else "right"
    if nodes > CLOSE:
        x, y = place.at(CLOSE_RADIUS)
        is_steep = abs(math.cos(place.angle)) > STEEP
        tilt = TILT * is_steep * math.copysign(1.0, x * y)
        return RingLabel(x=x, y=y, align=side, baseline="middle", angle=tilt)
    x, y = place.at(LABEL_RADIUS)
    level = "middle" if abs(y) < 1.1 else "bottom" if y > 0 else "top"
    return RingLabel(x=x, y=y, align="center" if abs(x) < 0.25 else side, baseline=level)


def ring_bands(
    groups: Sequence[Sequence[int]], where: Mapping[int, RingPlace]
) -> dict[str, list[float]]:
    """Return the start and end of each group's band, counterclockwise from the right."""
    ends = [(where[group[0]].angle, where[group[-1]].angle) for group in groups if len(groups) > 1]
    margin = 0.35 * 2 * math.pi / (len(where) + len(groups) * GROUP_GAP) if where else 0.0
    return {
        "start": [math.pi / 2 - last - margin for _, last in ends],
        "end": [math.pi / 2 - first + margin for first, _ in ends],
    }


def ring_arrows(
    ends: Iterable[tuple[int, int]], where: Mapping[int, RingPlace], *, rim: float = NODE_RADIUS
) -> dict[str, list[Any]]:
    """Return bent arrows from owners to holders, from rim to rim; a row each."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("x0", "y0", "x1", "y1", "cx", "cy", "angle")
    }
    for owner, holder in ends:
        start, end = where[owner].at(1.0), where[holder].at(1.0)
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        along = (end[0] - start[0], end[1] - start[1])
        bend = (
            middle[0] * (1 - PULL) - along[1] * BEND,
            middle[1] * (1 - PULL) + along[0] * BEND,
        )
        tail, head = _towards(start, bend, rim), _towards(end, bend, rim)
        angle = math.atan2(head[1] - bend[1], head[0] - bend[0]) - math.pi / 2
        values = (*tail, *head, *bend, angle)
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
    return columns


def _towards(point: Point, goal: Point, rim: float) -> Point:
    away = math.hypot(goal[0] - point[0], goal[1] - point[1]) or 1.0
    share = rim / away
    return point[0] + share * (goal[0] - point[0]), point[1] + share * (goal[1] - point[1])


# -- many nodes ------------------------------------------------------------------------------------

Order = Literal["place", "worst", "rack"]
ORDERS: Final[dict[Order, str]] = {
    "place": "by position",
    "worst": "worst first",
    "rack": "by rack",
}
LEADING: Final = 0.55
"""Between two lines, in rows."""
LABEL: Final = 0.95
"""Above a line whose units have labels, in rows."""
MOST_CELLS: Final = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MapUnit:
    """Shards that stand side by side, and the label above them."""

    shards: tuple[int, ...]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBand:
    """The area behind a unit, or behind its part on one line."""

    left: float
    right: float
    top: float
    bottom: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPlan:
    """The map of many nodes.

    Attributes:
        copies: Those that are drawn.
        x: The middle of each, in columns from the left.
        y: The middle of each, in rows from the top.
        bands: Behind the units.
    """

    copies: tuple[CopyRow, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    bands: tuple[MapBand, ...]
    rows: float


def shown_shards(table: ReplicaTable) -> tuple[dict[int, list[CopyRow]], int]:
    """Return the copies of each shard that is drawn, and how many whole shards are left out."""
    by_shard: dict[int, list[CopyRow]] = {}
    for copy in table.copies:
        by_shard.setdefault(copy.shard, []).append(copy)
    most = max(map(len, by_shard.values()), default=1)
    by_harm = sorted(by_shard, key=lambda shard: not _harmed(by_shard[shard]))
    drawn = sorted(by_harm[: max(1, MOST_CELLS // most)])
    return {shard: by_shard[shard] for shard in drawn}, len(by_shard) - len(drawn)


def _harmed(copies: Iterable[CopyRow]) -> int:
    """Return how many copies are not whole."""
    return sum(copy.state != "whole" for copy in copies)


def units_of(
    table: ReplicaTable, by_shard: dict[int, list[CopyRow]], order: Order
) -> list[MapUnit]:
    """Return the shards that are drawn, in this order."""
    if order == "rack":
        racks: dict[str, list[int]] = {}
        for shard in by_shard:
            racks.setdefault(table.nodes[shard].rack, []).append(shard)
        # By length first, so that rack 2 comes before rack 10.
        found = sorted(racks.items(), key=lambda rack: (len(rack[0]), rack[0]))
        return [MapUnit(shards=tuple(shards), label=rack or "no rack") for rack, shards in found]
    grouped = [[shard for shard in group if shard in by_shard] for group in table.groups]
    seen = {shard for group in grouped for shard in group}
    grouped += [[shard] for shard in by_shard if shard not in seen]
    whole = [MapUnit(shards=tuple(group)) for group in grouped if group]
    if order == "worst":
        return sorted(whole, key=lambda unit: -max(_harmed(by_shard[s]) for s in unit.shards))
    return whole


def flow(
    by_shard: dict[int, list[CopyRow]], in_order: Sequence[MapUnit], *, columns: int
) -> MapPlan:
    """Place units in lines of so many columns; a longer one goes on in the next line."""
    most = max(map(len, by_shard.values()), default=1)
    label = LABEL if any(unit.label for unit in in_order) else 0.0
    copies: list[CopyRow] = []
    xs: list[float] = []
    ys: list[float] = []
    bands: list[MapBand] = []
    at, top = 0.0, label
    for unit in in_order:
        if at and at + len(unit.shards) > columns:
            at, top = 0.0, top + most + LEADING + label
        rest = list(unit.shards)
        while rest:
            part, rest = rest[: max(1, int(columns - at))], rest[max(1, int(columns - at)) :]
            for number, shard in enumerate(part):
                for row, copy in enumerate(by_shard[shard]):
                    copies.append(copy)
                    xs.append(at + number + 0.5)
                    ys.append(top + row + 0.5)
            bands.append(
                MapBand(left=at, right=at + len(part), top=top, bottom=top + most, label=unit.label)
            )
            at += len(part) + GROUP_GAP
            if rest:
                at, top = 0.0, top + most + LEADING + label
    return MapPlan(
        copies=tuple(copies), x=tuple(xs), y=tuple(ys), bands=tuple(bands), rows=top + most
    )
