"""A placement: who keeps whose replica, and what can be lost."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gemini_lab.errors import ConfigError
from gemini_lab.placement import (
    Placement,
    enumerated_probability,
    recovery_probability,
    sampled_probability,
)
from gemini_lab_widgets.drawings.canvas import WIDTH, Canvas, Picture, Table

RINGS_UP_TO: Final = 32
"""Nodes beyond which groups are drawn as a grid."""
GRID_UP_TO: Final = 1024
NODE: Final = 16.0
LEFT: Final = 480.0
"""Where the rings end and the numbers begin."""


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
    title = f"Placement: {placement.nodes} nodes, {copies}"
    found = list(chances(placement))
    words = "; ".join(f"{c.lost} lost at once: {_percent(c.value)}" for c in found)
    canvas = Canvas(title=title, description=f"{groups} ({placement.strategy}). {words}")
    arrows = "; an arrow goes from a shard's owner to another holder"
    beside = f"{placement.strategy}, {groups}" + (arrows if placement.replicas > 1 else "")
    if placement.nodes > RINGS_UP_TO:
        beside = f"{placement.strategy}, {groups}; nodes of a group stand together"
    top = canvas.heading(title, beside)
    if placement.nodes > RINGS_UP_TO:
        bottom = _numbers(canvas, placement, found, left=12, top=_grid(canvas, placement, top))
    else:
        bottom = max(
            _rings(canvas, placement, top),
            _numbers(canvas, placement, found, left=LEFT + 20, top=top),
        )
    canvas.notes(bottom + 18, placement.notes, colour="red")
    return Picture(canvas=canvas, table=_table(placement, found), plain=repr(placement))


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


def _rings(canvas: Canvas, placement: Placement, top: float) -> float:
    """Each group as a ring of its own; gives where they end."""
    x, y, row = 12.0, top, 0.0
    places: dict[int, tuple[float, float]] = {}
    for group in placement.groups:
        width, height = _cell(len(group))
        if x > 12 and x + width > LEFT:
            x, y, row = 12.0, y + row + 10, 0.0
        canvas.rect(x, y, width, height, fill="pale", corner=10)
        places |= _seats(group, x + width / 2, y + height / 2)
        x, row = x + width + 10, max(row, height)
    size = NODE if max(map(len, placement.groups)) <= 20 else 13.0
    _arrows(canvas, placement, places, gap=size + 2)
    for position, (at_x, at_y) in places.items():
        kept = placement.kept_by(position)
        tip = f"node {position} keeps shards {', '.join(map(str, kept))}"
        canvas.circle(at_x, at_y, size, fill="paper", stroke="ink", thick=1.8, tip=tip)
        canvas.text(at_x, at_y + 5, position, size=size - 2, anchor="middle", bold=True)
    return y + row


def _arrows(
    canvas: Canvas,
    placement: Placement,
    places: Mapping[int, tuple[float, float]],
    *,
    gap: float,
) -> None:
    """From each owner to the other holders; dashed from one group into another."""
    group_of = {p: group for group in placement.groups for p in group}
    for owner, *holders in placement.holders:
        for holder in holders:
            start, end = places[owner], places[holder]
            is_near = holder in group_of[owner]
            bow = 0.16  # to the right, so that an arrow back does not cover it
            if is_near and math.dist(start, end) > 100:
                bow = 0.28 * _side(start, end, [places[p] for p in group_of[owner]])
            canvas.arrow(
                start, end, stroke="blue" if is_near else "pink", dash="" if is_near else "5 3",
                bow=bow, gap=gap,
            )  # fmt: skip


def _side(
    start: tuple[float, float], end: tuple[float, float], places: Sequence[tuple[float, float]]
) -> int:
    """1 where the middle of `places` lies to the right of an arrow, -1 to its left."""
    middle = [sum(axis) / len(places) for axis in zip(*places, strict=True)]
    across = (end[0] - start[0]) * (middle[1] - start[1])
    along = (end[1] - start[1]) * (middle[0] - start[0])
    return 1 if across >= along else -1


def _cell(size: int) -> tuple[float, float]:
    """Width and height of a group's box."""
    if size == 1:
        return 52, 52
    if size == 2:
        return 144, 62
    side = 2 * (_radius(size) + NODE) + 22
    return side, side


def _radius(size: int) -> float:
    return min(max(42.0, size * 58 / (2 * math.pi)), (LEFT - 34) / 2 - NODE)


def _seats(group: Sequence[int], x: float, y: float) -> dict[int, tuple[float, float]]:
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


def _grid(canvas: Canvas, placement: Placement, top: float) -> float:
    """All nodes as small boxes, those of a group side by side; gives where they end."""
    is_small = placement.nodes > 256
    width, height = (13, 13) if is_small else (32, 22)
    x, y, drawn = 12.0, top, 0
    for group in placement.groups:
        is_ring = len(group) > placement.replicas
        if len(group) * width <= WIDTH - 24 < x + len(group) * width:
            x, y = 12.0, y + height + 5
        for position in group[: GRID_UP_TO - drawn]:
            if x + width > WIDTH - 12:
                x, y = 12.0, y + height + 5
            kept = ", ".join(map(str, placement.kept_by(position)))
            canvas.rect(
                x, y, width - 1, height, fill="pale", stroke="orange" if is_ring else "blue",
                tip="" if is_small else f"node {position} keeps shards {kept}",
            )  # fmt: skip
            if not is_small:
                canvas.text(x + width / 2 - 0.5, y + 16, position, size=13, anchor="middle")
            x += width
        drawn += len(group)
        x += 6
    y = canvas.legend(12, y + height + 24, list(_grid_words(placement)))
    return y + 14


def _grid_words(placement: Placement) -> Iterator[tuple[str, str]]:
    sizes = [len(group) for group in placement.groups]
    m = placement.replicas
    if any(size <= m for size in sizes):
        yield "blue", f"group of {m}: each keeps all shards of its group"
    for size in sorted({size for size in sizes if size > m}):
        yield "orange", f"{placement.strategy if len(sizes) == 1 else 'ring'} of {size} nodes"
    if placement.nodes > GRID_UP_TO:
        yield "paper", f"the first {GRID_UP_TO} of {placement.nodes} nodes are drawn"


def _numbers(
    canvas: Canvas, placement: Placement, found: Sequence[Chance], *, left: float, top: float
) -> float:
    """Load, and the chances as bars; gives where they end."""
    loads = placement.loads
    low, high = min(loads), max(loads)
    load = f"{low}" if low == high else f"{low} to {high}"
    canvas.text(left, top + 14, f"Every node keeps {load} shard{'s' if high > 1 else ''}.")
    always = placement.replicas - 1
    y = top + 38
    if always:
        canvas.text(left, y, f"With any {always} lost all survive.")
        y += 28
    canvas.text(left, y, "Chance that all survive:", bold=True)
    for chance in found:
        y += 28
        canvas.text(left, y, f"{chance.lost} lost")
        canvas.rect(left + 58, y - 13, 110, 17, fill="pale", stroke="rule", tip=chance.how)
        canvas.rect(left + 58, y - 13, 110 * chance.value, 17, fill="green", tip=chance.how)
        sign = "" if chance.how == "exact" else "≈ "
        canvas.text(left + 176, y, sign + _percent(chance.value), bold=True)
    return y + 6


def _table(placement: Placement, found: Sequence[Chance]) -> Table:
    rows = [(f"{c.lost} nodes lost at once", f"{_percent(c.value)} ({c.how})") for c in found]
    for position, holders in enumerate(placement.holders[:RINGS_UP_TO]):
        rows.append((f"shard {position}", "on nodes " + ", ".join(map(str, holders))))
    if placement.nodes > RINGS_UP_TO:
        rows.append(("further shards", f"{placement.nodes - RINGS_UP_TO}"))
    return Table(head=("what", "all shards survive with, or: where it is"), rows=rows)


def _percent(value: float) -> str:
    """A chance that reads 100 % only where it is 1."""
    if value in {0.0, 1.0}:
        return f"{value:.0%}"
    digits = 1
    while digits < 9 and float(f"{value:.{digits + 2}f}") in {0.0, 1.0}:
        digits += 1
    return f"{value:.{digits}%}"
