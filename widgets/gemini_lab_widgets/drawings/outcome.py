"""A simulated run: how much of its time counted, and where the rest went."""

from collections.abc import Iterator
from typing import Final

from gemini_lab.simulator.outcome import Outcome
from gemini_lab_widgets.drawings.canvas import WIDTH, Canvas, Picture, Table

LEFT: Final = 170.0
RIGHT: Final = WIDTH - 150.0
CAUSES: Final = {
    "lost": ("pink", "training done again"), "detect": ("red", "detect"),
    "serialise": ("grey", "serialise"), "reserve": ("yellow", "reserve a machine"),
    "retrieve": ("green", "retrieve"), "warm_up": ("blue", "warm up"), "rejoin": ("sky", "rejoin"),
    "checkpoints": ("orange", "checkpoints"),
}  # fmt: skip
"""Colour and words of each cause of waste."""
TIERS: Final = {"memory": "blue", "persistent": "orange", "start": "grey"}


def draw(outcome: Outcome) -> Picture:
    """The picture of a simulated run."""
    title = f"{outcome.policy.name}: {outcome.effective_ratio:.1%} of the time counts (simulated)"
    said = (
        f"{outcome.wall_s / 86400:.1f} days, {outcome.versions:,.0f} iterations, "
        f"{outcome.failures} failures, {len(outcome.recoveries)} recoveries"
    )
    canvas = Canvas(title=title, description=f"{said}. {outcome!r}")
    y = canvas.heading(title, said)
    y = _bar(canvas, y + 4, "all of the time", [
        ("green", "training that counts", outcome.productive_s),
        ("red", "waste", outcome.wall_s - outcome.productive_s),
    ], said=f"{outcome.effective_ratio:.2%}")  # fmt: skip
    wasted = list(_waste(outcome))
    lost = sum(seconds for _, _, seconds in wasted)
    if lost > 0:
        share = lost / outcome.wall_s
        y = _bar(canvas, y + 14, "the waste, by cause", wasted, said=f"{share:.2%}")
    if outcome.recoveries:
        tiers = [(TIERS.get(t, "grey"), f"version from {t}", float(n))
                 for t, n in sorted(outcome.by_tier.items())]  # fmt: skip
        y = _bar(canvas, y + 14, "recoveries", tiers, said=f"{len(outcome.recoveries)} in all")
        y = canvas.notes(
            y + 22, [f"a recovery wastes {_span(outcome.wasted_s)} on average, as in Eq. (1)"]
        )
    return Picture(canvas=canvas, table=_table(outcome), plain=repr(outcome))


def _bar(
    canvas: Canvas, y: float, name: str, parts: list[tuple[str, str, float]], *, said: str
) -> float:
    """Parts laid end to end over the whole width, and what they are; gives where that ends."""
    whole = sum(value for _, _, value in parts) or 1.0
    canvas.text(12, y + 20, name, within=LEFT - 20)
    x = LEFT
    for colour, meaning, value in parts:
        width = value / whole * (RIGHT - LEFT)
        tip = f"{meaning}: {value / whole:.1%}"
        canvas.rect(x, y, max(0.8, width - 0.8), 28, fill=colour, tip=tip)
        x += width
    canvas.text(RIGHT + 12, y + 20, said, bold=True, within=130)
    entries = [(colour, f"{meaning} {value / whole:.1%}") for colour, meaning, value in parts]
    return canvas.legend(LEFT, y + 50, entries)


def _waste(outcome: Outcome) -> Iterator[tuple[str, str, float]]:
    """Colour, cause and seconds of what did not count, the largest first."""
    causes = {"lost": outcome.lost_s, **outcome.down_s, "checkpoints": outcome.overhead_s}
    for cause, seconds in sorted(causes.items(), key=lambda pair: -pair[1]):
        if seconds > 1e-9 * outcome.wall_s:
            yield (*CAUSES.get(cause, ("grey", cause.replace("_", " "))), seconds)


def _table(outcome: Outcome) -> Table:
    rows = [("counts", _span(outcome.productive_s), f"{outcome.effective_ratio:.3%}")]
    for _, meaning, seconds in _waste(outcome):
        rows.append((meaning, _span(seconds), f"{seconds / outcome.wall_s:.3%}"))
    rows += [(f"recoveries from {t}", str(n), "") for t, n in sorted(outcome.by_tier.items())]
    return Table(head=("simulated", "time", "share"), rows=rows)


def _span(seconds: float) -> str:
    """A time from seconds to days."""
    for unit_s, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"
