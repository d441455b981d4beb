"""Copies that follow the risk on real nodes: who fails often is kept once more, bit-identical."""

import pytest

from gemini_lab import Lab
from gemini_lab.injector.failures import NodeLoss, WorkerCrash
from gemini_lab.log.events import REPLICAS
from gemini_lab.training.quickstart import gpt_job

ITERATIONS = 24
MOST_KILLS = 5


def test_a_node_that_fails_again_and_again_has_its_shard_kept_once_more(tmp_path, undisturbed):
    quiet = undisturbed(iterations=ITERATIONS)
    with Lab(4, 1, folder=tmp_path) as fresh:  # one that knows of no failures
        fresh.wait_until_ready()
        job = gpt_job(size="tiny", iterations=ITERATIONS)
        run = fresh.train(job, persistent_url=None, replicas="auto", survival_target=0.9993)
        kills = 0  # one of which another rank's error is heard first says nothing of the node
        while not run.events("replicas_placed") and kills < MOST_KILLS:
            run.wait(until=4 * kills + 4)
            struck = run.members[2]
            run.inject(WorkerCrash(struck))
            kills += 1
            run.wait(until=4 * kills + 3)
        report = run.wait(200).report()
    changes = [entry.event for entry in run.events("replicas_placed")]
    assert changes, "three failures of one node changed nothing"
    assert "failed 3 times" in changes[-1].reason
    assert len(changes[-1].placement.holders[2]) == 3
    moved = {
        (one.shard, one.receiver)
        for planned in run.events("recovery_planned")
        for one in planned.event.transfers
    }
    added = {move for change in changes for move in change.added}
    assert added <= moved
    assert {receiver for _, receiver in moved - added} <= {struck}  # killed within a copy
    assert len(report.recoveries) == kills
    assert all(recovery.tier == "memory" for recovery in report.recoveries)
    assert report.losses_match(quiet)


@pytest.mark.long  # a lab of its own, with racks
def test_shards_that_come_to_be_in_one_rack_move_and_what_is_too_many_goes_between_iterations(
    tmp_path, undisturbed
):
    quiet = undisturbed(iterations=2 * ITERATIONS)
    with Lab(4, 1, racks=["a", "b", "a", "b", "a"], folder=tmp_path) as racks:
        racks.wait_until_ready()
        job = gpt_job(size="tiny", iterations=2 * ITERATIONS)
        run = racks.train(job, persistent_url=None, replicas="auto", adapt_pause_s=3.0)
        run.wait(until=5)
        run.inject(NodeLoss(run.members[1]))
        report = run.wait(200).report()
        moved, shed = [entry.event for entry in run.events("replicas_placed")]
    assert not moved.dropped
    assert not shed.added
    assert "in one rack" in moved.reason
    lost, planned = report.recoveries
    assert (planned.cause, planned.lost_by_any) == (REPLICAS, 0)
    rack_of = {"node-0": "a", "node-1": "b", "node-2": "a", "node-3": "b", "node-4": "a"}
    for kept in shed.placement.holders:
        assert len({rack_of[run.members[position]] for position in kept}) == 2
    assert lost.tier == "memory"
    assert report.losses_match(quiet)


@pytest.mark.long  # two labs, one after the other
def test_a_run_begins_with_what_an_earlier_log_says_and_spares_a_node_with_little_memory(
    tmp_path, undisturbed
):
    quiet = undisturbed(iterations=ITERATIONS)
    job = gpt_job(size="tiny", iterations=ITERATIONS)
    with Lab(4, 1, folder=tmp_path / "earlier") as lab:
        lab.wait_until_ready()
        earlier = lab.train(job, persistent_url=None)
        for iteration in (4, 9, 14):
            earlier.wait(until=iteration)
            earlier.inject(WorkerCrash("node-2"))
        earlier.wait(200)
    shard_bytes = max(entry.event.shard_bytes for entry in earlier.events("protected"))
    with Lab(4, 1, folder=tmp_path / "later") as lab:
        lab.wait_until_ready()
        run = lab.train(
            job,
            persistent_url=None,
            replicas="auto",
            survival_target=0.9993,
            risk_from=str(earlier.folder),
            replica_memory=f"1 GiB, node-3: {3 * shard_bytes}",  # one shard, in two buffers
        )
        run.wait(until=8)
        run.inject(NodeLoss("node-2"))
        report = run.wait(200).report()
    told = [entry.event.placement for entry in run.events("protected")]
    first = next(placement for placement in told if placement is not None)
    assert len(first.holders[2]) == 3  # two, where nothing is known
    assert not any(3 in kept for kept in first.holders[:3])
    (lost,) = report.recoveries
    assert lost.tier == "memory"
    assert report.losses_match(quiet)
