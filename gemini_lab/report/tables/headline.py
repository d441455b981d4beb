"""The three questions that a reader of a run asks first, each answered in words."""

from collections.abc import Callable
from typing import Final, Literal

from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables.iterations import CurveTable, IterationTable, Match
from gemini_lab.report.tables.recoveries import Losses
from gemini_lab.report.tables.time_breakdown import FAILURES, TimeShares
from gemini_lab.report.values import HeadlineAnswer
from gemini_lab.units import format_seconds

LARGEST: Final = 3
"""Parts of what failures cost that are named."""


def answers(
    run: RunReducer,
    losses: Losses,
    *,
    curves: CurveTable,
    iterations: IterationTable,
    spent: TimeShares,
) -> tuple[HeadlineAnswer, HeadlineAnswer, HeadlineAnswer]:
    """Return whether a run has the same numbers, and what checkpoints and failures cost it."""
    return (
        _numbers(run, losses, curves),
        _checkpoints(run, iterations, spent),
        _failures(losses, spent),
    )


def _asked(question: str, view: str) -> Callable[..., HeadlineAnswer]:
    """Return a function of a short answer, its detail and its mood."""

    def say(
        short: str, detail: str, mood: Literal["good", "bad", "neutral", "unknown"] = "neutral"
    ) -> HeadlineAnswer:
        return HeadlineAnswer(question=question, short=short, detail=detail, mood=mood, view=view)

    return say


def _numbers(run: RunReducer, losses: Losses, curves: CurveTable) -> HeadlineAnswer:
    say = _asked("Same numbers?", "curves")
    if run.course.is_simulated:
        return say("not computed", "a simulation computes times, and trains no model", "unknown")
    if run.divergences.found:
        first = min(run.divergences.found, key=lambda one: (one.epoch, one.iteration, one.rank))
        return say("no", f"{first}", "bad")
    compared = [one for one in curves.matches if one.compared]
    for match in compared:
        if match.first is not None:
            return say("no", said(match), "bad")
    again = sum(one.compared for one in losses.recoveries)
    redone = f"{again:,} iterations of ranks done again, none differs" if again else ""
    if compared:
        detail = "; ".join(said(one) for one in compared)
        return say("yes", f"{detail}; {redone}" if redone else detail, "good")
    if redone:
        return say("yes, as far as compared", redone, "good")
    alone = "no other run of the same job is here"
    if losses.recoveries:
        alone += "; the root agent reported no difference in what was done again"
    return say("nothing to compare with", alone, "unknown")


def said(match: Match) -> str:
    """Return whether a value was the same in an earlier run, in words."""
    what = "losses" if match.name == "loss" else f"values of {match.name}"
    if not match.compared:
        return f"no {what} to compare with {match.run}: no iteration has one in both runs"
    if match.first is None:
        return f"{match.compared:,} {what}, all bit-identical to {match.run}"
    number, mine, theirs = match.first
    return (
        f"not the same as {match.run}: of {match.compared:,} {what} the first that differs is in "
        f"iteration {number:,}, {mine!r} here and {theirs!r} there (means over the ranks)"
    )


def _checkpoints(run: RunReducer, iterations: IterationTable, spent: TimeShares) -> HeadlineAnswer:
    say = _asked("What did checkpoints cost?", "iterations")
    if run.course.settings.get("scheme") == "none":
        return say("nothing", "the run keeps no versions (scheme none)")
    waited_s, trained_s = spent.seconds("exposed"), spent.seconds("training", "exposed")
    if not trained_s:
        return say("not known yet", "no iteration has ended", "unknown")
    cost = iterations.overhead
    if cost is not None and cost.low is not None and cost.high is not None:
        between = f"{100 * cost.low:.1f} to {100 * cost.high:.1f} %"
        return say(percent(cost.share), f"of an iteration ({between}): {cost.how}")
    waited = f"training waited {format_seconds(waited_s)} of {format_seconds(trained_s)}"
    return say(percent(waited_s / trained_s), f"{waited} for its checkpoints")


def _failures(losses: Losses, spent: TimeShares) -> HeadlineAnswer:
    say = _asked("What did failures cost?", "recoveries")
    if not losses.total:
        return say("nothing", "no failure")
    moves = [one for one in losses.recoveries if one.is_planned]
    moved_s = sum((one.duration_s or 0.0) + (one.lost_progress_s or 0.0) for one in moves)
    moved = f"{len(moves)} planned move{'s'[: len(moves) > 1]} took {format_seconds(moved_s)}"
    failures = losses.total - len(moves)
    if not failures:
        return say("nothing", f"no failure; {moved}")
    cost_s = max(0.0, spent.seconds(*FAILURES) - moved_s)
    parts = sorted((r for r in spent.rows if r.part in FAILURES), key=lambda row: -row.seconds)
    named = ", ".join(f"{row.label} {format_seconds(row.seconds)}" for row in parts[:LARGEST])
    is_open = any(one.resumed_at_s is None for one in losses.recoveries[-1:])
    so_far = ", and the newest recovery has not ended" if is_open else ""
    times = f"{failures:,} x " if failures > 1 else ""
    in_all = f"{format_seconds(cost_s)} in all, " if failures > 1 else ""
    return say(
        f"{times}{format_seconds(cost_s / failures)}",
        f"{in_all}mostly {named}{so_far}{f'; {moved}' if moves else ''}",
    )


def percent(share: float) -> str:
    """Return a share, on one line; what is there at all is never shown as nothing."""
    return "<\u00a00.1\u00a0%" if 0 < share < 0.0005 else f"{100 * share:.1f}\u00a0%"
