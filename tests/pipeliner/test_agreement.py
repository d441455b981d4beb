"""All ranks' profiles become one, the same on every rank."""

from dataclasses import replace

import pytest

from gemini_lab.profiler.average import encode, mean_profile
from gemini_lab.profiler.profile import Collective, IdleSpan, Profile


def profile(*, shift_s: float = 0.0, spans: tuple[IdleSpan, ...] | None = None) -> Profile:
    calls = tuple(
        Collective(name="all_reduce", size_bytes=8 * n, start_s=n + shift_s, end_s=n + 0.5)
        for n in range(1, 4)
    )
    found = (
        IdleSpan(start_s=0.0, duration_s=1.0 + shift_s, after=0, std_s=shift_s),
        IdleSpan(start_s=3.5, duration_s=0.5, after=3, before_update=False),
    )
    return Profile(
        collectives=calls,
        idle_spans=found if spans is None else spans,
        iteration_s=4.0 + shift_s,
        iteration_std_s=shift_s,
        update_s=2.5,
        iterations=5,
        world_size=2,
    )


def test_the_agreed_profile_is_the_same_whoever_makes_it() -> None:
    ours, theirs = profile(), profile(shift_s=0.2)
    tables = [encode(ours), encode(theirs)]
    assert mean_profile(ours, tables) == mean_profile(theirs, tables)


def test_times_are_means_and_deviations_the_largest() -> None:
    ours, theirs = profile(), profile(shift_s=0.2)
    agreed = mean_profile(ours, [encode(ours), encode(theirs)])
    assert agreed.iteration_s == pytest.approx(4.1)
    assert agreed.iteration_std_s == pytest.approx(0.2)
    assert agreed.collectives[0].start_s == pytest.approx(1.1)
    assert agreed.idle_spans[0].duration_s == pytest.approx(1.1)
    assert agreed.idle_spans[0].std_s == pytest.approx(0.2)
    assert agreed.sequence == ours.sequence


def test_one_rank_alone_keeps_its_profile() -> None:
    alone = profile(shift_s=0.125)
    assert mean_profile(alone, [encode(alone)]) == alone


def test_a_span_that_only_one_of_two_ranks_saw_counts_half() -> None:
    seen = IdleSpan(start_s=1.5, duration_s=0.4, after=1)
    ours, theirs = profile(spans=(seen,)), profile(spans=())
    (span,) = mean_profile(theirs, [encode(ours), encode(theirs)]).idle_spans
    assert span == replace(seen, duration_s=pytest.approx(0.2))
