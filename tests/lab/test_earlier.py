"""A run that goes on from an earlier one finds that one's versions, and no others."""

import os

import pytest
from lab_stand_in import ClusterStandIn, lab_on

from gemini_lab import Job
from gemini_lab.lab.lab_config import LabConfig
from gemini_lab.lab.submission import TIER, Submission, earlier_tier
from gemini_lab.recovery.plan import VersionId
from gemini_lab.shard.layout import ShardRecord
from gemini_lab.storage import persistent_tier

ARGS = ["--lr", "1", "--api-key", "abc"]


@pytest.fixture
def job(tmp_path):
    (tmp_path / "train.py").touch()
    return Job(script="train.py", args=ARGS, cwd=str(tmp_path))


def ran(folder, name, job, *, versions=(), at_s):
    """A run that is over, with these versions in its own folder."""
    with lab_on(ClusterStandIn(), folder) as lab:
        run = lab.train(job, name=name)
    os.utime(run.log, (at_s, at_s))
    for version in versions:
        tier = run.folder / TIER
        there = tier / f"version-{version:012}"
        there.mkdir(parents=True)
        (there / "shard").write_bytes(b"x")
        record = ShardRecord(shard=0, file="shard", size_bytes=1, digest="")
        persistent_tier(str(tier), keep=9).commit(version, [record], {})
    return run.folder


def test_the_newest_run_of_the_same_command_that_has_a_version_is_gone_on_from(tmp_path, job):
    runs = tmp_path / "runs"
    ran(runs, "old", job, versions=[3], at_s=1000)
    newer = ran(runs, "newer", job, versions=[7, 9], at_s=2000)
    ran(runs, "without", job, at_s=3000)
    other = Job(script="train.py", args=["--lr", "2"], cwd=job.cwd)
    ran(runs, "other", other, versions=[20], at_s=4000)
    assert earlier_tier(runs, job) == newer / TIER
    assert persistent_tier(str(newer / TIER)).versions() == [7, 9]


def test_a_run_that_went_back_behind_all_that_it_saved_is_not_passed_over_for_an_older_one(
    tmp_path, job
):
    """The older one would go on from less without a word."""
    ran(tmp_path, "old", job, versions=[3], at_s=1000)
    newer = ran(tmp_path, "newer", job, versions=[9], at_s=2000)
    persistent_tier(str(newer / TIER)).disown([VersionId(version=7)])
    assert persistent_tier(str(newer / TIER)).versions() == []
    assert earlier_tier(tmp_path, job) == newer / TIER


def test_a_run_whose_tier_cannot_be_read_just_now_is_not_passed_over_for_an_older_one(
    tmp_path, job
):
    ran(tmp_path, "old", job, versions=[3], at_s=1000)
    newer = ran(tmp_path, "newer", job, versions=[9], at_s=2000)
    (manifest,) = (newer / TIER).glob("version-*/manifest.json")
    manifest.write_text("<html>503</html>")
    assert earlier_tier(tmp_path, job) == newer / TIER


def test_where_there_is_no_earlier_run_a_resumed_one_has_its_own_folder(tmp_path, job):
    config = LabConfig(folder=tmp_path / "runs")
    told = {"scenario": None, "name": "one", "settings": {}}
    wanted = Submission.checked(config, job, resume=True, **told)
    shared = config.folder / "one"
    assert wanted.order(number=1, shared=shared).defaults == {"persistent_url": str(shared / TIER)}
    old = ran(config.folder, "old", job, versions=[3], at_s=1000)
    for resume, folder in ((True, old), (False, shared)):
        wanted = Submission.checked(config, job, resume=resume, **told)
        order = wanted.order(number=1, shared=shared)
        assert order.defaults == {"persistent_url": str(folder / TIER)}


def test_a_log_that_cannot_be_read_is_passed_over(tmp_path, job):
    bad = ran(tmp_path, "bad", job, versions=[3], at_s=1000)
    (bad / "events.jsonl").write_bytes(b'{"kind": "log_opened", "schema": 99}\n')
    assert earlier_tier(tmp_path, job) is None
