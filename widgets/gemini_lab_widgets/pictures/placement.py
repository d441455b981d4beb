"""A placement: the replica map of a run that has only begun, and the losses that it survives."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, PathPatch, Wedge
from matplotlib.path import Path

from gemini_lab.placement import Placement
from gemini_lab.report.tables.replica_map import ReplicaTable, Survival, planned
from gemini_lab_widgets import replica_layout as layout
from gemini_lab_widgets.pictures import palette
from gemini_lab_widgets.pictures.board import LINE, MARGIN, WIDTH, Board, rows
from gemini_lab_widgets.pictures.picture import Picture, Table

NODE: Final = 16.0
"""Radius of a node, in pixels."""
APART: Final = 80.0
"""Between two nodes on the ring."""
LEFT: Final = 480.0
"""Where the ring ends and the numbers begin."""
BAR: Final = 24.0
"""Height of a chance's row."""
APART_ROWS: Final = 0.55
"""Between two lines of a large map, in rows."""
NUMBERED: Final = 600
"""Copies whose numbers are drawn; beyond that a cell is small."""


def draw(placement: Placement) -> Picture:
    """Return the picture of a placement."""
    table = planned(placement)
    copies = f"{placement.replicas} cop{'y' if placement.replicas == 1 else 'ies'} of each shard"
    groups = f"{len(placement.groups)} group{'s' if len(placement.groups) != 1 else ''}"
    found = [one for one in table.survival if one.lost >= placement.replicas]
    words = "; ".join(f"{one.lost} lost at once: {one.percent}" for one in found)
    is_round = placement.nodes <= layout.RING_NODES
    beside = f"{placement.strategy}, {groups}"
    if not is_round:
        beside += "; a column is a shard, and a number the node that keeps the copy"
    elif placement.replicas > 1:
        beside += "; an arrow goes from a shard's owner to another holder"
    board = Board(
        title=f"Placement: {placement.nodes} nodes, {copies}",
        beside=beside,
        description=f"{groups} ({placement.strategy}). {words}",
    )
    if is_round:
        top = board.y
        _ring(board, placement, table)
        bottom, board.y = board.y, top
        _numbers(board, placement, found, left=LEFT + 20)
        board.y = max(bottom, board.y)
    else:
        _cells(board, table)
        board.y += 6
        _numbers(board, placement, found, left=MARGIN)
    board.notes(placement.notes, colour=palette.FAILURE)
    return board.picture(tables=[_table(placement, found)], plain=repr(placement))


def _ring(board: Board, placement: Placement, table: ReplicaTable) -> None:
    """Draw nodes in a ring, groups on bands, and arrows; dashed ones go into another group."""
    radius = ring_radius(placement.nodes)
    plane = board.plane(2 * (radius + NODE) + 30)
    where = layout.ring_places(placement.groups, placement.nodes)
    for first, last in layout.ring_bands(placement.groups, where):
        angles = (math.degrees(angle) - 90 for angle in (first, last))  # the plane's y goes down
        band = Wedge(_middle(radius), radius + 24, *angles, width=48, color=palette.LIGHT.pale)
        plane.add_patch(band)
    group_of = {p: group for group in placement.groups for p in group}
    peers = [(copy.shard, copy.position) for copy in table.copies if not copy.is_own]
    near = [(owner, holder) for owner, holder in peers if holder in group_of[owner]]
    far = [(owner, holder) for owner, holder in peers if holder not in group_of[owner]]
    draw_arrows(plane, near, where, radius=radius, colour=palette.BLUE)
    draw_arrows(plane, far, where, radius=radius, colour=palette.PINK, is_dashed=True)
    for position, (x, y) in ring_points(where, radius).items():
        node = Circle(
            (x, y), NODE, facecolor=palette.LIGHT.paper, edgecolor=palette.LIGHT.ink, linewidth=1.8
        )
        plane.add_patch(node)
        kept = ", ".join(map(str, placement.kept_by(position)))
        board.tip(node, f"node {position} keeps shards {kept}")
        plane.text(x, y, str(position), size=14, ha="center", va="center_baseline", weight="bold")


def ring_radius(nodes: int) -> float:
    """Return the radius of a ring of so many nodes, in pixels."""
    return min(max(76.0, nodes * APART / 6.28), (LEFT - 2 * MARGIN) / 2 - NODE - 10)


def _middle(radius: float) -> tuple[float, float]:
    return max(MARGIN + radius + NODE + 10, LEFT / 2), radius + NODE + 15


def ring_points(
    where: Mapping[int, layout.RingPlace], radius: float
) -> dict[int, tuple[float, float]]:
    """Return the node of each position, in pixels from the plane's top left."""
    points = {position: place.at(radius) for position, place in where.items()}
    (left, top) = _middle(radius)
    return {position: (left + x, top - y) for position, (x, y) in points.items()}


def draw_arrows(
    plane: Axes,
    ends: Sequence[tuple[int, int]],
    where: Mapping[int, layout.RingPlace],
    *,
    radius: float,
    colour: str,
    width: float = 1.6,
    is_dashed: bool = False,
) -> None:
    """Draw arrows from owners to holders, from rim to rim."""
    left, top = _middle(radius)
    for owner, holder in ends:
        arrow = layout.ring_arrow(where[owner], where[holder], rim=(NODE + 3) / radius)
        points = [
            (left + radius * x, top - radius * y) for x, y in (arrow.tail, arrow.bend, arrow.head)
        ]
        plane.add_patch(
            FancyArrowPatch(
                path=Path(points, [Path.MOVETO, Path.CURVE3, Path.CURVE3]),
                arrowstyle="-|>,head_length=.5,head_width=.26",
                mutation_scale=14,
                linewidth=width,
                color=colour,
                linestyle=(0, (4, 2)) if is_dashed else "-",
            )
        )


def _cells(board: Board, table: ReplicaTable) -> None:
    """Draw every copy of a large placement, the owner's on top of its shard's column."""
    by_shard, left_out = layout.shown_shards(table)
    is_numbered = len(table.copies) <= NUMBERED
    wide, tall = (28.0, 17.0) if is_numbered else (13.0, 9.0)
    columns = int((WIDTH - 2 * MARGIN) / wide)
    most = max(map(len, by_shard.values()), default=1)
    boxes: dict[str, list[tuple[float, float, float, float]]] = {
        palette.LIGHT.pale: [],
        palette.BLUE: [],
        palette.SKY: [],
    }
    numbers: list[tuple[float, float, str, str]] = []
    at, top = 0.0, 0.0
    for group in layout.together(table, by_shard):
        if at and at + len(group) > columns:
            at, top = 0.0, top + most + APART_ROWS
        for shard in group:
            if at + 1 > columns:  # a group longer than a line goes on in the next one
                at, top = 0.0, top + most + APART_ROWS
            boxes[palette.LIGHT.pale].append((at, top, at + 1, top + most))
            for row, copy in enumerate(by_shard[shard]):
                colour = palette.BLUE if copy.is_own else palette.SKY
                x, y = at + 0.5, top + row + 0.5
                boxes[colour].append((x - 0.46, y - 0.44, x + 0.46, y + 0.44))
                numbers.append((x, y, str(copy.position), palette.on(colour)))
            at += 1
        at += layout.GROUP_GAP
    plane = board.plane(tall * (top + most) + 4)
    for x, y, number, ink in numbers if is_numbered else ():
        place = MARGIN + wide * x, 2 + tall * y
        plane.text(*place, number, size=11, color=ink, ha="center", va="center_baseline")
    for colour, some in boxes.items():  # one path a colour: a page holds thousands of cells
        corners = [((x, y), (to, y), (to, end), (x, end), (x, y)) for x, y, to, end in some]
        points = [(MARGIN + wide * x, 2 + tall * y) for each in corners for x, y in each]
        codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(some)
        plane.add_patch(PathPatch(Path(points, codes), facecolor=colour, edgecolor="none"))
    meanings = [(palette.BLUE, "the owner's copy"), (palette.SKY, "a replica")]
    if left_out:
        meanings.append((palette.LIGHT.paper, f"{left_out} further shards are not drawn"))
    board.y += 8
    board.legend(meanings)


def _numbers(board: Board, placement: Placement, found: Sequence[Survival], *, left: float) -> None:
    """Write how many shards a node keeps, and draw the chances as bars."""
    low, high = min(placement.loads), max(placement.loads)
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
        bar = panel.barh(row, chance.chance, height=0.7, color=palette.GREEN)
        board.tip(bar[0], chance.how)
        panel.annotate(
            ("≈ " if chance.how == "sampled" else "") + chance.percent,
            (1, row),
            (8, 0),
            weight="bold",
            textcoords="offset points",
            va="center_baseline",
        )


def _table(placement: Placement, found: Sequence[Survival]) -> Table:
    lines = [(f"{c.lost} nodes lost at once", f"{c.percent} ({c.how})") for c in found]
    for position, holders in enumerate(placement.holders[: layout.RING_NODES]):
        lines.append((f"shard {position}", "on nodes " + ", ".join(map(str, holders))))
    if placement.nodes > layout.RING_NODES:
        lines.append(("further shards", f"{placement.nodes - layout.RING_NODES}"))
    return Table(head=("what", "all shards survive with, or: where it is"), rows=lines)
