"""A simulated run: how much of its time counted, and where the rest went."""

from collections.abc import Iterator, Sequence
from typing import Final

from gemini_lab.simulator.outcome import Outcome
from gemini_lab_widgets.pictures import palette
from gemini_lab_widgets.pictures.board import WIDTH, Board, laid_end_to_end, rows
from gemini_lab_widgets.pictures.picture import Picture, Table

LEFT: Final = 180.0
RIGHT: Final = WIDTH - 130.0
WORDS: Final = {"lost": "training done again", "reserve": "reserve a machine"}
"""What causes of waste are called that do not speak for themselves."""


def draw(outcome: Outcome) -> Picture:
    """Return the picture of a simulated run."""
    title = f"{outcome.policy.name}: {outcome.effective_ratio:.1%} of the time counts (simulated)"
    said = (
        f"{outcome.wall_s / 86400:.1f} days, {outcome.versions:,.0f} iterations, "
        f"{outcome.failures} failures, {len(outcome.recoveries)} recoveries"
    )
    board = Board(title=title, beside=said, description=f"{said}. {outcome!r}")
    counts = [
        (palette.IDLE, "training that counts", outcome.productive_s),
        (palette.FAILURE, "waste", outcome.wall_s - outcome.productive_s),
    ]
    _bar(board, "all of the time", counts, said=f"{outcome.effective_ratio:.2%}")
    if wasted := list(_waste(outcome)):
        share = sum(seconds for _, _, seconds in wasted) / outcome.wall_s
        _bar(board, "the waste, by cause", wasted, said=f"{share:.2%}")
    if outcome.recoveries:
        tiers = [
            (palette.TIERS.get(tier, palette.GREY), f"version from {tier}", float(count))
            for tier, count in sorted(outcome.by_tier.items())
        ]
        _bar(board, "recoveries", tiers, said=f"{len(outcome.recoveries)} in all")
        board.notes([f"a recovery wastes {_span(outcome.wasted_s)} on average, as in Eq. (1)"])
    return board.picture(tables=[_table(outcome)], plain=repr(outcome))


def _bar(board: Board, name: str, parts: Sequence[tuple[str, str, float]], *, said: str) -> None:
    """Draw parts end to end over the whole width, and name them."""
    whole = sum(value for _, _, value in parts) or 1.0
    panel = board.axes(28, left=LEFT, right=RIGHT, above=10, below=10)
    rows(panel, [name], width=LEFT - 20)
    panel.set(xlim=(0, whole), xticks=[])
    lengths = [(colour, value) for colour, _, value in parts]
    for bar, (_, meaning, value) in zip(
        laid_end_to_end(panel, 0, lengths, height=1.0), parts, strict=True
    ):
        board.tip(bar[0], f"{meaning}: {value / whole:.1%}")
    panel.annotate(
        said,
        (1, 0.5),
        (12, 0),
        xycoords="axes fraction",
        textcoords="offset points",
        va="center_baseline",
        weight="bold",
    )
    board.legend(
        [(colour, f"{meaning} {value / whole:.1%}") for colour, meaning, value in parts], left=LEFT
    )


def _waste(outcome: Outcome) -> Iterator[tuple[str, str, float]]:
    """Give colour, cause and seconds of each waste, the largest first."""
    causes = {"lost": outcome.lost_s, **outcome.down_s, "checkpoints": outcome.overhead_s}
    for cause, seconds in sorted(causes.items(), key=lambda pair: -pair[1]):
        if seconds > 1e-9 * outcome.wall_s:
            colour = palette.STEPS.get("redo" if cause == "lost" else cause, palette.GREY)
            yield colour, WORDS.get(cause, cause.replace("_", " ")), seconds


def _table(outcome: Outcome) -> Table:
    lines = [("counts", _span(outcome.productive_s), f"{outcome.effective_ratio:.3%}")]
    for _, meaning, seconds in _waste(outcome):
        lines.append((meaning, _span(seconds), f"{seconds / outcome.wall_s:.3%}"))
    lines += [(f"recoveries from {t}", str(n), "") for t, n in sorted(outcome.by_tier.items())]
    return Table(head=("simulated", "time", "share"), rows=lines)


def _span(seconds: float) -> str:
    for unit_s, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"
