"""A run: its losses or iterations over time, its failures, and its recoveries as bars."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from gemini_lab.report.values import Recovery, RunReport
from gemini_lab.units import format_bytes, format_seconds
from gemini_lab_widgets.drawings.canvas import WIDTH, Canvas, Picture, Table, TimeAxis, ticks
from gemini_lab_widgets.drawings.recovery import cause, gantt

HIGH: Final = 130.0
POINTS: Final = 500
"""Iterations that the line goes through, at most."""
BARS: Final = 20
"""Recoveries drawn one by one, at most."""


def draw(report: RunReport) -> Picture:
    """The picture of a run's report."""
    done = max((iteration.number for iteration in report.iterations), default=0)
    survived = sum(recovery.resumed_at_s is not None for recovery in report.recoveries)
    kind = "Simulated run" if report.simulated else "Run"
    title = f"{kind} {report.name}: {report.outcome}"
    said = (
        f"{_count(done, 'iteration')} in {format_seconds(report.duration_s)} on "
        f"{_count(report.nodes, 'node')}, {_count(survived, 'failure')} survived, "
        f"{format_bytes(report.traffic.checkpoint_bytes)} of replicas sent"
    )
    canvas = Canvas(title=title, description=said)
    y = _strip(canvas, report, canvas.heading(title, said) + 14)
    if report.recoveries:
        canvas.text(12, y + 36, "Recoveries, from the failure on", bold=True)
        y = gantt(canvas, report.recoveries[:BARS], y + 46)
    canvas.notes(y + 26, list(_remarks(report)))
    return Picture(canvas=canvas, table=_table(report.recoveries), plain=str(report))


def _strip(canvas: Canvas, report: RunReport, top: float) -> float:
    """Rank 0's losses, or its iterations where it logged none; gives where the strip ends."""
    points, name = _line(report)
    axis = TimeAxis(left=70, right=WIDTH - 24, low_s=0.0, high_s=max(report.duration_s, 1e-9))
    low = min((value for _, value in points), default=0.0)
    high = max((value for _, value in points), default=1.0)
    spread = (high - low) or 1.0
    bottom = top + HIGH
    for recovery in report.recoveries:
        since_s = recovery.failed_at_s - report.started_at_s
        _shade(canvas, recovery, axis, since_s=since_s, top=top)
    for value in ticks(low, low + spread, about=3):
        y = bottom - (value - low) / spread * HIGH
        canvas.line([(70, y), (WIDTH - 24, y)], thick=0.6)
        canvas.text(62, y + 5, f"{value:g}", size=13, fill="dim", anchor="end")
    canvas.text(12, top - 6, name, size=13, bold=True)
    for piece in _pieces(points, [r.failed_at_s - report.started_at_s for r in report.recoveries]):
        places = [(axis.x(s), bottom - (value - low) / spread * HIGH) for s, value in piece]
        canvas.line(places, stroke="blue", thick=2.2)
    for at_s in [injection.at_s - report.started_at_s for injection in report.injections]:
        _cross(canvas, axis.x(at_s), top, bottom)
    y = axis.draw(canvas, top=bottom, bottom=bottom) + 26
    entries = [("blue", name)]
    if report.recoveries:
        entries.append(("pale", "no training: a recovery"))
    if report.injections:
        canvas.text(WIDTH - 24, y + 1, "✕ a failure was injected", size=13, fill="red",
                    anchor="end")  # fmt: skip
    return canvas.legend(70, y, entries)


def _line(report: RunReport) -> tuple[list[tuple[float, float]], str]:
    """Seconds since the start and a value, and what the values are."""
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
    """The line, cut where training stopped."""
    for low_s, high_s in itertools.pairwise([-math.inf, *cuts_s, math.inf]):
        if piece := [point for point in points if low_s <= point[0] < high_s]:
            yield piece


def _shade(
    canvas: Canvas, recovery: Recovery, axis: TimeAxis, *, since_s: float, top: float
) -> None:
    """Shade the time from the failure, at `since_s`, until training went on, or to the end."""
    x = axis.x(since_s)
    end = axis.right if recovery.duration_s is None else axis.x(since_s + recovery.duration_s)
    tip = f"recovery {recovery.number}: {cause(recovery)}"
    canvas.rect(x, top, max(1.5, end - x), HIGH, fill="pale", stroke="rule", tip=tip)


def _cross(canvas: Canvas, x: float, top: float, bottom: float) -> None:
    canvas.line([(x, top), (x, bottom)], stroke="red", thick=1.6, dash="5 3")
    for sign in (-1, 1):
        canvas.line([(x - 5, top - 5 * sign), (x + 5, top + 5 * sign)], stroke="red", thick=2.4)


def _remarks(report: RunReport) -> Iterator[str]:
    if len(report.recoveries) > BARS:
        yield f"{len(report.recoveries) - BARS} further recoveries are not drawn"
    if report.wasted is not None:
        yield (
            f"wasted time per failure: {format_seconds(report.wasted.measured_mean_s)} "
            f"{'simulated' if report.simulated else 'measured'}, "
            f"{format_seconds(report.wasted.predicted_s)} by Eq. (1) with this run's own terms"
        )
    if report.reason:
        yield f"failed: {report.reason}"
    yield from report.notes[:8]


def _table(recoveries: Sequence[Recovery]) -> Table:
    head = ("", "cause", "training again after", "version", "tier", "steps", "retrieval", "wasted")
    return Table(head=head, rows=[_cells(recovery) for recovery in recoveries])


def _cells(recovery: Recovery) -> tuple[str, ...]:
    steps = ", ".join(f"{step.name} {format_seconds(step.duration_s)}" for step in recovery.steps)
    return (
        str(recovery.number),
        cause(recovery),
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
