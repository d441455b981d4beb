"""The guide's script in plain PyTorch on real nodes: a worker and a node die, no bit differs."""

from pathlib import Path

import pytest

from gemini_lab import Job
from gemini_lab.injector.failures import NodeLoss, WorkerCrash
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.file import read_log

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "train.py"


@pytest.mark.parametrize(
    "parallel", [pytest.param("DistributedDataParallel", marks=pytest.mark.long), "fully_shard"]
)
def test_the_guides_script_loses_a_worker_and_a_node_and_no_bit(lab, script, parallel):
    text = EXAMPLE.read_text().replace("protected.epochs(20)", "protected.epochs(1)")
    text = text.replace("DistributedDataParallel(net)", f"{parallel}(net)")
    job = Job(script=str(script(f"from torch.distributed.fsdp import fully_shard\n{text}")))
    quiet = lab.train(job, persistent_url=None).wait(200).report()
    scenario = (
        Scenario().add(WorkerCrash("rank-1"), iteration=5).add(NodeLoss("rank-2"), iteration=9)
    )
    run = lab.train(job, scenario=scenario, persistent_url=None, scheme="gemini").wait(200)
    assert len(run.report().recoveries) == 2
    assert len(quiet.losses) == 64 * 4
    assert run.report().losses_match(quiet)
    protected = [e.event for e in read_log(run.log) if e.kind == "protected"]
    assert {event.settings.scheme for event in protected} == {"background"}
    assert any("'gemini' needs to see" in note for note in run.report().notes)
