"""The places of nodes and copies in the replica map: plain numbers, for the live and static map.

Up to `RING_NODES` nodes stand in a ring, with an arrow from each owner to its shard's other
holders. The ring's radius is 1, its middle is (0, 0), and y grows upwards. Of more nodes each shard
is a column of its copies, the owner's on top. The shards of a placement group stand together.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.report.tables.replica_map import CopyRow, ReplicaTable

RING_NODES: Final = 32
"""Nodes that are drawn as a ring, at most."""
GROUP_GAP: Final = 0.5
"""Between two groups, in distances between nodes."""
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
    """The place of a node's name outside of the ring, and its direction."""

    x: float  # of the point at which the name begins, or ends if it is on the left
    y: float
    align: str  # the side of the name that is there: left, center or right
    baseline: str  # the part of its height that is there: top, middle or bottom
    angle: float = 0.0  # its tilt in radians, counterclockwise


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
) -> list[tuple[float, float]]:
    """Return the first and last angle of each group's band, from the top clockwise."""
    if len(groups) < 2 or not where:
        return []
    margin = 0.35 * 2 * math.pi / (len(where) + len(groups) * GROUP_GAP)
    return [(where[one[0]].angle - margin, where[one[-1]].angle + margin) for one in groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingArrow:
    """A bent arrow, from rim to rim."""

    tail: Point
    bend: Point  # the control point of its curve
    head: Point


def ring_arrow(owner: RingPlace, holder: RingPlace, *, rim: float = NODE_RADIUS) -> RingArrow:
    """Return the arrow from an owner to a holder, bent towards the middle."""
    (x0, y0), (x1, y1) = owner.at(1.0), holder.at(1.0)
    bend = (
        (x0 + x1) / 2 * (1 - PULL) - (y1 - y0) * BEND,
        (y0 + y1) / 2 * (1 - PULL) + (x1 - x0) * BEND,
    )
    return RingArrow(
        tail=_towards((x0, y0), bend, rim), bend=bend, head=_towards((x1, y1), bend, rim)
    )


def _towards(point: Point, goal: Point, rim: float) -> Point:
    away = math.hypot(goal[0] - point[0], goal[1] - point[1]) or 1.0
    share = rim / away
    return point[0] + share * (goal[0] - point[0]), point[1] + share * (goal[1] - point[1])


# -- many nodes ------------------------------------------------------------------------------------

MOST_CELLS: Final = 4_000


def shown_shards(table: ReplicaTable) -> tuple[dict[int, list[CopyRow]], int]:
    """Return the copies of each shard that is drawn, and how many whole shards are left out."""
    by_shard: dict[int, list[CopyRow]] = {}
    for copy in table.copies:
        by_shard.setdefault(copy.shard, []).append(copy)
    most = max(map(len, by_shard.values()), default=1)
    by_harm = sorted(by_shard, key=lambda shard: not harmed(by_shard[shard]))
    drawn = sorted(by_harm[: max(1, MOST_CELLS // most)])
    return {shard: by_shard[shard] for shard in drawn}, len(by_shard) - len(drawn)


def harmed(copies: Iterable[CopyRow]) -> int:
    """Return how many copies are not whole."""
    return sum(copy.state != "whole" for copy in copies)


def together(table: ReplicaTable, shards: Iterable[int]) -> list[list[int]]:
    """Return these shards by placement group; one of no group stands alone."""
    wanted = dict.fromkeys(shards)
    grouped = [[shard for shard in group if shard in wanted] for group in table.groups]
    seen = {shard for group in grouped for shard in group}
    return [group for group in grouped if group] + [[one] for one in wanted if one not in seen]
