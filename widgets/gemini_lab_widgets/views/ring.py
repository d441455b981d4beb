"""Where nodes and copies stand in the replica map: plain numbers, no Bokeh."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemini_lab.report.tables import CopyRow

GAP: Final = 0.5
"""Between two groups, as a share of the distance between two nodes."""
NODE_RADIUS: Final = 0.13
LABEL_RADIUS: Final = 1.26
CLOSE: Final = 16
"""With more nodes than this, names at the ring's top and bottom would cover each other."""
CLOSE_RADIUS: Final = 1.15
STEEP: Final = 0.55
"""Where the angle's cosine is beyond this, above and below the ring, names are tilted."""
TILT: Final = math.radians(35)
BEND: Final = 0.16
"""How far an arrow is from a straight line, by its length: so there and back part."""
PULL: Final = 0.35
"""How far an arrow is drawn towards the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPlace:
    """A position on the ring: its angle, from the top clockwise, and the point there."""

    position: int
    angle: float

    def at(self, radius: float) -> tuple[float, float]:
        """The point at this angle, `radius` from the middle."""
        return radius * math.sin(self.angle), radius * math.cos(self.angle)


def places(groups: Sequence[Sequence[int]], nodes: int) -> dict[int, RingPlace]:
    """All positions around the ring, groups side by side."""
    order = [position for group in groups for position in group]
    order += [position for position in range(nodes) if position not in set(order)]
    gaps = len(groups) if len(groups) > 1 else 0
    step = 2 * math.pi / (len(order) + gaps * GAP) if order else 0.0
    starts = {group[0] for group in groups if group} if gaps else set()
    angle, result = -step, {}
    for position in order:
        angle += step * (1 + GAP if position in starts else 1)
        result[position] = RingPlace(position=position, angle=angle)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Where a node's name begins, outside of the ring, and which way it is written.

    Attributes:
        x: Of the point where it begins, or ends if it is on the left.
        y: Likewise.
        align: The side of the name that is there.
        baseline: What of its height is there.
        angle: How far it is tilted, in radians, counterclockwise.
    """

    x: float
    y: float
    align: str
    baseline: str
    angle: float = 0.0


def label(place: RingPlace, nodes: int) -> Label:
    """A name's place; where many stand close above and below the ring, they part like rays."""
    side = "left" if place.angle < math.pi else "right"
    if nodes > CLOSE:
        x, y = place.at(CLOSE_RADIUS)
        is_steep = abs(math.cos(place.angle)) > STEEP
        tilt = TILT * is_steep * math.copysign(1.0, x * y)
        return Label(x=x, y=y, align=side, baseline="middle", angle=tilt)
    x, y = place.at(LABEL_RADIUS)
    level = "middle" if abs(y) < 1.1 else "bottom" if y > 0 else "top"
    return Label(x=x, y=y, align="center" if abs(x) < 0.25 else side, baseline=level)


def bands(
    groups: Sequence[Sequence[int]], where: Mapping[int, RingPlace]
) -> dict[str, list[float]]:
    """Start and end angle of each group's band, as Bokeh counts them: from the right, upwards."""
    ends = [(where[group[0]].angle, where[group[-1]].angle) for group in groups if len(groups) > 1]
    margin = 0.35 * 2 * math.pi / (len(where) + len(groups) * GAP) if where else 0.0
    return {
        "start": [math.pi / 2 - last - margin for _, last in ends],
        "end": [math.pi / 2 - first + margin for first, _ in ends],
    }


def arrows(copies: Iterable[CopyRow], where: Mapping[int, RingPlace]) -> dict[str, list[Any]]:
    """One bent arrow for each peer's copy, from the owner to the holder, and its head."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("x0", "y0", "x1", "y1", "cx", "cy", "angle")
    }
    for copy in copies:
        start, end = where[copy.shard].at(1.0), where[copy.position].at(1.0)
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        along = (end[0] - start[0], end[1] - start[1])
        bend = (
            middle[0] * (1 - PULL) - along[1] * BEND,
            middle[1] * (1 - PULL) + along[0] * BEND,
        )
        tail, head = _towards(start, bend), _towards(end, bend)
        angle = math.atan2(head[1] - bend[1], head[0] - bend[0]) - math.pi / 2
        values = (*tail, *head, *bend, angle)
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
    return columns


def _towards(point: tuple[float, float], goal: tuple[float, float]) -> tuple[float, float]:
    """From a node's centre to its rim in the direction of `goal`."""
    away = math.hypot(goal[0] - point[0], goal[1] - point[1]) or 1.0
    share = NODE_RADIUS / away
    return point[0] + share * (goal[0] - point[0]), point[1] + share * (goal[1] - point[1])
