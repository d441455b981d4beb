"""Recoveries: what is planned to be loaded from where, and how long each step took."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from gemini_lab.recovery.plan import RecoveryPlan, Source
from gemini_lab.report.recovery import Receipt, Recovery, Step, kept_words
from gemini_lab.units import format_bytes, format_seconds
from gemini_lab_widgets.pictures import palette
from gemini_lab_widgets.pictures.board import (
    MARGIN,
    WIDTH,
    Board,
    fit,
    inside,
    rows,
    seconds_axis,
)
from gemini_lab_widgets.pictures.picture import Picture, Table

ROWS: Final = 16
"""Shards drawn one by one; of more, those from a node's own memory are only counted."""
TALL: Final = 34.0
"""Of such a row, in pixels."""
TALL_WITH_NAME: Final = 46.0
"""Of a recovery with its name above its bar."""
THICK: Final = 0.45
"""Its bar's share of that."""
MEANINGS: Final = {
    "local": "the node's own memory",
    "peer": "another node's memory",
    "persistent": "the persistent tier",
    "start": "nothing: training starts from scratch",
}
"""Where a shard can be loaded from."""


def draw_plan(plan: RecoveryPlan) -> Picture:
    """Return the picture of a recovery plan."""
    title = "Recovery plan: " + (
        "training starts from scratch"
        if plan.version is None
        else f"all ranks load version {plan.version}"
    )
    counts = Counter[str](source.tier for source in plan.sources)
    said = _counted(counts)
    board = Board(title=title, beside=plan.reason, description=f"{plan.reason}. {said}")
    per_node = max(1, len(plan.sources) // max(1, len(plan.members)))
    drawn = list(plan.sources)
    if len(drawn) > ROWS:
        drawn = [source for source in drawn if source.tier != "local"][:ROWS]
    plane = board.plane(TALL * len(drawn)) if drawn else None
    for number, source in enumerate(drawn):
        assert plane is not None
        _row(board, plane, source, plan.members[source.shard // per_node], TALL * number)
    if len(drawn) < len(plan.sources):
        board.notes([f"and {len(plan.sources) - len(drawn)} shards more; in all {said}"])
    board.y += 6
    board.legend([(palette.TIERS[tier], MEANINGS[tier]) for tier in MEANINGS if counts[tier]])
    board.notes(_after(plan))
    return board.picture(tables=[_plan_table(plan, per_node)], plain=repr(plan))


def draw_recovery(recovery: Recovery) -> Picture:
    """Return the picture of a recovery that happened."""
    board = Board(title=f"Recovery {recovery.number}: {recovery.what}", beside=_outcome(recovery))
    if recovery.steps:
        _steps(board, recovery.steps)
    lines = [*map(str, recovery.importing)]
    lines += [f"stepped over {rejected}" for rejected in recovery.rejected]
    if recovery.kept:
        lines = [kept_words(recovery.kept), *lines]
    board.notes([_paid(recovery), *lines] if recovery.version is not None else lines)
    return board.picture(tables=[_recovery_table(recovery)], plain=repr(recovery))


def _steps(board: Board, steps: Sequence[Step]) -> None:
    """Draw one row a step, on the recovery's own clock."""
    begin_s = min(step.start_s for step in steps)
    whole_s = max(step.end_s for step in steps) - begin_s
    panel = board.axes(27 * len(steps), left=130, right=WIDTH - 110)
    rows(panel, [step.label for step in steps], width=110)
    seconds_axis(panel, whole_s)
    for row, step in enumerate(steps):
        panel.barh(row, whole_s, height=0.74, color=palette.LIGHT.pale)
        bar = panel.barh(
            row,
            max(step.duration_s, 0.003 * whole_s),
            height=0.74,
            left=step.start_s - begin_s,
            color=_colour(step.name),
        )
        took = format_seconds(step.duration_s)
        board.tip(bar[0], f"{step.label} {took}")
        _beside(panel, row, took)


def gantt(board: Board, recoveries: Sequence[Recovery]) -> None:
    """Draw one row a recovery, all on one axis from their failures on."""
    longest_s = max(
        (step.end_s - recovery.failed_at_s for recovery in recoveries for step in recovery.steps),
        default=1.0,
    )
    right = WIDTH - 170
    panel = board.axes(TALL_WITH_NAME * len(recoveries), left=MARGIN, right=right)
    rows(panel, [""] * len(recoveries))
    seconds_axis(panel, longest_s)
    pixels_per_s = (right - MARGIN) / max(longest_s, 1e-9)
    for row, recovery in enumerate(recoveries):
        for step in recovery.steps:
            start_s = max(0.0, step.start_s - recovery.failed_at_s)
            length_s = step.end_s - recovery.failed_at_s - start_s
            bar = panel.barh(
                row,
                length_s,
                left=start_s,
                height=THICK,
                color=_colour(step.name),
                edgecolor=palette.LIGHT.paper,
                linewidth=0.8,
            )
            board.tip(bar[0], f"{step.label} {format_seconds(step.duration_s)}")
            if fit(step.label, length_s * pixels_per_s - 6, size=12) == step.label:
                inside(panel, start_s + length_s / 2, row, step.label, colour=_colour(step.name))
        name = fit(f"{recovery.number} {recovery.what}", WIDTH - 2 * MARGIN)
        panel.annotate(
            name, (0, row - THICK / 2), (0, 4), textcoords="offset points", va="bottom", zorder=3
        )
        took = "not over" if recovery.duration_s is None else format_seconds(recovery.duration_s)
        _beside(panel, row, fit(f"{took}, {recovery.tier or 'no plan'}", 160))
    meanings: dict[str, list[str]] = {}
    found = {step.name: step.label for each in recoveries for step in each.steps}
    for name, label in found.items():
        meanings.setdefault(_colour(name), []).append(label)
    board.legend([(colour, ", ".join(names)) for colour, names in meanings.items()])


def _outcome(recovery: Recovery) -> str:
    again = "training has not gone on"
    if recovery.duration_s is not None:
        again = f"training again after {format_seconds(recovery.duration_s)}"
    return f"{again}; {recovery.source}"


def _row(board: Board, plane: Axes, source: Source, member: str | None, y: float) -> None:
    """Draw where the shard is, an arrow, and the node that loads it."""
    colour, meaning = palette.TIERS[source.tier], MEANINGS[source.tier]
    holder = source.holder if source.holder is not None else meaning.partition(":")[0]
    stays = source.tier == "local" and source.holder == member
    plane.text(MARGIN, y + 15, fit(f"shard {source.shard}", 110), va="center_baseline")
    box = _box(plane, 130, y, holder, edge=colour, inset=30)
    board.tip(box, meaning)
    plane.plot(147, y + 15, "o", color=colour, markersize=11)
    _box(
        plane,
        WIDTH - 250,
        y,
        member or "no machine",
        is_dashed=member is None,
        edge=palette.LIGHT.ink if member else palette.FAILURE,
    )
    plane.add_patch(
        FancyArrowPatch(
            (344, y + 15),
            (WIDTH - 254, y + 15),
            arrowstyle="-|>,head_length=.5,head_width=.25",
            mutation_scale=14,
            color=colour,
            linewidth=1.8,
            shrinkA=2,
            shrinkB=0,
            linestyle=(0, (1, 2)) if stays else "-",
        )
    )
    if stays:
        plane.text(
            427,
            y + 15,
            "stays",
            color=palette.LIGHT.dim,
            ha="center",
            va="center_baseline",
            bbox={"fc": palette.LIGHT.paper, "ec": "none"},
        )


def _box(
    plane: Axes,
    x: float,
    y: float,
    name: str,
    *,
    edge: str,
    inset: float = 14,
    is_dashed: bool = False,
) -> FancyBboxPatch:
    box = FancyBboxPatch(
        (x + 5, y + 7),
        200,
        16,
        boxstyle="round,pad=5",
        facecolor=palette.LIGHT.pale,
        edgecolor=edge,
        linewidth=1.6,
        linestyle=(0, (4, 2)) if is_dashed else "-",
    )
    plane.add_patch(box)
    plane.text(x + inset, y + 15, fit(name, 202 - inset), va="center_baseline")
    return box


def _after(plan: RecoveryPlan) -> Iterator[str]:
    owners = {source.shard: source.tier for source in plan.sources}
    replicas = [t for t in plan.transfers if owners.get(t.shard) == "local"]
    if replicas:
        sent = [f"shard {t.shard} {t.sender} → {t.receiver}" for t in replicas[:6]]
        more = f" and {len(replicas) - 6} more" if len(replicas) > 6 else ""
        yield f"replicas copied again: {', '.join(sent)}{more}"
    if plan.missing:
        yield f"no machine for position {', '.join(map(str, plan.missing))}: recovery waits"


def _paid(recovery: Recovery) -> str:
    tiers = _counted(Counter(receipt.tier for receipt in recovery.receipts))
    size = format_bytes(sum(receipt.size_bytes for receipt in recovery.receipts))
    text = f"{size} loaded, {tiers}" if recovery.receipts else "no shard has been loaded yet"
    if recovery.wasted_s is not None:
        text += f"; wasted {format_seconds(recovery.wasted_s)} by Eq. (1)"
    return text


def _counted(tiers: Counter[str]) -> str:
    words = {
        "local": "from own memory",
        "peer": "from a peer",
        "persistent": "from the persistent tier",
        "start": "from scratch",
    }
    parts = [f"{count} {words.get(tier, tier)}" for tier, count in sorted(tiers.items())]
    return ", ".join(parts) or "nothing to load"


def _plan_table(plan: RecoveryPlan, per_node: int) -> Table:
    lines = [
        (str(s.shard), s.tier, s.holder or "", plan.members[s.shard // per_node] or "no machine")
        for s in plan.sources[:64]
    ]
    return Table(head=("shard", "tier", "from", "loaded by"), rows=lines)


def _recovery_table(recovery: Recovery) -> Table:
    lines = [_receipt_row(receipt) for receipt in recovery.receipts[:64]]
    head = ("shard", "tier", "from", "size", "checksums", "retrieve", "verify", "load")
    return Table(head=head, rows=lines)


def _receipt_row(receipt: Receipt) -> tuple[str, ...]:
    times = (receipt.retrieve_s, receipt.verify_s, receipt.load_s)
    return (
        str(receipt.shard),
        receipt.tier,
        receipt.holder or "",
        format_bytes(receipt.size_bytes),
        "right" if receipt.verified else "NOT VERIFIED",
        *map(format_seconds, times),
    )


def _colour(step: str) -> str:
    return palette.STEPS.get(step, palette.GREY)


def _beside(panel: Axes, row: int, text: str) -> None:
    panel.annotate(
        text,
        (1, row),
        (10, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center_baseline",
        weight="bold",
    )
