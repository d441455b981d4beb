"""From the records of some iterations to their mean: the profile (paper, section 5.4)."""

from collections.abc import Sequence
from statistics import fmean, pstdev

from gemini_lab.errors import ConfigError
from gemini_lab.profiler.profile import (
    Collective,
    CollectiveRecord,
    IdleSpan,
    Profile,
    first_difference,
)


def build_profile(
    iterations: Sequence[Sequence[CollectiveRecord]],
    *,
    iteration_s: Sequence[float],
    update_s: Sequence[float] | None = None,
    world_size: int = 1,
    conditions: Sequence[str] = (),
) -> Profile:
    """Build the mean iteration of recorded ones.

    Args:
        iterations: The records of each iteration, in the order of the calls.
        iteration_s: Each iteration's duration.
        update_s: Where each iteration's optimizer step began; without it, at the end.
        world_size: Number of ranks of the job.
        conditions: See `Profile.conditions`.

    Raises:
        ConfigError: There is no iteration, or two of them differ in their sequence of collectives.
    """
    if not iterations or len(iterations) != len(iteration_s):
        raise ConfigError(
            f"a profile needs iterations and their durations (got {len(iterations)} and "
            f"{len(iteration_s)}); profile at least one iteration"
        )
    _check_same(iterations)
    updates_s = list(iteration_s if update_s is None else update_s)
    return Profile(
        collectives=tuple(_mean(records) for records in zip(*iterations, strict=True)),
        idle_spans=_idle_spans(iterations, iteration_s, updates_s),
        iteration_s=fmean(iteration_s),
        iteration_std_s=pstdev(iteration_s),
        update_s=fmean(updates_s),
        iterations=len(iterations),
        world_size=world_size,
        conditions=tuple(conditions),
    )


def _check_same(iterations: Sequence[Sequence[CollectiveRecord]]) -> None:
    first, *others = [[(r.name, r.size_bytes) for r in records] for records in iterations]
    for number, other in enumerate(others, start=1):
        difference = first_difference(first, other)
        if difference:
            raise ConfigError(
                f"profiled iteration {number} differs from iteration 0: {difference}; "
                "profile where the iterations repeat (skip more, or fix the batch's shape)"
            )


def _mean(records: Sequence[CollectiveRecord]) -> Collective:
    """Return the same collective of all iterations as one."""
    return Collective(
        name=records[0].name,
        size_bytes=records[0].size_bytes,
        start_s=fmean(r.start_s for r in records),
        end_s=fmean(r.end_s for r in records),
        start_std_s=pstdev(r.start_s for r in records),
        end_std_s=pstdev(r.end_s for r in records),
    )


def _idle_spans(
    iterations: Sequence[Sequence[CollectiveRecord]],
    iteration_s: Sequence[float],
    update_s: Sequence[float],
) -> tuple[IdleSpan, ...]:
    """Return the mean gaps between collectives, without those that are always empty.

    A gap begins when every earlier collective has ended, so overlapping calls leave none. The
    update parts the gap in which it begins.
    """
    before = sum(record.start_s < update_s[0] for record in iterations[0])
    all_gaps = [
        gaps(*times, before=before) for times in zip(iterations, iteration_s, update_s, strict=True)
    ]
    spans = []
    for number, gap in enumerate(zip(*all_gaps, strict=True)):
        lengths_s = [end_s - start_s for start_s, end_s in gap]
        if max(lengths_s) > 0:
            spans.append(
                IdleSpan(
                    start_s=fmean(start_s for start_s, _ in gap),
                    duration_s=fmean(lengths_s),
                    std_s=pstdev(lengths_s),
                    after=number if number <= before else number - 1,
                    before_update=number <= before,
                )
            )
    return tuple(spans)


def gaps(
    records: Sequence[CollectiveRecord], iteration_s: float, update_s: float, *, before: int
) -> list[tuple[float, float]]:
    """Start and end of the gap before each collective, before the update and before the end.

    Args:
        records: Of one iteration, in the order of the calls.
        iteration_s: Its duration.
        update_s: Where its optimizer step began.
        before: How many collectives were called before that.
    """
    busy = [(record.start_s, record.end_s) for record in records]
    busy.insert(before, (update_s, update_s))
    found = []
    free_s = 0.0
    for start_s, end_s in [*busy, (iteration_s, iteration_s)]:
        found.append((free_s, max(free_s, start_s)))
        free_s = max(free_s, end_s)
    return found
