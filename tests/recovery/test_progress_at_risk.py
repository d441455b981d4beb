"""Progress is not thrown away while it may come back."""

from gemini_lab.recovery.plan import Copy, RecoveryPlan
from gemini_lab.recovery.progress_at_risk import Hopes, newest_seen, reason_to_wait


def plan(version: int | None, tier: str) -> RecoveryPlan:
    return RecoveryPlan(version=version, tier=tier, members=(), sources=(), transfers=(), reason="")


def test_the_newest_version_is_taken_without_waiting():
    assert reason_to_wait(plan(9, "memory"), Hopes(newest=9, silent=["node-1"])) is None


def test_a_silent_nodes_newer_version_is_waited_for():
    told = reason_to_wait(plan(4, "persistent"), Hopes(newest=9, silent=["node-10", "node-2"]))
    assert told is not None
    assert told.startswith("node-2, node-10 fell silent with version 9")
    assert "lose 5 iterations" in told


def test_a_tier_that_cannot_be_read_is_not_an_empty_one():
    told = reason_to_wait(plan(None, "start"), Hopes(newest=22, unread="503"))
    assert told is not None
    assert "cannot be read (503)" in told


def test_what_is_gone_for_certain_is_not_waited_for():
    assert reason_to_wait(plan(4, "persistent"), Hopes(newest=9)) is None


def test_starting_anew_is_a_persons_to_decide():
    told = reason_to_wait(plan(None, "start"), Hopes(newest=9))
    assert told is not None
    assert "the start would lose 9 iterations" in told


def test_a_job_that_has_no_version_yet_starts():
    assert reason_to_wait(plan(None, "start"), Hopes(newest=0, silent=["node-1"])) is None


def test_of_the_versions_seen_the_newest_may_not_have_become_whole():
    copies = [Copy(shard=0, version=version, node="n") for version in (15, 16, 16)]
    assert newest_seen(copies) == 15
    assert newest_seen(copies[:1]) == 0
