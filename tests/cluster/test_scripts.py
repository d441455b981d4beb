"""A script with all that people put around a step, on real nodes: it comes back bit by bit."""

import os
import subprocess
import sys
import textwrap

import pytest

from gemini_lab import Job
from gemini_lab.injector.failures import NodeLoss, WorkerCrash
from gemini_lab.injector.scenario import Scenario

SCRIPT = """
    import deepspeed, torch, gemini_lab
    from torch import nn
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return torch.sin(torch.arange(6.0) * index) + 0.1 * torch.randn(6)

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2},
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    ema = AveragedModel(engine.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)
    protected = gemini_lab.protect(engine, data=loader, also={"ema": ema})

    def endless():
        while True:
            yield from loader

    batches = endless()
    for step in protected.steps(20):
        batch = next(batches)
        loss = engine(batch).square().mean()
        weights = zip(ema.module.parameters(), engine.module.parameters())
        drift = sum((averaged - now).abs().sum().item() for averaged, now in weights)
        engine.backward(loss)
        protected.log(loss=loss.item() + drift)
        engine.step()
        schedule.step()
        ema.update_parameters(engine.module)
        with torch.no_grad():  # an evaluation that draws: dropout is on
            engine(batch)
"""


@pytest.mark.parametrize("failure", [WorkerCrash("rank-1"), NodeLoss("rank-2")], ids=str)
def test_whatever_a_script_does_around_its_step_comes_back(lab, script, quiet, failure):
    text = textwrap.dedent(SCRIPT)
    job, undisturbed = Job(script=str(script(text))), quiet(text)
    scenario = Scenario().add(failure, iteration=9)
    report = lab.train(job, scenario=scenario, persistent_url=None).wait(200).report()
    assert len(report.recoveries) >= 1
    assert len(undisturbed.losses) == 20 * 4
    assert report.losses_match(undisturbed)


SET_ORDER = """
    import torch, gemini_lab
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    words = {word: n for n, word in enumerate({"the", "cat", "sat", "on", "a", "mat", "or", "dog"})}
    ids = torch.tensor(list(words.values()))
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Embedding(len(words), 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protected = gemini_lab.protect(model=model, optimizer=optimizer)
    for step in protected.steps(16):
        loss = (model(ids[torch.randint(8, (4,))]) - words["cat"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        protected.log(loss=loss.item(), order=hash("cat") % 2**40)
        optimizer.step()
"""


@pytest.mark.parametrize("seed", ["7", None])
def test_a_set_has_one_order_on_all_ranks_and_in_all_starts(pair, script, seed, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    pair.wait_until_ready()
    env = {} if seed is None else {"PYTHONHASHSEED": seed}
    job = Job(script=str(script(textwrap.dedent(SET_ORDER))), env=env)
    crashes = Scenario().add(WorkerCrash("rank-1"), iteration=5)
    crashes = crashes.add(WorkerCrash("rank-0"), iteration=11)
    run = pair.train(job, scenario=crashes, persistent_url=None).wait(200)
    report = run.report()
    assert len(report.recoveries) == 2
    assert report.divergences == ()
    told = {entry.event.value("order") for entry in run.events("iteration")}
    here = subprocess.run(
        [sys.executable, "-c", 'print(hash("cat") % 2**40)'],
        env={**os.environ, "PYTHONHASHSEED": seed or "0"},
        capture_output=True,
        check=True,
    )
    assert told == {float(here.stdout)}
    undisturbed = pair.train(job, persistent_url=None).wait(200).report()
    assert report.losses_match(undisturbed)
