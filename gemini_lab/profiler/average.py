"""From the records of some iterations to their mean: the profile (paper, section 5.4)."""

from collections.abc import Sequence
from dataclasses import replace
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


def encode(profile: Profile) -> list[int]:
    """Encode the profile's times as nanoseconds; as many on all ranks with its sequence."""
    times_s = [profile.iteration_s, profile.iteration_std_s, profile.update_s]
    for collective in profile.collectives:
        times_s += [collective.start_s, collective.end_s]
    spans = {(span.after, span.before_update): span for span in profile.idle_spans}
    for key in _gaps(profile):
        span = spans.get(key)
        times_s += [0.0, 0.0, 0.0] if span is None else [span.start_s, span.duration_s, span.std_s]
    return [round(time_s * 1e9) for time_s in times_s]


def mean_profile(profile: Profile, tables: Sequence[Sequence[int]]) -> Profile:
    """Return the profile of all ranks together.

    Times are means; a standard deviation is the largest one. A span that only some ranks saw
    counts as empty on the others.

    Args:
        profile: This rank's; the others' have the same sequence of collectives.
        tables: What `encode` gave on every rank.
    """
    columns = [
        [nanoseconds / 1e9 for nanoseconds in column] for column in zip(*tables, strict=True)
    ]
    head, rest = columns[:3], columns[3:]
    middle = 2 * len(profile.collectives)
    collectives = tuple(
        replace(collective, start_s=fmean(start), end_s=fmean(end))
        for collective, start, end in zip(
            profile.collectives, rest[:middle:2], rest[1:middle:2], strict=True
        )
    )
    spans = []
    for number, (after, before_update) in enumerate(_gaps(profile)):
        starts, durations, stds = rest[middle + 3 * number : middle + 3 * number + 3]
        seen = [start for start, duration in zip(starts, durations, strict=True) if duration > 0]
        if seen:
            spans.append(
                IdleSpan(
                    start_s=fmean(seen),
                    duration_s=fmean(durations),
                    std_s=max(stds),
                    after=after,
                    before_update=before_update,
                )
            )
    return replace(
        profile,
        collectives=collectives,
        idle_spans=tuple(spans),
        iteration_s=fmean(head[0]),
        iteration_std_s=max(head[1]),
        update_s=fmean(head[2]),
    )


def _gaps(profile: Profile) -> list[tuple[int, bool]]:
    """Return where spans can be, in order: calls before each, and if it is before the update."""
    calls, before = len(profile.collectives), profile.collectives_before_update
    earlier = [(after, True) for after in range(before + 1)]
    return earlier + [(after, False) for after in range(before, calls + 1)]
