"""The profile: means, gaps, the verdict, refusals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.errors import ConfigError
from gemini_lab.profiler.average import build_profile
from gemini_lab.profiler.profile import CollectiveRecord, Profile


def record(name: str, start_s: float, end_s: float, size_bytes: int = 100) -> CollectiveRecord:
    return CollectiveRecord(name=name, size_bytes=size_bytes, start_s=start_s, end_s=end_s)


def profile_of(*iterations: list[CollectiveRecord], iteration_s: float = 10.0) -> Profile:
    return build_profile(
        iterations,
        iteration_s=[iteration_s] * len(iterations),
        update_s=[8.0] * len(iterations),
        world_size=4,
    )


def test_means_and_deviations_are_those_of_the_records() -> None:
    profile = profile_of([record("gather", 1.0, 3.0)], [record("gather", 2.0, 5.0)])
    (gather,) = profile.collectives
    assert (gather.start_s, gather.end_s) == (1.5, 4.0)
    assert (gather.start_std_s, gather.end_std_s) == (0.5, 1.0)
    assert gather.duration_s == 2.5


def test_idle_spans_are_the_gaps_and_the_update_parts_the_last_one() -> None:
    profile = profile_of([record("gather", 1.0, 3.0), record("reduce", 5.0, 6.0)])
    found = [(s.start_s, s.end_s, s.after, s.before_update) for s in profile.idle_spans]
    assert found == [
        (0.0, 1.0, 0, True),
        (3.0, 5.0, 1, True),
        (6.0, 8.0, 2, True),
        (8.0, 10.0, 2, False),
    ]
    assert profile.idle_s == 7.0
    assert profile.last_collective_end_s == 6.0


def test_a_collective_after_the_update_is_no_reason_to_wait_for_the_checkpoint() -> None:
    profile = profile_of([record("reduce", 5.0, 6.0), record("gather", 8.5, 9.0)])
    assert [s.before_update for s in profile.idle_spans] == [True, True, False, False]
    assert [s.after for s in profile.idle_spans] == [0, 1, 1, 2]
    assert profile.last_collective_end_s == 6.0


def test_overlapping_collectives_leave_no_gap_between_them() -> None:
    profile = profile_of([record("a", 0.0, 4.0), record("b", 1.0, 2.0), record("c", 3.0, 8.0)])
    assert [(s.start_s, s.end_s) for s in profile.idle_spans] == [(8.0, 10.0)]


def test_iterations_that_differ_are_refused_with_the_place() -> None:
    with pytest.raises(ConfigError, match=r"iteration 1 differs.*collective 0 is b of 7 B"):
        profile_of([record("a", 0, 1)], [record("b", 0, 1, size_bytes=7)])
    with pytest.raises(ConfigError, match="2 collectives in an iteration, were 1"):
        profile_of([record("a", 0, 1)], [record("a", 0, 1), record("a", 2, 3)])
    with pytest.raises(ConfigError, match="at least one iteration"):
        build_profile([], iteration_s=[])


def test_a_time_line_that_varies_by_more_than_ten_percent_is_unsteady_and_says_where() -> None:
    """Section 5.4: the normalised standard deviation stays below 10 %."""
    steady = profile_of([record("a", 4.0, 5.0)], [record("a", 4.1, 5.1)])
    assert steady.steady
    assert steady.verdict.startswith("steady")
    unsteady = profile_of([record("a", 1.0, 2.0)], [record("a", 6.0, 7.0)])
    assert not unsteady.steady
    assert "the span at" in unsteady.verdict


def test_another_job_or_world_size_is_refused_and_named() -> None:
    profile = profile_of([record("a", 0, 1)])
    profile.check_fits(sequence=[("a", 100)], world_size=4)
    with pytest.raises(ConfigError, match="made with 4 ranks, this job has 2"):
        profile.check_fits(sequence=[("a", 100)], world_size=2)
    with pytest.raises(ConfigError, match="collective 0 is a of 99 B"):
        profile.check_fits(sequence=[("a", 99)], world_size=4)


def test_json_gives_the_same_profile_back() -> None:
    profile = profile_of([record("a", 0, 1)], [record("a", 0.5, 1)])
    assert Profile.from_json(profile.to_json()) == profile
    with pytest.raises(ConfigError, match="no profile"):
        Profile.from_json("[1]")
    with pytest.raises(ConfigError, match="no profile"):
        Profile.from_json("{")


def test_the_fingerprint_sees_names_and_sizes_but_not_times() -> None:
    assert (
        profile_of([record("a", 0, 1)]).fingerprint == profile_of([record("a", 2, 3)]).fingerprint
    )
    assert (
        profile_of([record("a", 0, 1)]).fingerprint
        != profile_of([record("a", 0, 1, 9)]).fingerprint
    )


@given(st.lists(st.floats(0, 10), max_size=8), st.floats(0.01, 100), st.floats(0, 5))
def test_a_synthetic_profile_has_the_spans_asked_for(
    idle_spans_s: list[float], busy_s: float, tail_s: float
) -> None:
    update_s = sum(idle_spans_s) + busy_s
    profile = Profile.synthetic(
        iteration_s=update_s + tail_s, idle_spans_s=idle_spans_s, update_s=update_s
    )
    assert [span.duration_s for span in profile.idle_spans] == idle_spans_s
    assert profile.last_collective_end_s == pytest.approx(update_s)
    assert profile.steady
    assert "\n" not in repr(profile)


def test_a_synthetic_profile_refuses_more_idle_time_than_there_is() -> None:
    with pytest.raises(ConfigError, match="do not fit before the update"):
        Profile.synthetic(iteration_s=1.0, idle_spans_s=[0.7, 0.7])


@pytest.mark.parametrize(
    "times",
    [
        {"iteration_s": math.nan, "idle_spans_s": [0.1]},
        {"iteration_s": math.inf, "idle_spans_s": [0.1]},
        {"iteration_s": 1.0, "idle_spans_s": [math.nan]},
        {"iteration_s": 1.0, "idle_spans_s": [], "update_s": math.nan},
    ],
)
def test_a_synthetic_profile_refuses_times_that_are_not_finite(times: dict) -> None:
    with pytest.raises(ConfigError, match="times are finite"):
        Profile.synthetic(**times)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), max_size=6), st.floats(0, 5))
def test_idle_and_busy_time_make_up_the_iteration(
    steps: list[tuple[float, float]], tail_s: float
) -> None:
    """Collectives one after another: what is not in one is in an idle span."""
    records, at_s = [], 0.0
    for wait_s, length_s in steps:
        records.append(record("a", at_s + wait_s, at_s + wait_s + length_s))
        at_s = records[-1].end_s
    profile = build_profile([records], iteration_s=[at_s + tail_s])
    busy_s = sum(c.duration_s for c in profile.collectives)
    assert profile.idle_s + busy_s == pytest.approx(at_s + tail_s)
