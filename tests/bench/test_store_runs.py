"""Claims about real ranks under torchrun whose checkpoints go to a throttled store."""

from gemini_lab_bench.benches.store_runs import failure_of, started, stood_at


def test_ranks_that_are_killed_while_they_start_go_on_from_their_checkpoint():
    with started(1, 1e9, job=()) as job:
        job.wait("whole", after_s=0.0)
        job.kill()
        killed_s = job.kill()  # of the first start nothing was written down yet
        said = job.wait("iteration", after_s=killed_s)
    loaded = stood_at(said, killed_s, killed_s=killed_s)
    assert loaded >= 1
    assert min(one["version"] for one in said if one["at_s"] > killed_s) == loaded
    failure = failure_of(said, killed_s)
    assert failure.wasted_s > 0
    assert failure.restart_s > 0
