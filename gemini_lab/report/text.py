"""A report as text, as wide as its terminal; 80 columns in a pipe or a file."""

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemini_lab.display import error_line, last_lines
from gemini_lab.report.recovery import (
    Recovery,
    Step,
    WastedTime,
    WorkerExit,
    culprit_of,
    culprits,
    done_again,
    kept_words,
)
from gemini_lab.report.tables.time_breakdown import TimeShares
from gemini_lab.report.values import RunReport, Traffic
from gemini_lab.units import format_bytes, format_seconds

WIDTH: Final = 80
RANKS_NAMED: Final = 16
WIDEST: Final = 160
"""Columns beyond which lines would be hard to read."""
_BAR_SPACE: Final = 30
"""Columns that a step's name and duration take beside its bar."""
_SHARE_SPACE: Final = 44
"""Columns that a part's name, seconds and share take beside its bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ink:
    """The characters that bars and rules are drawn with, and the columns that lines may take."""

    bar: str
    empty: str
    rule: str
    width: int = WIDTH


BLOCKS: Final = Ink(bar="█", empty="·", rule="─")
ASCII: Final = Ink(bar="#", empty=".", rule="-")


def ink_for(encoding: str | None, *, columns: int = WIDTH) -> Ink:
    """Return blocks if `encoding` has them, else ASCII, for a terminal of so many columns."""
    ink = BLOCKS
    try:
        (ink.bar + ink.empty + ink.rule).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        ink = ASCII
    return replace(ink, width=max(WIDTH, min(columns, WIDEST)))


def render(report: RunReport, *, ink: Ink = BLOCKS) -> str:
    """Return the whole report."""
    lines = [*_summary(report, ink)]
    for recovery in report.recoveries:
        lines += ["", *_recovery(recovery, ink, shown=report.exits, said=report.output)]
    if report.wasted is not None:
        lines += ["", *_wasted(report.wasted, ink)]
    lines += ["", _heading("Traffic", ink), *_traffic(report.traffic, ink)]
    if report.notes:
        lines += ["", _heading("Remarks", ink)]
        for note in report.notes:
            lines += _wrapped(note, "  ", ink)
    text = "\n".join(line.rstrip() for line in lines)
    if ink.bar == ASCII.bar:  # names and what workers printed may hold anything
        return text.encode("ascii", "backslashreplace").decode()
    return text


def _heading(text: str, ink: Ink) -> str:
    *above, last = textwrap.wrap(text, ink.width - 4)
    return "\n".join([*above, f"{last} {ink.rule * (ink.width - len(last) - 1)}"])


def _summary(report: RunReport, ink: Ink) -> Iterator[str]:
    done = max((iteration.number for iteration in report.iterations), default=0)
    kind = "simulated run" if report.simulated else "run"
    outcome = {"unfinished": "is under way, or its log ends early"}.get(
        report.outcome, report.outcome
    )
    yield f"{kind} {report.name}: {outcome}"
    yield (
        f"  {_count(done, 'iteration')} by {_count(report.ranks, 'rank')} on "
        f"{_count(report.nodes, 'node')} in {format_seconds(report.duration_s)}"
        + (f"; {report.script}" if report.script else "")
    )
    yield from _places(report, ink)
    if report.began_from:
        yield f"  it began from version {report.began_from} of the persistent tier"
    for answer in report.answers:
        words = f"{answer.question} {answer.short}: {answer.detail}".replace("\u00a0", " ")
        yield from _wrapped(words, "  ", ink)
    if len(report.roots) > 1:
        yield f"  root agent: {', then '.join(report.roots)}"
    if names := report.lost_standbys:
        yield from _wrapped(f"standby{'s' * (len(names) > 1)} lost: {', '.join(names)}", "  ", ink)
    yield from _diverged(report, ink)
    for one in report.not_finite:
        yield from _wrapped(f"NOT FINITE: {one}", "  !! ", ink)
    for change in (*report.resizes, *report.copies_placed):
        yield from _wrapped(f"{change}", "  ", ink)
    for went in report.rewinds:
        took = format_seconds(went.duration_s)
        yield from _wrapped(f"WENT BACK in {took}: {went}", "  << ", ink)
    for told in report.ailments:
        yield from _wrapped(f"{told}", "  ! ", ink)
    yield from _verified(report, ink)
    if report.unread:
        yield f"  {_count(report.unread, 'event')} of the log made no sense"
    if report.reason:
        yield from textwrap.indent(report.reason, "  ! ").splitlines()
    if report.output:
        if (error := error_line(report.output)) not in report.reason:
            yield f"  ! {error}"
        yield from (f"    | {line}" for line in last_lines(report.output))
    yield from culprits(report.exits)


def _places(report: RunReport, ink: Ink) -> Iterator[str]:
    """Say what each rank is among ranks that differ."""
    if report.places:
        named = [f"rank {rank} is {place}" for rank, place in enumerate(report.places)]
        more = len(named) - RANKS_NAMED
        told = [*named[:RANKS_NAMED], *([f"and {more} more"] if more > 0 else [])]
        yield from _wrapped("; ".join(told), "  ", ink)


def _verified(report: RunReport, ink: Ink) -> Iterator[str]:
    """Describe what was computed again on other machines, and the machines that were wrong."""
    verified = report.verified
    if verified.iterations:
        yield (
            f"  {_count(verified.iterations, 'iteration')} verified on other machines in "
            f"{format_seconds(verified.took_s)}, the newest {verified.newest}"
        )
    for one in verified.wrong:
        back = f"; back to version {one.version}" if one.goes_back else ""
        yield from _wrapped(f"WRONG SUMS: {one}{back}", "  !! ", ink)


def _diverged(report: RunReport, ink: Ink) -> Iterator[str]:
    """Say that the numbers are not those of a run that never failed, if that was noticed."""
    for seen in report.code_changes:
        yield from _wrapped(f"OTHER CODE: {seen}", "  !! ", ink)
    if not report.divergences:
        return
    after = [r.number for r in report.recoveries if r.divergences]
    where = f"recovery {after[0]}" if after else "a failure"
    text = f"DIVERGED: after {where} the numbers are not those of a run that never failed"
    yield from _wrapped(text, "  !! ", ink)
    first = min(report.divergences, key=lambda one: (one.epoch, one.iteration, one.rank))
    yield from _wrapped(f"{first}", "     ", ink)
    yield from _wrapped(f"likely: {first.cause}", "     ", ink)


def _wrapped(text: str, indent: str, ink: Ink) -> list[str]:
    return textwrap.wrap(text, ink.width, initial_indent=indent, subsequent_indent=indent + "  ")


def _repeated(recovery: Recovery, ink: Ink) -> Iterator[str]:
    """Give whether what was done again came out as before."""
    if recovery.divergences:
        for one in recovery.divergences:
            yield from _wrapped(f"DIVERGED: {one}", "  !! ", ink)
    elif recovery.compared:
        yield from _wrapped(
            f"done again and compared bit by bit: {_count(recovery.compared, 'iteration')}, summed "
            "over ranks; none differs",
            "  ",
            ink,
        )
    elif recovery.resumed_at_s is not None:
        again = _count(recovery.lost_iterations, "iteration")
        yield (
            f"  {again} done again; the log has no values of them to compare"
            if recovery.lost_iterations
            else "  no iteration was done again, so there was nothing to compare"
        )


def _exits(exits: Sequence[WorkerExit], said: Sequence[str]) -> Iterator[str]:
    """List the workers that ended, with the output of the first, unless it was `said`."""
    yield from culprits(exits)
    first = culprit_of(exits)
    if first is None or first.is_from_outside:
        return
    if first.error != error_line(said):
        yield from (f"    | {line}" for line in last_lines(first.output))


def _recovery(
    recovery: Recovery, ink: Ink, *, shown: Collection[WorkerExit], said: Sequence[str]
) -> Iterator[str]:
    """Give one recovery, without workers that were `shown` and lines that were `said`."""
    took_s = recovery.duration_s
    took = "has not ended" if took_s is None else f"training again after {format_seconds(took_s)}"
    yield _heading(f"Recovery {recovery.number}: {recovery.what}, {took}", ink)
    yield from gantt(recovery.steps, ink=ink)
    for late in recovery.importing:
        yield from _wrapped(f"{late}", "  ", ink)
    for one in recovery.refused:
        yield from _wrapped(f"{one}: {one.reason}", "  ! ", ink)
    exits = [one for one in recovery.exits if one not in shown]
    yield from culprits(exits) if _is_told(recovery) else _exits(exits, said)
    if recovery.version is None:
        yield "  nothing was planned"
        return
    why = f": {recovery.reason}" if recovery.tier != "memory" and recovery.reason else ""
    yield from _wrapped(f"loaded version {recovery.version} from {recovery.tier}{why}", "  ", ink)
    if recovery.kept:
        yield f"  {kept_words(recovery.kept)}"
    for rejected in recovery.rejected:
        yield f"  stepped over {rejected}"
    yield from _receipts(recovery)
    yield from _repeated(recovery, ink)
    if recovery.wasted_s is not None and recovery.lost_progress_s is not None:
        yield from _wrapped(
            f"wasted {format_seconds(recovery.wasted_s)}: "
            f"{format_seconds(recovery.lost_progress_s)} of training "
            f"({done_again([recovery])}) and {format_seconds(recovery.retrieval_s)} of retrieval",
            "  ",
            ink,
        )


def _is_told(recovery: Recovery) -> bool:
    """Return whether its workers ended by a refusal of ours, which says all that their lines do."""
    first = culprit_of(recovery.exits)
    return bool(recovery.refused and first and first.error.startswith("gemini_lab.errors."))


def gantt(steps: Sequence[Step], *, ink: Ink = BLOCKS) -> Iterator[str]:
    """Give one line a step: its name, its duration, and a bar that shows when it ran."""
    if not steps:
        return
    width = ink.width - _BAR_SPACE
    begin_s = min(step.start_s for step in steps)
    span_s = max(max(step.end_s for step in steps) - begin_s, 1e-9)
    fenced = False
    for step in steps:
        if step.name == "fence" and fenced:
            yield "  again:"
        fenced = fenced or step.name == "fence"
        first = min(int((step.start_s - begin_s) / span_s * width), width - 1)
        last = max(first + 1, round((step.end_s - begin_s) / span_s * width))
        bar = ink.empty * first + ink.bar * (last - first) + ink.empty * (width - last)
        yield f"  {step.label:<14}{step.duration_s:>9.3f} s  {bar}"
    yield f"  {'in all':<14}{span_s:>9.3f} s"


def _receipts(recovery: Recovery) -> Iterator[str]:
    if not recovery.receipts:
        return
    yield "  shard  tier        holder           size  checksum retrieve   verify     load"
    for receipt in recovery.receipts:
        checksum = "right" if receipt.verified else "unread"
        yield (
            f"  {receipt.shard:>5}  {receipt.tier:<10}  {_short(receipt.holder):<12}"
            f"{format_bytes(receipt.size_bytes):>10}  {checksum:<8}"
            f"{_ms(receipt.retrieve_s)}{_ms(receipt.verify_s)}{_ms(receipt.load_s)}"
        )


def _wasted(wasted: WastedTime, ink: Ink) -> Iterator[str]:
    yield _heading("Wasted time per failure, by Eq. (1) with what was measured here", ink)
    yield (
        f"  predicted {wasted.predicted_s:7.2f} s = t_ckpt {wasted.checkpoint_s:.2f} s + 1/(2f) "
        f"{max(wasted.interval_s, wasted.checkpoint_s) / 2:.2f} s + t_rtvl "
        f"{wasted.retrieval_s:.2f} s"
    )
    each = ", ".join(f"{value:.2f} s" for value in wasted.measured_s)
    yield from _wrapped(
        f"measured  {wasted.measured_mean_s:7.2f} s, the mean of: {each}", "  ", ink
    )


def _traffic(traffic: Traffic, ink: Ink) -> Iterator[str]:
    yield (
        f"  replicas sent while training  {format_bytes(traffic.checkpoint_bytes):>10}   "
        f"{_count(traffic.versions, 'version')} whole in memory"
    )
    yield f"  shards sent in recoveries     {format_bytes(traffic.recovery_bytes):>10}"
    versions = ", ".join(map(str, traffic.persistent_versions)) or "none"
    yield from _wrapped(
        f"persistent tier               {format_bytes(traffic.persistent_bytes):>10}   "
        f"versions: {versions}",
        "  ",
        ink,
    )
    for failure in traffic.persistent_failures:
        yield f"  not persisted: {failure}"


def render_spent(table: TimeShares, *, ink: Ink = BLOCKS) -> str:
    """Show the parts of a run's time, each with its share."""
    lines = [_heading(f"Every second of {format_seconds(table.wall_s)}", ink)]
    for row in table.rows:
        share = row.seconds / table.wall_s
        bar = ink.bar * round(share * (ink.width - _SHARE_SPACE))
        lines.append(f"  {row.label:<21}{row.seconds:>10.2f} s{share:>7.1%}  {bar}".rstrip())
    return "\n".join(lines)


def _short(holder: str | None) -> str:
    name = holder or ""
    return name if len(name) <= 12 else "..." + name[-9:]


def _ms(duration_s: float) -> str:
    return f"{duration_s * 1000:>6.0f} ms"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
