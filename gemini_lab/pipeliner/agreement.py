"""One profile for all ranks: the mean of what each of them saw.

The ranks of a job call the same collectives at nearly, but not quite, the same times. As sender and
receiver must walk the same schedule, they plan with the same numbers.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from gemini_lab.profiler.profile import IdleSpan, Profile


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
