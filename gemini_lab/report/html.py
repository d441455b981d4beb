"""A report as a plain table for a notebook."""

from collections.abc import Iterable
from html import escape

from gemini_lab.report.values import Recovery, RunReport
from gemini_lab.units import format_bytes, format_seconds


def render(report: RunReport) -> str:
    """The run in one line, and one row a recovery."""
    done = max((iteration.number for iteration in report.iterations), default=0)
    caption = (
        f"{'simulated run ' if report.simulated else ''}{report.name}: {report.outcome}, "
        f"{done} iterations in {format_seconds(report.duration_s)}, "
        f"{format_bytes(report.traffic.checkpoint_bytes)} of replicas sent"
    )
    head = _row(
        "th",
        ["", "cause", "training again after", "version", "tier", "steps", "retrieval", "wasted"],
    )
    body = "".join(_row("td", _cells(recovery)) for recovery in report.recoveries)
    return f"<table><caption>{escape(caption)}</caption>{head}{body}</table>"


def _cells(recovery: Recovery) -> list[str]:
    cause = ", ".join(str(injection) for injection in recovery.injections) or recovery.cause
    steps = ", ".join(f"{step.name} {format_seconds(step.duration_s)}" for step in recovery.steps)
    return [
        str(recovery.number),
        cause,
        _seconds(recovery.duration_s),
        "" if recovery.version is None else str(recovery.version),
        recovery.tier or "",
        steps,
        _seconds(recovery.retrieval_s),
        _seconds(recovery.wasted_s),
    ]


def _seconds(duration_s: float | None) -> str:
    return "" if duration_s is None else format_seconds(duration_s)


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
