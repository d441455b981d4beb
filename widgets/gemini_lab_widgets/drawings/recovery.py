"""Recoveries: what is planned to be loaded from where, and how long each step took."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from gemini_lab.recovery.plan import RecoveryPlan, Source
from gemini_lab.report.values import Receipt, Recovery, Step
from gemini_lab.units import format_bytes, format_seconds
from gemini_lab_widgets.drawings.canvas import WIDTH, Canvas, Picture, Table, TimeAxis, fit

ROWS: Final = 16
"""Shards drawn one by one; of more, those from a node's own memory are only counted."""
TIERS: Final = {
    "local": ("green", "the node's own memory"),
    "peer": ("blue", "another node's memory"),
    "persistent": ("orange", "the persistent tier"),
    "start": ("grey", "nothing: training starts anew"),
}
STEPS: Final = {
    "detect": "red", "fence": "grey", "inventory": "sky", "plan": "yellow", "reserve": "pink",
    "start": "orange", "retrieve": "green", "warm_up": "blue",
}  # fmt: skip
"""Colours of the steps, which are named as in the paper's Fig. 14."""


def draw_plan(plan: RecoveryPlan) -> Picture:
    """The picture of a recovery plan."""
    title = "Recovery plan: " + (
        "training starts anew" if plan.version is None else f"all ranks load version {plan.version}"
    )
    counts = Counter[str](source.tier for source in plan.sources)
    canvas = Canvas(title=title, description=f"{plan.reason}. " + _counted(counts))
    top = canvas.heading(title, plan.reason)
    per_node = max(1, len(plan.sources) // max(1, len(plan.members)))
    shown = list(plan.sources)
    if len(shown) > ROWS:
        shown = [source for source in shown if source.tier != "local"][:ROWS]
    y = top + 4
    for source in shown:
        _source(canvas, source, plan.members[source.shard // per_node], y)
        y += 34
    if len(shown) < len(plan.sources):
        more = f"and {len(plan.sources) - len(shown)} shards more; in all {_counted(counts)}"
        y = canvas.notes(y + 14, [more]) - 10
    y = canvas.legend(12, y + 18, [TIERS[tier] for tier in TIERS if counts[tier]])
    canvas.notes(y + 26, list(_after(plan)))
    return Picture(canvas=canvas, table=_plan_table(plan, per_node), plain=repr(plan))


def draw_recovery(recovery: Recovery) -> Picture:
    """The picture of a recovery that happened."""
    title = f"Recovery {recovery.number}: {cause(recovery)}"
    canvas = Canvas(title=title, description=outcome(recovery))
    top = canvas.heading(title, outcome(recovery))
    if recovery.steps:
        begin_s = min(step.start_s for step in recovery.steps)
        end_s = max(step.end_s for step in recovery.steps)
        axis = TimeAxis(left=110, right=WIDTH - 110, low_s=0.0, high_s=end_s - begin_s)
        y = top
        for step in recovery.steps:
            _step_row(canvas, step, begin_s, axis, y)
            y += 27
        top = axis.draw(canvas, top=top, bottom=y + 2)
    lines = [f"stepped over {rejected}" for rejected in recovery.rejected]
    canvas.notes(top + 26, [_paid(recovery), *lines] if recovery.version is not None else lines)
    return Picture(canvas=canvas, table=_recovery_table(recovery), plain=repr(recovery))


def gantt(canvas: Canvas, recoveries: Sequence[Recovery], y: float) -> float:
    """One row a recovery, all on one axis from their failures on; gives where they end."""
    longest_s = max(
        (step.end_s - recovery.failed_at_s for recovery in recoveries for step in recovery.steps),
        default=1.0,
    )
    axis = TimeAxis(left=190, right=WIDTH - 150, low_s=0.0, high_s=longest_s)
    top = y
    for recovery in recoveries:
        canvas.text(12, y + 17, f"{recovery.number} {cause(recovery)}", size=13, within=172)
        for step in recovery.steps:
            x = axis.x(max(0.0, step.start_s - recovery.failed_at_s))
            width = axis.x(step.end_s - recovery.failed_at_s) - x
            tip = f"{_named(step)} {format_seconds(step.duration_s)}"
            canvas.rect(x, y + 2, max(1.0, width - 0.6), 20, fill=_colour(step.name), tip=tip)
            if fit(_named(step), width - 6, size=12) == _named(step):
                canvas.text(x + width / 2, y + 17, _named(step), size=12, anchor="middle",
                            fill="paper" if _colour(step.name) == "blue" else "mark")  # fmt: skip
        took = "not over" if recovery.duration_s is None else format_seconds(recovery.duration_s)
        canvas.text(WIDTH - 140, y + 17, f"{took}, {recovery.tier or 'no plan'}", size=13,
                    bold=True, within=135)  # fmt: skip
        y += 28
    y = axis.draw(canvas, top=top, bottom=y + 2)
    names = list(dict.fromkeys(step.name for each in recoveries for step in each.steps))
    return canvas.legend(12, y + 26, [(_colour(n), n.replace("_", " ")) for n in names])


def cause(recovery: Recovery) -> str:
    """What failed, in words."""
    if recovery.injections:
        return ", ".join(str(injection) for injection in recovery.injections)
    where = f" ({', '.join(recovery.lost_nodes)})" if recovery.lost_nodes else ""
    return recovery.cause.replace("_", " ") + where


def outcome(recovery: Recovery) -> str:
    """What came of it, in words."""
    if recovery.version is None:
        return "nothing was planned"
    again = "training has not gone on"
    if recovery.duration_s is not None:
        again = f"training again after {format_seconds(recovery.duration_s)}"
    return f"{again}, from version {recovery.version} ({recovery.tier or 'no tier'})"


def _source(canvas: Canvas, source: Source, member: str | None, y: float) -> None:
    """One row: where the shard is, an arrow, and the node that loads it."""
    colour, meaning = TIERS[source.tier]
    name = source.holder if source.holder is not None else meaning.partition(":")[0]
    canvas.text(12, y + 19, f"shard {source.shard}", within=110)
    canvas.rect(130, y + 2, 210, 25, fill="pale", stroke=colour, corner=5, tip=meaning)
    canvas.circle(147, y + 14.5, 6, fill=colour)
    canvas.text(160, y + 19, name, within=176)
    canvas.rect(WIDTH - 250, y + 2, 210, 25, fill="pale", corner=5, dash="" if member else "5 3",
                stroke="ink" if member else "red")  # fmt: skip
    canvas.text(WIDTH - 240, y + 19, member or "no machine", within=190)
    stays = source.tier == "local" and source.holder == member
    canvas.arrow((346, y + 15), (WIDTH - 256, y + 15), stroke=colour, dash="2 4" if stays else "")
    if stays:
        canvas.rect(397, y + 3, 60, 23, fill="paper")
        canvas.text(427, y + 19, "stays", size=13, fill="dim", anchor="middle")


def _after(plan: RecoveryPlan) -> Iterator[str]:
    owners = {source.shard: source.tier for source in plan.sources}
    replicas = [t for t in plan.transfers if owners.get(t.shard) == "local"]
    if replicas:
        sent = [f"shard {t.shard} {t.sender} → {t.receiver}" for t in replicas[:6]]
        more = f" and {len(replicas) - 6} more" if len(replicas) > 6 else ""
        yield f"replicas made anew: {', '.join(sent)}{more}"
    if plan.missing:
        yield f"no machine for position {', '.join(map(str, plan.missing))}: recovery waits"


def _step_row(canvas: Canvas, step: Step, begin_s: float, axis: TimeAxis, y: float) -> None:
    x, end = axis.x(step.start_s - begin_s), axis.x(step.end_s - begin_s)
    canvas.text(12, y + 17, _named(step), within=94)
    canvas.rect(axis.left, y + 3, axis.right - axis.left, 20, fill="pale")
    canvas.rect(x, y + 3, max(1.5, end - x), 20, fill=_colour(step.name))
    canvas.text(axis.right + 10, y + 17, format_seconds(step.duration_s), bold=True)


def _paid(recovery: Recovery) -> str:
    tiers = _counted(Counter(receipt.tier for receipt in recovery.receipts))
    size = format_bytes(sum(receipt.size_bytes for receipt in recovery.receipts))
    text = f"{size} loaded, {tiers}" if recovery.receipts else "no shard has been loaded yet"
    if recovery.wasted_s is not None:
        text += f"; wasted {format_seconds(recovery.wasted_s)} by Eq. (1)"
    return text


def _counted(tiers: Counter[str]) -> str:
    words = {
        "local": "from own memory", "peer": "from a peer", "persistent": "from the persistent tier",
        "start": "anew",
    }  # fmt: skip
    parts = [f"{count} {words.get(tier, tier)}" for tier, count in sorted(tiers.items())]
    return ", ".join(parts) or "nothing to load"


def _plan_table(plan: RecoveryPlan, per_node: int) -> Table:
    rows = [
        (str(s.shard), s.tier, s.holder or "", plan.members[s.shard // per_node] or "no machine")
        for s in plan.sources[:64]
    ]
    return Table(head=("shard", "tier", "from", "loaded by"), rows=rows)


def _recovery_table(recovery: Recovery) -> Table:
    rows = [_receipt_row(receipt) for receipt in recovery.receipts[:64]]
    head = ("shard", "tier", "from", "size", "checksums", "retrieve", "verify", "load")
    return Table(head=head, rows=rows)


def _receipt_row(receipt: Receipt) -> tuple[str, ...]:
    times = (receipt.retrieve_s, receipt.verify_s, receipt.load_s)
    return (
        str(receipt.shard), receipt.tier, receipt.holder or "", format_bytes(receipt.size_bytes),
        "right" if receipt.verified else "NOT VERIFIED", *map(format_seconds, times),
    )  # fmt: skip


def _named(step: Step) -> str:
    return step.name.replace("_", " ")


def _colour(step: str) -> str:
    return STEPS.get(step, "grey")
