"""A planned drain on real nodes: ranks move between two iterations, and nothing is done again."""

from gemini_lab.injector.failures import NodeLoss
from gemini_lab.log.events import DRAIN
from gemini_lab.training.quickstart import gpt_job
from tests.bench.real_turns import explain

ITERATIONS = 24


def test_a_drained_nodes_ranks_go_on_elsewhere_and_nothing_is_done_again(lab, undisturbed):
    lab.wait_until_ready()
    run = lab.train(gpt_job(size="tiny", iterations=ITERATIONS), persistent_url=None)
    run.wait(until=5)
    # Not the root agent's: if that machine goes while a run ends, another root agent ends it again.
    node = next(one for one in run.members[1:] if one != lab.root)
    run.drain(node)
    report = run.wait(200).report()
    (drained,) = run.events("node_drained")
    assert drained.event.name == node
    assert node not in run.members
    (moved,) = report.recoveries
    assert (moved.cause, moved.lost_by_any) == (DRAIN, 0)
    assert report.losses_match(undisturbed(iterations=ITERATIONS))
    explain(run.log, (8.0, "drain", 1))
    last = lab.train(gpt_job(size="tiny", iterations=3), persistent_url=None)
    last.wait(until=1)
    last.inject(NodeLoss(node))  # its machine is taken
    last.wait(200)
    assert last.report().recoveries == ()
