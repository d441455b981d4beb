"""The profile in a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from gemini_lab.profiler.average import build_profile
from gemini_lab.profiler.profile import (
    BUSY,
    IDLE,
    PARTLY,
    CollectiveRecord,
    Profile,
    report,
    timeline,
)


def test_the_time_line_shows_busy_and_idle_in_proportion() -> None:
    busy = CollectiveRecord(name="all_reduce", size_bytes=8, start_s=2.0, end_s=6.0)
    profile = build_profile([[busy]], iteration_s=[10.0], update_s=[8.0])
    network, update, *_ = timeline(profile, width=10).splitlines()
    assert network.split()[1] == IDLE * 2 + BUSY * 4 + IDLE * 4
    assert update.index("^") - network.index(IDLE) == 8


@given(st.lists(st.floats(0.0, 9.0), max_size=5), st.integers(8, 120))
def test_the_time_line_has_the_width_asked_for(idle_spans_s: list[float], width: int) -> None:
    profile = Profile.synthetic(iteration_s=50.0, idle_spans_s=idle_spans_s)
    network = timeline(profile, width=width).splitlines()[0].split()[1]
    assert len(network) == width
    assert set(network) <= {BUSY, PARTLY, IDLE}


def test_the_report_groups_equal_collectives_and_names_the_conditions() -> None:
    records = [
        CollectiveRecord(name="all_reduce", size_bytes=8, start_s=float(n), end_s=n + 0.5)
        for n in range(4)
    ]
    profile = build_profile([records], iteration_s=[5.0], conditions=["a paced link"])
    text = report(profile, longest=2)
    assert text.count("all_reduce") == 1
    assert "2 shorter" in text
    assert "verdict: steady" in text
    assert "made with a paced link" in text
