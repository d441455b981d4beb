"""A placement: who keeps whose replica, and what can be lost."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from gemini_lab.errors import ConfigError
from gemini_lab.placement import (
    Placement,
    enumerated_probability,
    recovery_probability,
    sampled_probability,
)
from gemini_lab_widgets.pictures import palette
from gemini_lab_widgets.pictures.board import LINE, MARGIN, WIDTH, Board, rows
from gemini_lab_widgets.pictures.picture import Picture, Table

RINGS_UP_TO: Final = 32
"""Nodes beyond which groups are drawn as a grid."""
GRID_UP_TO: Final = 1024
NODE: Final = 16.0
BOW: Final = 0.16  # of an arrow, to the right, so that one back does not cover it
LEFT: Final = 480.0
"""Where the rings end and the numbers begin."""
BAR: Final = 24.0
"""Height of a chance's row."""
Place = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """How likely all shards survive the loss of `lost` nodes at once, and how that was found."""

    lost: int
    value: float
    how: str


def draw(placement: Placement) -> Picture:
    """The picture of a placement."""
    copies = f"{placement.replicas} cop{'y' if placement.replicas == 1 else 'ies'} of each shard"
    groups = f"{len(placement.groups)} group{'s' if len(placement.groups) != 1 else ''}"
    found = list(chances(placement))
    words = "; ".join(f"{c.lost} lost at once: {_percent(c.value)}" for c in found)
    is_large = placement.nodes > RINGS_UP_TO
    beside = f"{placement.strategy}, {groups}"
    if is_large:
        beside += "; nodes of a group stand together"
    elif placement.replicas > 1:
        beside += "; an arrow goes from a shard's owner to another holder"
    board = Board(
        title=f"Placement: {placement.nodes} nodes, {copies}",
        beside=beside,
        description=f"{groups} ({placement.strategy}). {words}",
    )
    if is_large:
        _grid(board, placement)
        board.y += 6
        _numbers(board, placement, found, left=MARGIN)
    else:
        top = board.y
        _rings(board, placement)
        bottom, board.y = board.y, top
        _numbers(board, placement, found, left=LEFT + 20)
        board.y = max(bottom, board.y)
    board.notes(placement.notes, colour=palette.FAILURE)
    return board.picture(tables=[_table(placement, found)], plain=repr(placement))


def chances(placement: Placement, *, more: int = 3) -> Iterator[Chance]:
    """For k from m on, which is the first number of losses that can be fatal."""
    last = min(max(placement.replicas, placement.nodes - 1), placement.replicas + more)
    for lost in range(placement.replicas, last + 1):
        try:
            yield Chance(lost=lost, value=float(recovery_probability(placement, lost)), how="exact")
            continue
        except ConfigError:  # no closed form
            pass
        if math.comb(placement.nodes, lost) <= 20_000:
            exact = float(enumerated_probability(placement, lost))
            yield Chance(lost=lost, value=exact, how="exact")
        else:
            sampled = sampled_probability(placement, lost, trials=2_000)
            how = f"sampled, {sampled.low:.1%} to {sampled.high:.1%}"
            yield Chance(lost=lost, value=sampled.value, how=how)


def _rings(board: Board, placement: Placement) -> None:
    """Each group as a ring of its own."""
    boxes, height = _boxes([cell(len(group)) for group in placement.groups])
    plane = board.plane(height)
    places: dict[int, Place] = {}
    for group, (x, y, wide, tall) in zip(placement.groups, boxes, strict=True):
        plane.add_patch(
            FancyBboxPatch(
                (x + 8, y + 8),
                wide - 16,
                tall - 16,
                boxstyle="round,pad=8,rounding_size=10",
                facecolor=palette.LIGHT.pale,
                edgecolor="none",
            )
        )
        places |= seats(group, x + wide / 2, y + tall / 2)
    size = NODE if max(map(len, placement.groups)) <= 20 else 13.0
    _arrows(plane, placement, places, gap=size + 2)
    for position, (x, y) in places.items():
        node = Circle(
            (x, y), size, facecolor=palette.LIGHT.paper, edgecolor=palette.LIGHT.ink, linewidth=1.8
        )
        plane.add_patch(node)
        kept = ", ".join(map(str, placement.kept_by(position)))
        board.tip(node, f"node {position} keeps shards {kept}")
        plane.text(
            x, y, str(position), size=size - 2, ha="center", va="center_baseline", weight="bold"
        )


def _boxes(cells: Sequence[Place]) -> tuple[list[tuple[float, float, float, float]], float]:
    """Where boxes of these sizes stand, line by line: left, top, width, height; and how deep."""
    boxes = []
    x, y, line = MARGIN, 0.0, 0.0
    for wide, tall in cells:
        if x > MARGIN and x + wide > LEFT:
            x, y, line = MARGIN, y + line + 10, 0.0
        boxes.append((x, y, wide, tall))
        x, line = x + wide + 10, max(line, tall)
    return boxes, y + line


def _arrows(plane: Axes, placement: Placement, places: Mapping[int, Place], *, gap: float) -> None:
    """From each owner to the other holders; dashed from one group into another."""
    group_of = {p: group for group in placement.groups for p in group}
    for owner, *holders in placement.holders:
        for holder in holders:
            start, end = places[owner], places[holder]
            is_near = holder in group_of[owner]
            bow = BOW
            if is_near and math.dist(start, end) > 100:
                bow = 0.28 * _side(start, end, [places[p] for p in group_of[owner]])
            colour = palette.BLUE if is_near else palette.PINK
            arrow(plane, start, end, bow=bow, gap=gap, colour=colour, is_dashed=not is_near)


def arrow(
    plane: Axes,
    start: Place,
    end: Place,
    *,
    bow: float = BOW,
    gap: float,
    width: float = 1.6,
    colour: str,
    is_dashed: bool,
) -> None:
    """From an owner to a holder, `gap` from the middle of both."""
    plane.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>,head_length=.5,head_width=.26",
            mutation_scale=14,
            connectionstyle=f"arc3,rad={bow}",
            shrinkA=gap,
            shrinkB=gap,
            linewidth=width,
            color=colour,
            linestyle=(0, (4, 2)) if is_dashed else "-",
        )
    )


def _side(start: Place, end: Place, places: Sequence[Place]) -> int:
    """1 where the middle of `places` lies to the right of an arrow, -1 to its left."""
    middle = [sum(axis) / len(places) for axis in zip(*places, strict=True)]
    across = (end[0] - start[0]) * (middle[1] - start[1])
    along = (end[1] - start[1]) * (middle[0] - start[0])
    return 1 if across >= along else -1


def cell(size: int) -> Place:
    """Width and height of a group's box."""
    if size == 1:
        return 52, 52
    if size == 2:
        return 144, 62
    side = 2 * (_radius(size) + NODE) + 22
    return side, side


def _radius(size: int) -> float:
    return min(max(42.0, size * 58 / (2 * math.pi)), (LEFT - 34) / 2 - NODE)


def seats(group: Sequence[int], x: float, y: float) -> dict[int, Place]:
    """Where the members of a group stand around its middle, in sending order."""
    if len(group) == 1:
        return {group[0]: (x, y)}
    if len(group) == 2:
        return {group[0]: (x - 46, y), group[1]: (x + 46, y)}
    radius = _radius(len(group))
    angles = [2 * math.pi * place / len(group) - math.pi / 2 for place in range(len(group))]
    return {
        position: (x + radius * math.cos(angle), y + radius * math.sin(angle))
        for position, angle in zip(group, angles, strict=True)
    }


def _grid(board: Board, placement: Placement) -> None:
    """All nodes as small boxes, those of a group side by side."""
    is_small = placement.nodes > 256
    wide, tall = (13, 13) if is_small else (32, 22)
    places, height = _seats_in_lines(placement, wide, tall)
    plane = board.plane(height)
    ring = {p for group in placement.groups if len(group) > placement.replicas for p in group}
    for colour, is_ring in ((palette.BLUE, False), (palette.ORANGE, True)):
        boxes = [
            Rectangle(place, wide - 2, tall)
            for position, place in places.items()
            if (position in ring) is is_ring
        ]
        plane.add_collection(
            PatchCollection(boxes, facecolor=palette.LIGHT.pale, edgecolor=colour, linewidth=1.4)
        )
    for position, (x, y) in places.items():
        if is_small:
            break
        plane.text(x + wide / 2 - 1, y + tall / 2, str(position), ha="center", va="center_baseline")
    board.y += 8
    board.legend(list(_grid_words(placement)))


def _seats_in_lines(
    placement: Placement, wide: float, tall: float
) -> tuple[dict[int, Place], float]:
    """Where the first `GRID_UP_TO` nodes stand, group after group; and how deep that is."""
    x, y = MARGIN, 2.0
    places: dict[int, Place] = {}
    for group in placement.groups:
        if len(group) * wide <= WIDTH - 2 * MARGIN < x + len(group) * wide:
            x, y = MARGIN, y + tall + 5
        for position in group[: GRID_UP_TO - len(places)]:
            if x + wide > WIDTH - MARGIN:
                x, y = MARGIN, y + tall + 5
            places[position] = x, y
            x += wide
        x += 6
    return places, y + tall + 2


def _grid_words(placement: Placement) -> Iterator[tuple[str, str]]:
    sizes = [len(group) for group in placement.groups]
    m = placement.replicas
    if any(size <= m for size in sizes):
        yield palette.BLUE, f"group of {m}: each keeps all shards of its group"
    for size in sorted({size for size in sizes if size > m}):
        yield palette.ORANGE, f"{placement.strategy if len(sizes) == 1 else 'ring'} of {size} nodes"
    if placement.nodes > GRID_UP_TO:
        yield palette.LIGHT.paper, f"the first {GRID_UP_TO} of {placement.nodes} nodes are drawn"


def _numbers(board: Board, placement: Placement, found: Sequence[Chance], *, left: float) -> None:
    """Load, and the chances as bars."""
    loads = placement.loads
    low, high = min(loads), max(loads)
    load = f"{low}" if low == high else f"{low} to {high}"
    always = placement.replicas - 1
    lines = [f"Every node keeps {load} shard{'s' if high > 1 else ''}."]
    if always:
        lines.append(f"With any {always} lost all survive.")
    for line in lines:
        board.text(left, 16, line, size=14)
        board.y += LINE + 2
    if not found:
        return
    board.text(left, 18, "Chance that all survive:", size=14, bold=True)
    board.y += LINE
    panel = board.axes(BAR * len(found), left=left + 58, right=left + 168, above=4, below=6)
    rows(panel, [f"{chance.lost} lost" for chance in found], width=50)
    panel.set(xlim=(0, 1), xticks=[])
    for row, chance in enumerate(found):
        panel.barh(
            row,
            1,
            height=0.7,
            color=palette.LIGHT.pale,
            edgecolor=palette.LIGHT.rule,
            linewidth=1,
            clip_on=False,
        )
        bar = panel.barh(row, chance.value, height=0.7, color=palette.GREEN)
        board.tip(bar[0], chance.how)
        sign = "" if chance.how == "exact" else "≈ "
        panel.annotate(
            sign + _percent(chance.value),
            (1, row),
            (8, 0),
            weight="bold",
            textcoords="offset points",
            va="center_baseline",
        )


def _table(placement: Placement, found: Sequence[Chance]) -> Table:
    lines = [(f"{c.lost} nodes lost at once", f"{_percent(c.value)} ({c.how})") for c in found]
    for position, holders in enumerate(placement.holders[:RINGS_UP_TO]):
        lines.append((f"shard {position}", "on nodes " + ", ".join(map(str, holders))))
    if placement.nodes > RINGS_UP_TO:
        lines.append(("further shards", f"{placement.nodes - RINGS_UP_TO}"))
    return Table(head=("what", "all shards survive with, or: where it is"), rows=lines)


def _percent(value: float) -> str:
    """A chance that reads 100 % only where it is 1."""
    if value in {0.0, 1.0}:
        return f"{value:.0%}"
    digits = 1
    while digits < 9 and float(f"{value:.{digits + 2}f}") in {0.0, 1.0}:
        digits += 1
    return f"{value:.{digits}%}"
