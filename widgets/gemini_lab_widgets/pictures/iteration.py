"""An iteration's network: when it is busy, and when it is idle."""

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes

from gemini_lab.profiler.profile import Collective, Profile
from gemini_lab.units import format_bytes, format_seconds
from gemini_lab_widgets.pictures import palette
from gemini_lab_widgets.pictures.board import LEFT, RIGHT, Board, fit, inside, rows, seconds_axis
from gemini_lab_widgets.pictures.picture import Picture, Table

LANE: Final = 28.0
"""Height of a row, in pixels."""
THICK: Final = 0.74
"""Of a bar in it, by the row's height."""
KINDS: Final = 4
"""Lanes of collectives; the rarer ones share the last."""


def draw_profile(profile: Profile) -> Picture:
    """Return the picture of a profile."""
    title = (
        f"One iteration: {format_seconds(profile.iteration_s)}, network idle for "
        f"{format_seconds(profile.idle_s)} in {len(profile.idle_spans)} spans"
    )
    made = f"mean of {profile.iterations} iterations" if profile.iterations else "synthetic"
    traffic = f", {format_bytes(profile.traffic_bytes)} each" if profile.traffic_bytes else ""
    board = Board(
        title=title,
        beside=f"seen from one of {profile.world_size} ranks; {made}{traffic}",
        description=f"{profile!r}. {profile.verdict}",
    )
    network(board, profile, end_s=profile.iteration_s)
    sign, colour = ("✓", palette.GREEN) if profile.steady else ("!", palette.RED)
    board.notes([f"{sign} {profile.verdict}"], colour=colour)
    board.notes(f"made with {condition}" for condition in profile.conditions)
    return board.picture(tables=[_table(profile)], plain=repr(profile))


def network(board: Board, profile: Profile, *, end_s: float, more: Sequence[str] = ()) -> Axes:
    """Return a row for each kind of collective, one for idle spans, and `more` empty ones below."""
    lanes = lanes_of(profile.collectives)
    names = [*(name for name, _ in lanes), "idle", *more]
    panel = board.axes(LANE * len(names), above=22)
    rows(panel, names)
    seconds_axis(panel, end_s)
    for row, (_, collectives) in enumerate(lanes):
        panel.barh(row, end_s, height=THICK, color=palette.LIGHT.pale)
        _busy(board, panel, collectives, row)
    _idle(board, panel, profile, len(lanes))
    for label in panel.get_yticklabels()[len(lanes) :]:
        label.set_fontweight("bold")
    panel.axvline(profile.update_s, color=palette.LIGHT.ink, linewidth=1.6, linestyle=(0, (4, 2)))
    is_late = profile.update_s > 0.85 * end_s
    panel.annotate(
        "update",
        (profile.update_s, 1),
        (-5 if is_late else 5, 2),
        textcoords="offset points",
        xycoords=("data", "axes fraction"),
        ha="right" if is_late else "left",
        va="bottom",
    )
    return panel


def lanes_of(collectives: Sequence[Collective]) -> list[tuple[str, list[Collective]]]:
    """Return the collectives by name, those that hold the network longest first."""
    by_name: dict[str, list[Collective]] = {}
    for each in collectives:
        by_name.setdefault(each.name, []).append(each)
    ordered = sorted(by_name.items(), key=lambda pair: -sum(c.duration_s for c in pair[1]))
    if len(ordered) > KINDS:
        rest = [each for _, ones in ordered[KINDS - 1 :] for each in ones]
        ordered = [*ordered[: KINDS - 1], (f"{len(ordered) - KINDS + 1} other kinds", rest)]
    return ordered


def pixel_s(panel: Axes) -> float:
    """Return seconds that a pixel of a panel between `LEFT` and `RIGHT` stands for."""
    low_s, high_s = panel.get_xlim()
    return float(high_s - low_s) / (RIGHT - LEFT)


def _busy(board: Board, panel: Axes, collectives: Sequence[Collective], row: int) -> None:
    """Draw each collective as a bar that can be seen, however short it is."""
    bars = panel.barh(
        [row] * len(collectives),
        [max(c.duration_s, pixel_s(panel)) for c in collectives],
        left=[c.start_s for c in collectives],
        height=THICK,
        color=palette.TRAINING,
    )
    for bar, each in zip(bars, collectives, strict=True):
        board.tip(
            bar,
            f"{each.name}, {format_bytes(each.size_bytes)}, "
            f"{format_seconds(each.duration_s)} at {format_seconds(each.start_s)}",
        )


def _idle(board: Board, panel: Axes, profile: Profile, row: int) -> None:
    """Draw idle spans with their lengths; one that no checkpoint uses is hollow."""
    for number, span in enumerate(profile.idle_spans):
        hollow = not span.before_update
        bar = panel.barh(
            row,
            span.duration_s,
            left=span.start_s,
            height=1.0,
            linewidth=1.0,
            color=palette.LIGHT.paper if hollow else palette.IDLE,
            edgecolor=palette.IDLE if hollow else palette.LIGHT.paper,
        )
        text = (
            f"idle span {number}: {format_seconds(span.duration_s)} ± {format_seconds(span.std_s)}"
        )
        if hollow:
            text += ", after the update began: no checkpoint uses it"
        board.tip(bar[0], text)
        label = format_seconds(span.duration_s)
        if fit(label, span.duration_s / pixel_s(panel) - 6) == label:
            colour = palette.LIGHT.paper if hollow else palette.IDLE
            inside(panel, (span.start_s + span.end_s) / 2, row, label, colour=colour)


def _table(profile: Profile) -> Table:
    lines = [
        (
            name,
            f"{len(ones)} calls",
            format_bytes(sum(each.size_bytes for each in ones)),
            format_seconds(sum(each.duration_s for each in ones)),
        )
        for name, ones in lanes_of(profile.collectives)
    ]
    usable = [span for span in profile.idle_spans if span.before_update]
    idle_s = sum(span.duration_s for span in usable)
    lines.append(("idle before the update", f"{len(usable)} spans", "", format_seconds(idle_s)))
    return Table(head=("on the network", "how often", "bytes", "time"), rows=lines)
