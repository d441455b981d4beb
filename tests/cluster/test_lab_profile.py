"""`Lab.profile`: a stage on its own, on real nodes."""

import pytest

from gemini_lab import Lab
from gemini_lab.errors import ConfigError, RunFailedError
from gemini_lab.training.quickstart import gpt_job


def test_a_lab_profiles_a_job_and_stops_it(pair):
    job = gpt_job(size="tiny", iterations=100_000)
    profile = pair.profile(job, profile_iterations=3)
    assert profile.world_size == 2
    assert 1 <= profile.iterations <= 3  # those that stalled are left out
    assert profile.traffic_bytes > 0
    assert pair.run.is_over
    assert pair.run.report().plans[-1].profile == profile
    assert {entry.event.rank for entry in pair.run.events("iteration")} == {0, 1}
    assert pair.run.events("lab_started", "profiled") == [
        entry for entry in pair.run.events() if entry.kind in {"lab_started", "profiled"}
    ]


def test_a_job_too_short_for_a_profile_is_named_as_such(pair):
    with pytest.raises(RunFailedError, match="more iterations"):
        pair.profile(gpt_job(size="tiny", iterations=4))


def test_one_worker_has_no_network_to_profile(tmp_path):
    with (
        Lab(1, 0, folder=tmp_path) as alone,
        pytest.raises(ConfigError, match="two nodes"),
    ):
        alone.profile(gpt_job(size="tiny", iterations=4))
