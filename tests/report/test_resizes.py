"""A run that went on with another number of nodes, in tables and in its report."""

from told_runs import ToldRun, resized

from gemini_lab.log import events
from gemini_lab.report import build_report
from gemini_lab.report.reducer import RunReducer
from gemini_lab.report.tables.recoveries import losses
from gemini_lab.report.tables.status import status
from gemini_lab.report.text import render


def smaller():
    run = ToldRun(standbys=0).protect().train(1, 5)
    return resized(run, ["node-0", "node-2", "node-3"], 5)


def reduced(run):
    reducer = RunReducer()
    for entry in run.entries:
        reducer.take(entry)
    return reducer


def shown(run):
    reducer = reduced(run)
    now_s = run.now_s
    return status(reducer, now_s=now_s, losses=losses(reducer))


def test_the_new_shards_have_no_replicas_until_a_version_of_them_is_whole():
    run = smaller()
    assert reduced(run).copies.survivable() == (0, 5)
    run.train(6, 7)
    assert reduced(run).copies.survivable() == (1, 7)
    assert reduced(run).unread == 0


def test_what_the_run_waits_for_is_shown_until_it_has_its_size():
    run = smaller().train(6, 6)
    run.say_root(events.ResizeWaiting, nodes=4, reason="a machine is missing")
    assert "4 nodes: a machine is missing" in shown(run).notes
    resized(run, ["node-0", "node-2", "node-3", "node-9"], 6).train(7, 7)
    assert shown(run).notes == ("4 nodes in place of 3 from iteration 7 on",)
    assert reduced(run).reached.done() == 7
    assert reduced(run).unread == 0


def begin(run, iteration):
    for rank in run.ranks:
        inputs = events.Inputs(batch=f"{rank} of {run.nodes}", random={}, ranks=run.nodes)
        run.say_worker(events.IterationBegun, rank, iteration=iteration, inputs=inputs)
    return run


def test_ranks_of_another_number_are_not_compared_with_those_before():
    before = begin(ToldRun(standbys=0).protect().train(1, 5), 6).iterate(6, losses=True)
    after = resized(before, ["node-0", "node-2", "node-3"], 5)
    after.now_s += 1
    begin(after, 6)
    for rank in after.ranks:
        after.say_worker(events.Iteration, rank, iteration=6, duration_s=1.0, values={"loss": 1.25})
    assert build_report(after.entries).divergences == ()


def refused_with(error):
    """A resize to three nodes that the script refuses; all go on as the four that they were."""
    run = ToldRun(standbys=0).protect().train(1, 5)
    run.fail(known=5, cause=events.RESIZE)
    run.epoch += 1
    run.step("fence", 0.1).exit(0, output=["Traceback (most recent call last):", error])
    run.say_root(events.ResizeRefused, nodes=3, reason=f"rank 0: {error}")
    run.step("fence", 0.1).plan(5).resume(5, known_lost=0)
    return render(build_report(run.entries))


def test_a_refused_size_says_so_and_where_its_second_try_begins():
    text = refused_with("gemini_lab.errors.ConfigError: the global batch would be 9 samples")
    assert "Recovery 1: resize to 3 nodes, refused, training again after" in text
    assert "! 3 nodes are refused: rank 0" in text
    assert [
        line.split()[0] for line in text.splitlines() if line.startswith(("  fenc", "  again"))
    ] == [
        "fencing",
        "again:",
        "fencing",
    ]
    assert "Traceback" not in text
    assert "Traceback" in refused_with("ValueError: no batch for three")


def test_two_failures_of_one_recovery_are_counted_there():
    run = ToldRun().protect().train(1, 5).fail("node-1", "node-2", known=5).plan(5).resume(5)
    text = render(build_report(run.entries))
    assert "Recovery 1: 2 failures in one: node loss on node-1, node loss on" in text
