"""A run: its losses or iterations over time, its failures, and its recoveries as bars."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from gemini_lab.report.recovery import Recovery
from gemini_lab.report.text import render
from gemini_lab.report.values import RunReport
from gemini_lab.units import format_bytes, format_seconds
from gemini_lab_widgets.pictures import palette
from gemini_lab_widgets.pictures.board import MARGIN, WIDTH, Board, seconds_axis
from gemini_lab_widgets.pictures.picture import Picture, Table
from gemini_lab_widgets.pictures.recovery_steps import gantt

POINTS: Final = 500
"""Iterations that the line goes through, at most."""
BARS: Final = 20
"""Recoveries drawn one by one, at most."""


def draw(report: RunReport) -> Picture:
    """Return the picture of a run's report."""
    done = max((iteration.number for iteration in report.iterations), default=0)
    survived = sum(recovery.resumed_at_s is not None for recovery in report.recoveries)
    kind = "Simulated run" if report.simulated else "Run"
    said = (
        f"{_count(done, 'iteration')} in {format_seconds(report.duration_s)} on "
        f"{_count(report.nodes, 'node')}, {_count(survived, 'failure')} survived, "
        f"{format_bytes(report.traffic.checkpoint_bytes)} of replicas sent"
    )
    board = Board(title=f"{kind} {report.name}: {report.outcome}", beside=said)
    _progress(board, report)
    if report.recoveries:
        board.text(MARGIN, 20, "Recoveries, from the failure on", bold=True)
        board.y += 24
        gantt(board, report.recoveries[:BARS])
    board.notes(_remarks(report))
    return board.picture(tables=[_table(report.recoveries)], plain=render(report))


def _progress(board: Board, report: RunReport) -> None:
    """Draw rank 0's losses, or its iterations if it logged none, and the failures."""
    points, name = _line(report)
    panel = board.axes(150, left=70, right=WIDTH - 34, above=26)
    panel.set_title(name)
    seconds_axis(panel, report.duration_s)
    panel.grid(axis="y", visible=True)
    panel.locator_params(axis="y", nbins=4)
    cuts_s = [recovery.failed_at_s - report.started_at_s for recovery in report.recoveries]
    for recovery, since_s in zip(report.recoveries, cuts_s, strict=True):
        lasted_s = recovery.duration_s
        until_s = report.duration_s if lasted_s is None else since_s + lasted_s
        shade = panel.axvspan(
            since_s, until_s, facecolor=palette.LIGHT.pale, edgecolor=palette.LIGHT.rule
        )
        board.tip(shade, f"recovery {recovery.number}: {recovery.what}")
    for piece in _pieces(points, cuts_s):
        panel.plot(
            *zip(*piece, strict=True),
            color=palette.BLUE,
            solid_capstyle="round",
            marker="o" if len(points) <= 40 else "",
            markersize=4,
        )
    moments_s = [injection.at_s - report.started_at_s for injection in report.injections]
    for at_s in moments_s:
        panel.axvline(at_s, color=palette.FAILURE, linewidth=1.6, linestyle=(0, (4, 2)))
    panel.plot(
        moments_s,
        [1.0] * len(moments_s),
        "x",
        color=palette.FAILURE,
        markersize=9,
        markeredgewidth=2.4,
        clip_on=False,
        transform=panel.get_xaxis_transform(),
    )
    entries = [(palette.BLUE, name)]
    if report.recoveries:
        entries.append((palette.LIGHT.pale, "no training: a recovery"))
    if report.injections:
        entries.append((palette.FAILURE, "a failure was injected"))
    board.legend(entries, left=70)


def _line(report: RunReport) -> tuple[list[tuple[float, float]], str]:
    """Return seconds since the start with a value each, and what the values are."""
    mine = [iteration for iteration in report.iterations if iteration.rank == 0]
    points = [(i.ended_at_s - report.started_at_s, i.loss) for i in mine if i.loss is not None]
    name = "loss of rank 0"
    if not points:
        points = [(i.ended_at_s - report.started_at_s, float(i.number)) for i in mine]
        name = "iterations done"
    step = max(1, -(-len(points) // POINTS))
    return points[::step] + (points[-1:] if step > 1 else []), name


def _pieces(
    points: Sequence[tuple[float, float]], cuts_s: Sequence[float]
) -> Iterator[Sequence[tuple[float, float]]]:
    """Give the line in pieces, cut at the failures."""
    for low_s, high_s in itertools.pairwise([-math.inf, *cuts_s, math.inf]):
        if piece := [point for point in points if low_s <= point[0] < high_s]:
            yield piece


def _remarks(report: RunReport) -> Iterator[str]:
    if len(report.recoveries) > BARS:
        yield f"{len(report.recoveries) - BARS} further recoveries are not drawn"
    for recovery in report.recoveries[:BARS]:
        yield from (f"recovery {recovery.number}: {late}" for late in recovery.importing)
    if report.wasted is not None:
        yield (
            f"wasted time per failure: {format_seconds(report.wasted.measured_mean_s)} "
            f"{'simulated' if report.simulated else 'measured'}, "
            f"{format_seconds(report.wasted.predicted_s)} by Eq. (1) with this run's own terms"
        )
    if report.reason:
        yield f"{report.outcome}: {report.reason}"
    yield from report.notes[:8]


def _table(recoveries: Sequence[Recovery]) -> Table:
    head = ("", "cause", "training again after", "version", "tier", "steps", "retrieval", "wasted")
    return Table(head=head, rows=[_cells(recovery) for recovery in recoveries])


def _cells(recovery: Recovery) -> tuple[str, ...]:
    steps = ", ".join(f"{step.label} {format_seconds(step.duration_s)}" for step in recovery.steps)
    return (
        str(recovery.number),
        recovery.what,
        _seconds(recovery.duration_s),
        "" if recovery.version is None else str(recovery.version),
        recovery.tier or "",
        steps,
        _seconds(recovery.retrieval_s),
        _seconds(recovery.wasted_s),
    )


def _seconds(duration_s: float | None) -> str:
    return "" if duration_s is None else format_seconds(duration_s)


def _count(number: int, one: str) -> str:
    return f"{number} {one}{'' if number == 1 else 's'}"
