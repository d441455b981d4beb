"""The three questions that a reader of a run asks first, each answered in words."""

from collections.abc import Callable
from math import inf
from typing import Final, Literal

from gemini_lab.report.recovery import done_again
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
        _failures(run, losses, spent),
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
    redone = f"{again:,} iterations done again (summed over ranks), none differs" if again else ""
    if compared:
        parts = [said(one) for one in compared]
        if any(one.resized is not None for one in compared):
            parts.append("on another number of nodes sums are added in another order")
            return say("yes, until a resize", "; ".join(filter(None, [*parts, redone])), "good")
        return say("yes", "; ".join(filter(None, [*parts, redone])), "good")
    if redone:
        return say("yes, as far as compared", redone, "good")
    alone = "no other run of the same job is here"
    if losses.recoveries:
        alone += "; the root agent reported no difference in what was done again"
    return say("nothing to compare with", alone, "unknown")


def said(match: Match) -> str:
    """Return whether a value was the same in an earlier run, in words."""
    what = "losses" if match.name == "loss" else f"values of {match.name}"
    if not match.compared and match.resized is not None:
        return f"no {what} to compare with {match.run}: it had another number of nodes"
    if not match.compared:
        return f"no {what} to compare with {match.run}: no iteration has one in both runs"
    if match.first is None:
        until = "" if match.resized is None else f" up to iteration {match.resized - 1:,}"
        return f"{match.compared:,} {what}, all bit-identical to {match.run}{until}"
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


def _failures(run: RunReducer, losses: Losses, spent: TimeShares) -> HeadlineAnswer:
    say = _asked("What did failures cost?", "recoveries")
    outages = run.spans.outages()
    moves = sum(one.is_planned for one in outages)
    moved_s = format_seconds(spent.seconds("planned"))
    moved = f"; {moves:,} planned move{'s'[: moves > 1]} took {moved_s}" if moves else ""
    failures = len(outages) - moves
    if not failures:
        return say("nothing", f"no failure{moved}")
    cost_s = spent.seconds(*FAILURES)
    parts = sorted((r for r in spent.rows if r.part in FAILURES), key=lambda row: -row.seconds)
    named = ", ".join(f"{row.label} {format_seconds(row.seconds)}" for row in parts[:LARGEST])
    so_far = ", and the newest recovery has not ended" if outages[-1].resumed_s == inf else ""
    struck = [one for one in losses.recoveries if not one.is_planned]
    newest = f"in the newest {len(struck):,} recoveries " if len(struck) < failures else ""
    again = f"; {newest}{done_again(struck)}"
    times = f"{failures:,} x " if failures > 1 else ""
    in_all = f"{format_seconds(cost_s)} in all, " if failures > 1 else ""
    return say(
        f"{times}{format_seconds(cost_s / failures)}",
        f"{in_all}mostly {named}{so_far}{again}{moved}",
    )


def percent(share: float) -> str:
    """Return a share, on one line; what is there at all is never shown as nothing."""
    return "<\u00a00.1\u00a0%" if 0 < share < 0.0005 else f"{100 * share:.1f}\u00a0%"
