"""A run on real nodes goes on with other numbers of them, from memory alone."""

import time

import pytest

from gemini_lab.injector.failures import NodeLoss
from gemini_lab.log.events import RESIZE
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.live_lab import wait_for
from gemini_lab_bench.benches.resize import means
from tests.bench.real_turns import explain

ITERATIONS = 16


def job(**options):
    """Twelve sequences an iteration, which go round among four nodes and among three."""
    return gpt_job(size="tiny", iterations=ITERATIONS, global_batch=12, dropout=0.0, **options)


def sizes(run):
    return [(entry.event.nodes_then, entry.event.nodes) for entry in run.events("resized")]


def test_four_nodes_become_three_and_four_again_from_memory(lab):
    lab.wait_until_ready()
    undisturbed = lab.train(job(), persistent_url=None).wait(200).report()
    run = lab.train(job(layer_s=0.1), persistent_url=None)  # slower, so as to be in time
    run.wait(until=3)
    run.resize(3)
    wait_for(run, recoveries=1)
    assert len(run.members) == 3
    run.wait(until=run.iteration + 2)
    run.resize(4)
    report = run.wait(200).report()
    assert sizes(run) == [(4, 3), (3, 4)]
    assert [(one.cause, one.lost_by_any) for one in report.recoveries] == [(RESIZE, 0)] * 2
    assert {entry.event.tier for entry in run.events("shard_restored")} <= {"local", "peer"}
    assert report.divergences == ()
    first = run.events("resized")[0].event.iteration
    before = {at: loss for at, loss in report.losses.items() if at[0] < first}
    assert before == {at: undisturbed.losses[at] for at in before}  # to the bit
    whole, found = means(undisturbed), means(report)
    assert found.keys() == whole.keys()
    assert found == pytest.approx(whole, rel=1e-5)
    explain(run.log, (8.0, "resize", 2), (5.0, "resize", 3))


@pytest.mark.long
def test_fewer_go_on_without_a_node_and_as_many_as_before_when_another_joins(lab):
    lab.wait_until_ready()
    run = lab.train(
        gpt_job(size="tiny", iterations=10_000, global_batch=12, layer_s=0.05),
        persistent_url=None,
        when_short="shrink",
        shrink_after_s=0,
        grow_pause_s=1,
    )
    run.wait(until=4)
    standby = next(name for name in lab.living if name not in run.members)
    for node in (standby, run.members[2]):
        run.inject(NodeLoss(node))
    wait_for(run, recoveries=2)  # the failure, and the resize when a machine has joined
    report = run.report()
    run.stop()
    assert sizes(run)[:2] == [(4, 3), (3, 4)]
    assert [one.cause for one in report.recoveries] == ["node_lost", RESIZE]
    failure, resize = report.recoveries
    assert failure.lost_iterations <= 1, "but for one whose version was not whole yet"
    assert resize.lost_iterations == 0


@pytest.mark.long
def test_after_a_resize_replicas_are_made_of_gradients_again_and_bring_a_node_back(lab):
    """With so many ranks as there are then; until what makes versions is there, copies leave."""
    lab.wait_until_ready()
    run = lab.train(
        gpt_job(size="tiny", iterations=10_000, global_batch=12, dropout=0.0, layer_s=0.05),
        persistent_url=None,
        replicate="gradients",
    )
    wait_for_gradients(run)
    run.resize(3)
    wait_for(run, recoveries=1)
    newest = wait_for_gradients(run)
    run.inject(NodeLoss(run.members[1]))
    wait_for(run, recoveries=2)
    report = run.report()
    run.stop()
    assert [one.cause for one in report.recoveries] == [RESIZE, "node_lost"]
    assert sizes(run)[0] == (4, 3)
    assert report.recoveries[1].version >= newest
    assert "peer" in {receipt.tier for receipt in report.recoveries[1].receipts}
    assert not run.events("replica_differed")
    assert not run.events("gradients_given_up")


def wait_for_gradients(run):
    """A version that left as gradients in the newest start; returns when there is one."""
    give_up_s = time.monotonic() + 200
    while time.monotonic() < give_up_s:
        told = [entry.event for entry in run.events("version_complete")]
        newest = max((one.epoch for one in told), default=0)
        found = [one.version for one in told if (one.epoch, one.form) == (newest, "gradients")]
        if found:
            return min(found)
        time.sleep(0.2)
    raise AssertionError("all versions left as copies")
