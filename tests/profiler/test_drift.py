"""When idle spans count as drifted: by their medians, beyond what they vary by, and for long."""

import random

import pytest

from gemini_lab.profiler.average import build_profile
from gemini_lab.profiler.drift import WINDOW, WINDOWS, Drift, DriftWatch
from gemini_lab.profiler.observe import IterationRecord
from gemini_lab.profiler.profile import CollectiveRecord, Profile


def iteration(*idle_s: float, busy_s: float = 0.1) -> IterationRecord:
    """Idle spans with a collective after each, then the update."""
    records, at_s = [], 0.0
    for length_s in idle_s:
        start_s = at_s + length_s
        at_s = start_s + busy_s
        records.append(
            CollectiveRecord(name="all_reduce", size_bytes=8, start_s=start_s, end_s=at_s)
        )
    return IterationRecord(collectives=tuple(records), iteration_s=at_s + 0.1, update_s=at_s)


def profile_of(*records: IterationRecord) -> Profile:
    return build_profile(
        [one.collectives for one in records],
        iteration_s=[one.iteration_s for one in records],
        update_s=[one.update_s for one in records],
    )


def shown(watch: DriftWatch, *records: IterationRecord) -> list[int]:
    """At which of these a drift is seen."""
    return [n for n, one in enumerate(records, 1) if watch.observe(one) is not None]


AS_IT_WAS = iteration(0.4, 0.4)


@pytest.mark.parametrize(
    "now",
    [iteration(0.1, 0.4), iteration(0.4, 0.9), iteration(0.1, 0.7)],
    ids=["a span is shorter", "one is longer", "one gave to another"],
)
def test_spans_that_differ_by_a_fifth_of_the_iteration_are_seen_after_two_windows(now) -> None:
    watch = DriftWatch(profile_of(AS_IT_WAS))
    records = [*[AS_IT_WAS] * 3 * WINDOW, *[now] * 2 * WINDOWS * WINDOW]
    assert shown(watch, *records)[0] == (3 + WINDOWS) * WINDOW


def test_the_drift_is_told_in_numbers() -> None:
    watch = DriftWatch(profile_of(AS_IT_WAS))
    shown(watch, *[AS_IT_WAS] * WINDOW)
    found = [watch.observe(iteration(0.1, 0.4)) for _ in range(WINDOWS * WINDOW)][-1]
    assert isinstance(found, Drift)
    assert "was 800 ms of an iteration and is 500 ms" in found.difference
    assert "differ by 300 ms in all, in 20 iterations in a row" in found.difference


def test_less_than_a_fifth_is_no_drift_however_long_it_lasts() -> None:
    watch = DriftWatch(profile_of(AS_IT_WAS))
    assert not shown(watch, *[AS_IT_WAS] * WINDOW, *[iteration(0.3, 0.4)] * 500)


def test_longer_collectives_alone_leave_the_spans_as_they_are() -> None:
    watch = DriftWatch(profile_of(AS_IT_WAS))
    assert not shown(watch, *[AS_IT_WAS] * WINDOW, *[iteration(0.4, 0.4, busy_s=3.0)] * 100)


def test_one_window_or_single_stalls_are_no_drift() -> None:
    watch = DriftWatch(profile_of(AS_IT_WAS))
    other = iteration(5.0, 0.0)
    window = [*[AS_IT_WAS] * 6, *[other] * 4]
    records = [AS_IT_WAS] * WINDOW + [other] * WINDOW + [AS_IT_WAS] * WINDOW + window * 50
    assert not shown(watch, *records)


def test_what_checkpoints_do_from_the_plans_first_iteration_on_is_no_drift() -> None:
    watch = DriftWatch(profile_of(AS_IT_WAS))
    assert not shown(watch, *[iteration(0.1, 0.1)] * 500)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("spans", [1, 20])
def test_what_varies_by_a_half_does_not_drift_in_hundreds_of_iterations(
    share: float, spans: int
) -> None:
    draw = random.Random(3)

    def one() -> IterationRecord:
        return iteration(*(max(0.0, draw.gauss(1.0, share)) for _ in range(spans)))

    watch = DriftWatch(profile_of(*[one() for _ in range(20)]))
    assert not shown(watch, *[one() for _ in range(1000)])
