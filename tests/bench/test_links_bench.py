"""The `links` bench's arithmetic."""

import pytest

from gemini_lab.profiler.profile import Profile
from gemini_lab_bench.benches.links import rows


def test_each_quotient_is_of_two_runs_of_the_same_repeat() -> None:
    paced = [Profile.synthetic(iteration_s=t, idle_spans_s=[0.5]) for t in (2.0, 3.0)]
    shaped = [Profile.synthetic(iteration_s=t, idle_spans_s=[0.5]) for t in (4.0, 3.0)]
    found = {row.name: row.values for row in rows(paced, shaped, rate="5 MB/s")}
    assert found["iteration, paced / shaped"] == (0.5, 1.0)
    assert found["traffic, paced"] == pytest.approx((1.5, 2.5))
    assert found["traffic, paced / shaped"] == pytest.approx((1.5 / 3.5, 1.0))
