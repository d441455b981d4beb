"""The profiler's decisions, over lists of iterations."""

import pytest

from gemini_lab.errors import ConfigError
from gemini_lab.profiler.observe import IterationRecord, Profiler, SequenceChange
from gemini_lab.profiler.profile import CollectiveRecord, Profile


def iteration(*names: str, late_s: float = 0.0) -> IterationRecord:
    """An iteration, in which all begins so much later."""
    records = tuple(
        CollectiveRecord(name=name, size_bytes=8, start_s=late_s + n, end_s=late_s + n + 0.5)
        for n, name in enumerate(names)
    )
    return IterationRecord(collectives=records, iteration_s=10.0 + late_s, update_s=9.0 + late_s)


def test_twenty_iterations_after_three_skipped_ones_make_a_profile() -> None:
    """Section 5.4: 20 iterations."""
    profiler = Profiler(world_size=4, conditions=["a paced link"])
    seen = [profiler.observe(iteration("a")) for _ in range(23)]
    assert seen[:-1] == [None] * 22
    profile = seen[-1]
    assert isinstance(profile, Profile)
    assert (profile.iterations, profile.world_size) == (20, 4)
    assert profile.conditions == ("a paced link",)
    assert profiler.profile is profile


def test_an_evaluation_between_two_iterations_is_no_idle_time_of_the_network() -> None:
    profiler = Profiler(iterations=8, skip=0)
    profiles = [profiler.observe(iteration("a", late_s=100.0 * (n in {2, 6}))) for n in range(8)]
    profile = profiles[-1]
    assert isinstance(profile, Profile)
    assert profile.iterations == 6
    assert profile.steady
    assert (profile.iteration_s, profile.idle_s) == (10.0, 9.5)


def test_iterations_that_differ_before_the_profile_is_made_start_it_again() -> None:
    profiler = Profiler(iterations=2, skip=0)
    assert profiler.observe(iteration("a")) is None
    assert profiler.observe(iteration("a", "b")) is None
    profile = profiler.observe(iteration("a", "b"))
    assert isinstance(profile, Profile)
    assert len(profile.collectives) == 2


def test_a_changed_sequence_is_noticed_and_profiled_again() -> None:
    profiler = Profiler(iterations=2, skip=1)
    for _ in range(3):
        profiler.observe(iteration("a"))
    assert profiler.observe(iteration("a")) is None
    change = profiler.observe(iteration("b"))
    assert isinstance(change, SequenceChange)
    assert change.iteration == 4
    assert change.difference.startswith("collective 0 is b")
    assert profiler.profile is None
    assert profiler.observe(iteration("b")) is None  # skipped
    assert profiler.observe(iteration("b")) is None
    assert isinstance(profiler.observe(iteration("b")), Profile)


@pytest.mark.parametrize(("iterations", "skip"), [(0, 0), (1, -1)])
def test_an_impossible_number_of_iterations_is_refused(iterations: int, skip: int) -> None:
    with pytest.raises(ConfigError, match="cannot be made"):
        Profiler(iterations=iterations, skip=skip)
