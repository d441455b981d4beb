"""A node that computes wrong is named and replaced, and no bit of what follows is its own."""

import pytest

from gemini_lab.injector.failures import WrongSums
from gemini_lab.injector.scenario import Scenario
from gemini_lab.training.quickstart import gpt_job

ITERATIONS = 24


@pytest.mark.parametrize(
    "where",
    [
        "gradient",
        pytest.param("activation", marks=pytest.mark.long),
        pytest.param("optimizer", marks=pytest.mark.long),
    ],
)
def test_training_goes_on_without_the_machine_from_before_its_first_wrong_sum(
    lab, undisturbed, where
):
    """Version 9 is the newest verified one: the node is wrong from iteration 11 or 12 on."""
    lab.wait_until_ready()
    job = gpt_job(size="tiny", iterations=ITERATIONS, gemini={"verify_every": 3})
    scenario = Scenario().add(WrongSums("rank-2", where), iteration=10)
    run = lab.train(job, scenario=scenario, persistent_url=None).wait(200)
    report = run.report()
    assert report.outcome == "finished", report.reason
    node = run.events("injected")[0].node
    found = report.verified.wrong[0]
    assert (found.nodes, found.suspects) == ((node,), ())
    assert node not in run.members
    (moved,) = report.recoveries
    assert (moved.cause, moved.version) == ("wrong_sums", found.version)
    assert found.version <= 12
    assert report.losses_match(undisturbed(iterations=ITERATIONS))
    assert report.divergences == ()
