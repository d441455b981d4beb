"""Whole runs that end, and others that go on from what they left in their persistent tier."""

import json
import os
import signal
import time
from contextlib import suppress
from functools import partial

import pytest

from gemini_lab import Job, Lab
from gemini_lab.errors import RunFailedError
from gemini_lab.injector.failures import WrongSums
from gemini_lab.injector.scenario import Scenario
from gemini_lab.storage import persistent_tier
from gemini_lab.training.quickstart import gpt_job
from gemini_lab_bench.benches.live_lab import wait_for

from .conftest import is_of, processes_of_labs

ITERATIONS = 24


def later_than(report, version):
    """A report's losses of the iterations after this one."""
    return {key: loss for key, loss in report.losses.items() if key[0] > version}


def test_who_goes_on_from_a_run_that_computed_wrong_begins_at_what_was_verified(
    tmp_path, undisturbed
):
    """Each version was saved, also those that hold wrong sums; two nodes cannot tell whose."""
    url = str(tmp_path / "tier")
    job = gpt_job(size="tiny", iterations=ITERATIONS, gemini={"verify_every": 4})
    scenario = Scenario().add(WrongSums("rank-1", "gradient"), iteration=9)
    with Lab(2, 0, folder=tmp_path / "first") as lab:
        run = lab.train(job, scenario=scenario, persistent_url=url, persist_every_iterations=1)
        with pytest.raises(RunFailedError, match="--resume goes on from version 8, which was"):
            run.wait(200)
        saved = [said.event.version for said in run.events("persist_finished")]
    assert max(saved) > 8
    assert max(persistent_tier(url).versions()) == 8
    with Lab(2, 0, folder=tmp_path / "second") as lab:
        report = lab.train(job, resume=True, persistent_url=url).wait(200).report()
    assert report.outcome == "finished", report.reason
    expected = later_than(undisturbed(iterations=ITERATIONS, nodes=2), 8)
    assert later_than(report, 8) == expected


def test_who_is_to_go_on_and_finds_no_version_begins_at_the_start_and_says_so(tmp_path):
    """A mistyped folder must not throw weeks away unheard."""
    url = str(tmp_path / "mistyped")
    with Lab(1, 0, folder=tmp_path / "runs") as lab:
        job = gpt_job(size="tiny", iterations=2)
        train = partial(lab.train, job, replicas=1, persistent_url=url)
        began = train(resume=True).wait(200).report()
        went_on = train(resume=True).wait(200).report()
    assert began.began_from is None
    assert [note for note in began.notes if f"--resume: {url} has no version" in note]
    assert went_on.began_from == 2
    assert not [note for note in went_on.notes if "--resume" in note]


SKIPPING = """
import json, os, sys, time
import deepspeed, torch, gemini_lab
from torch import nn

case = json.loads(sys.argv[1])
rank = int(os.environ["RANK"])
numbers = [number for number in range(1000) if number not in case["without"]]


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return len(numbers)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(9 * numbers[index] + rank)
        return torch.randn(4, 6, generator=generator)


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 13), nn.ReLU(), nn.Dropout(0.2), nn.Linear(13, 1))
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=[*model.parameters()],
    config={
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "gemini": {"keep_in_memory": 6, "keep_versions": 2},
    },
)
torch.manual_seed(rank)
loader = torch.utils.data.DataLoader(Batches(), batch_size=None)
protected = gemini_lab.protect(engine, data=loader)
batches = iter(loader)
for step in protected.steps(case["steps"]):
    time.sleep(case["pace_s"])
    loss = engine(next(batches)).square().mean()
    engine.backward(loss)
    protected.log(loss=loss.item())
    engine.step()
"""


@pytest.mark.parametrize("further", [0, 9], ids=["at once", "iterations later"])
def test_a_run_that_was_rewound_and_then_lost_whole_goes_on_along_the_line_it_went(
    tmp_path, script, further
):
    """All its processes are killed: at once all but one of the tier's versions were left."""
    url, path = str(tmp_path / "tier"), str(script(SKIPPING))

    def job(steps, *, without=(), pace_s=0.0):
        case = {"steps": steps, "without": [*without], "pace_s": pace_s}
        return Job(script=path, args=[json.dumps(case)])

    others = {process.pid for process in processes_of_labs()}
    with Lab(2, 0, folder=tmp_path / "first") as lab:
        run = lab.train(job(500, pace_s=0.2), persistent_url=url, persist_every_iterations=1)
        wait_for(run, iteration=12)
        run.rewind(4, skip=True)
        while not (told := run.events("rewound")):
            time.sleep(0.01)
        said = told[0].event
        wait_for(run, iteration=said.version + further)
        while run.events("persist_finished")[-1].at_s < told[0].at_s:
            time.sleep(0.01)
        for process in [one for one in processes_of_labs() if not is_of(one, others)]:
            with suppress(ProcessLookupError):  # it went with another one
                os.kill(process.pid, signal.SIGKILL)
    taken = max(persistent_tier(url).versions())
    assert taken <= said.version + further + 1
    # Where no later version is there the batches that were left come again, and that is said.
    without = range(said.version, said.iteration) if taken > said.version else ()
    with Lab(2, 0, folder=tmp_path / "second") as lab:
        again = lab.train(job(40), resume=True, persistent_url=url).wait(200)
        resumed = again.report()
        straight = lab.train(job(40, without=without), persistent_url=None).wait(200).report()
    assert later_than(resumed, taken) == later_than(straight, taken)
    assert len(later_than(resumed, taken)) == 2 * (40 - taken)
    told = [note.event.text for note in again.events("note")]
    assert any("come again" in text for text in told) == (taken <= said.version)
