"""Progress is not thrown away while it may come back: see the stories in `test_root_patience`."""

from gemini_lab.recovery.plan import Copy, RecoveryPlan
from gemini_lab.recovery.progress_at_risk import Hopes, newest_seen, reason_to_wait


def test_a_job_that_has_no_version_yet_starts():
    plan = RecoveryPlan(version=None, tier="start", members=(), sources=(), transfers=(), reason="")
    assert reason_to_wait(plan, Hopes(newest=0, silent=["node-1"])) is None


def test_of_the_versions_seen_the_newest_may_not_have_become_whole():
    copies = [Copy(shard=0, version=version, node="n") for version in (15, 16, 16)]
    assert newest_seen(copies) == 15
    assert newest_seen(copies[:1]) == 0
