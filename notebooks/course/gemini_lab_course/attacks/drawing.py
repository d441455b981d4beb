"""What an attack found: a case with the failures that break a stage, or figures side by side."""

from collections.abc import Iterator, Sequence
from typing import Final

from gemini_lab_widgets.pictures import palette
from gemini_lab_widgets.pictures.board import (
    LEFT,
    MARGIN,
    WIDTH,
    Board,
    inside,
    rows,
    seconds_axis,
)
from gemini_lab_widgets.pictures.picture import Picture, Table
from gemini_lab_widgets.pictures.placement import NODE, draw_arrows, ring_points, ring_radius
from gemini_lab_widgets.replica_layout import ring_places
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

from gemini_lab.pipeliner.schedule import Chunk
from gemini_lab.placement import Placement
from gemini_lab_bench.world.story_picture import draw_story, story_table
from gemini_lab_course.attacks.chunks import ChunkCase
from gemini_lab_course.attacks.outcome import BesideOurs, Counterexample, Withstood, counted
from gemini_lab_course.attacks.placements import PlacementCase
from gemini_lab_course.attacks.recoveries import NEW, OLD, RecoveryCase
from gemini_lab_course.attacks.roots import RootCase
from gemini_lab_course.attacks.stories import Story

DRAWN_UP_TO: Final = 24
"""Nodes of a placement that is drawn."""
CELL: Final = (86.0, 34.0)
"""Of a node's copy of a shard."""
HATCH: Final = "////"
STORAGE: Final = "storage"
"""The persistent tier's column."""


def draw_counterexample(found: Counterexample) -> Picture:
    """Draw the case, the answer, and what is wrong with it."""
    board = Board(
        title=f"Broken: {found.stage}",
        beside=str(found.case),
        description=found.words,
    )
    board.notes([found.fault.why], colour=palette.FAILURE, size=14)
    if found.tried:
        board.notes([f"{counted(found.tried, 'smaller case')} went well."])
    board.y += 6
    match found.case, found.answer:
        case PlacementCase(), Placement(holders=holders):
            _placement(board, found, holders)
        case PlacementCase(), tuple(holders):
            _placement(board, found, holders)
        case ChunkCase() as chunks, tuple(answer):
            _chunks(board, chunks, answer, broken=found.fault.spans)
        case RecoveryCase() as recovery, _:
            _recovery(board, recovery, broken=found.fault.shards)
        case RootCase(), Story() as story:
            draw_story(board, story.nodes, story.moments)
            table = story_table(story.moments)
            return board.picture(tables=[table], plain=repr(found), summary="all that happened")
    lines = [(name, str(given)) for name, given in found.case.arguments.items()]
    asked = Table(head=("asked with", ""), rows=lines)
    return board.picture(tables=[asked], plain=repr(found), summary="what it was asked")


def draw_withstood(result: Withstood) -> Picture:
    """Draw the figures of the attacked function with the reference's and the optimum's."""
    board = Board(
        title=f"Withstood: {result.stage}",
        beside=result.words,
        description=f"{result.words}. {'; '.join(map(_told, result.figures))}",
    )
    names = ("yours", "reference", "optimum, or a bound")
    colours = (palette.BLUE, palette.GREY, palette.GREEN)
    for figure in result.figures:
        board.text(MARGIN, 18, figure.what, size=14, bold=True)
        board.y += 22
        values = figure.yours, figure.reference, figure.optimum
        panel = board.axes(66, left=LEFT, right=WIDTH - 120, above=4, below=8)
        rows(panel, names)
        panel.set(xlim=(0, max(*values, 1e-12)), xticks=[])
        for row, (value, colour) in enumerate(zip(values, colours, strict=True)):
            panel.barh(row, value, height=0.74, color=colour)
            panel.annotate(
                figure.said(value),
                (value, row),
                (8, 0),
                weight="bold",
                textcoords="offset points",
                va="center_baseline",
            )
    lines = [
        (f.what, *(f.said(each) for each in (f.yours, f.reference, f.optimum)))
        for f in result.figures
    ]
    return board.picture(tables=[Table(head=("figure", *names), rows=lines)], plain=repr(result))


def _told(figure: BesideOurs) -> str:
    yours, reference = figure.said(figure.yours), figure.said(figure.reference)
    return f"{figure.what}: {yours}, reference {reference}"


# -- a placement ----------------------------------------------------------------------------------


def _placement(board: Board, found: Counterexample, holders: Sequence[Sequence[int]]) -> None:
    """Draw nodes in a ring, an arrow from each owner to the holders, a cross at the lost."""
    if len(holders) > DRAWN_UP_TO:
        return
    radius = ring_radius(len(holders))
    plane = board.plane(2 * (radius + NODE) + 30)
    where = ring_places((), len(holders))
    for is_gone in (False, True):
        copies = [
            (shard, holder)
            for shard, kept in enumerate(holders)
            if (shard in found.fault.shards) is is_gone
            for holder in {*kept} & where.keys() - {shard}
        ]
        draw_arrows(
            plane,
            copies,
            where,
            radius=radius,
            width=2.4 if is_gone else 1.4,
            colour=palette.FAILURE if is_gone else palette.BLUE,
            is_dashed=is_gone,
        )
    for position, (x, y) in ring_points(where, radius).items():
        is_lost = f"node-{position}" in found.fault.lost
        colour = palette.FAILURE if is_lost else palette.LIGHT.ink
        fill = palette.LIGHT.pale if is_lost else palette.LIGHT.paper
        node = Circle((x, y), NODE, facecolor=fill, edgecolor=colour, linewidth=1.8)
        plane.add_patch(node)
        board.tip(node, f"node-{position}{', lost' if is_lost else ''}")
        plane.text(x, y, str(position), size=14, ha="center", va="center_baseline", weight="bold")
        if is_lost:
            plane.text(x + NODE + 1, y - NODE + 4, "✕", color=colour, size=16, weight="bold")
    board.notes(["An arrow goes from a shard's owner to another holder. With a cross: lost."])


# -- a chunk schedule -----------------------------------------------------------------------------


def _chunks(
    board: Board, case: ChunkCase, chunks: Sequence[Chunk], *, broken: Sequence[int]
) -> None:
    """Draw a row for each idle span with its chunks end to end, and one for the rest."""
    spans = case.profile.idle_spans
    where: list[int | None] = [*range(len(spans)), None]
    names = [f"idle span {number}" for number in range(len(spans))] + ["left over"]
    sent = [[chunk for chunk in chunks if chunk.span == number] for number in where]
    lengths_s = [span.duration_s for span in spans]
    taken_s = [sum(max(0.0, case.sending_s(chunk)) for chunk in some) for some in sent]
    panel = board.axes(34 * len(names), right=WIDTH - 40)
    rows(panel, names)
    seconds_axis(panel, 1.05 * max(*lengths_s, *taken_s, 1.0) if lengths_s else max(taken_s) or 1)
    for row, length_s in enumerate(lengths_s):
        is_broken = row in broken
        panel.barh(
            row,
            length_s,
            height=0.8,
            color=palette.LIGHT.pale,
            edgecolor=palette.FAILURE if is_broken else palette.LIGHT.rule,
            linewidth=2.4 if is_broken else 1,
            hatch=None if spans[row].before_update else HATCH,
        )
    for row, some in enumerate(sent):
        _blocks(board, panel, row, some, case)
    late = " Hatched: behind the update." if case.has_late_span else ""
    board.notes([f"Grey: how long a span is idle. Coloured: chunks on the wire, in bytes.{late}"])


def _blocks(board: Board, panel: Axes, row: int, chunks: Sequence[Chunk], case: ChunkCase) -> None:
    start_s = 0.0
    for chunk in chunks:
        length_s = max(0.0, case.sending_s(chunk))
        colour = palette.FELT
        if chunk.span is not None:
            colour = palette.REPLICAS[(chunk.replica - 1) % len(palette.REPLICAS)]
        bar = panel.barh(
            row,
            length_s,
            left=start_s,
            height=0.5,
            color=colour,
            edgecolor=palette.LIGHT.paper,
            linewidth=0.8,
        )
        first, last = chunk.offset_bytes, chunk.offset_bytes + chunk.size_bytes
        board.tip(bar[0], f"replica {chunk.replica}, bytes {first} to {last}")
        inside(panel, start_s + length_s / 2, row, str(chunk.size_bytes), colour=colour)
        start_s += length_s


# -- a recovery plan ------------------------------------------------------------------------------


def _recovery(board: Board, case: RecoveryCase, *, broken: Sequence[int]) -> None:
    """Draw which node, and the tier, has which version of which shard; lost are dashed."""
    nodes = [*case.members, *case.spares, *([STORAGE] if case.stored else [])]
    wide, tall = CELL
    wide = min(wide, (WIDTH - LEFT) / max(1, len(nodes)))
    plane = board.plane(tall * (case.placement.nodes + 1) + 6)
    for column, node in enumerate(nodes):
        is_lost = _is_lost(case, node)
        role = " lost" if is_lost else (" spare" if node in case.spares else "")
        plane.text(
            130 + wide * (column + 0.5),
            tall / 2,
            f"{node}{role}" if wide > 80 else node,
            ha="center",
            va="center_baseline",
            color=palette.FAILURE if is_lost else palette.LIGHT.ink,
            weight="bold" if is_lost else "normal",
        )
    for shard in range(case.placement.nodes):
        y = tall * (shard + 1)
        is_broken = shard in broken
        plane.text(
            MARGIN,
            y + tall / 2,
            f"shard {shard}",
            va="center_baseline",
            color=palette.FAILURE if is_broken else palette.LIGHT.ink,
            weight="bold" if is_broken else "normal",
        )
        for column, node in enumerate(nodes):
            for place, version in enumerate(_versions(case, shard, node)):
                corner = 130 + wide * (column + place / 2), y
                _copy(plane, corner, wide / 2, version, is_lost=_is_lost(case, node))
    meanings = [(_colour(OLD), f"version {OLD}, whole before the failure")]
    if case.arrived:
        meanings.append((_colour(NEW), f"version {NEW}, on its way"))
    meanings += [(_colour(each), f"version {each}, in the persistent tier") for each in case.stored]
    if case.lost:
        meanings.append((palette.LIGHT.pale, "lost with its node"))
    board.legend(meanings)


def _is_lost(case: RecoveryCase, node: str) -> bool:
    return node not in case.living and node != STORAGE


def _colour(version: int) -> str:
    return {OLD: palette.BLUE, NEW: palette.ORANGE}.get(version, palette.YELLOW)


def _versions(case: RecoveryCase, shard: int, node: str) -> Iterator[int]:
    if node == STORAGE:
        yield from case.stored
    for copy in case.copies:
        if (copy.shard, copy.node) == (shard, node):
            yield copy.version


def _copy(
    plane: Axes, corner: tuple[float, float], wide: float, version: int, *, is_lost: bool
) -> None:
    x, y = corner
    colour = _colour(version)
    fill = palette.LIGHT.pale if is_lost else colour
    plane.add_patch(
        Rectangle(
            (x + 2, y + 3),
            wide - 4,
            CELL[1] - 6,
            facecolor=fill,
            edgecolor=colour,
            linestyle=(0, (4, 2)) if is_lost else "-",
        )
    )
    inside(plane, x + wide / 2, y + CELL[1] / 2, str(version), colour=fill, bold=not is_lost)
