"""Replicas that peers made of gradients bring a run back as copies do, to the bit."""

import textwrap

import pytest

from gemini_lab import Job
from gemini_lab.injector.failures import NodeLoss
from gemini_lab.injector.scenario import Scenario
from gemini_lab.log.file import read_log

ITERATIONS, LOST_AT, READY_AT = 9, 6, 2

ZERO = """
    import deepspeed
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3},
              "gradient_clipping": 0.5, "bf16": {"enabled": IS_BF16},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
              "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}}
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=config)
    protected = gemini_lab.protect(engine)

    def update(batch):
        loss = engine(batch.to(next(model.parameters()).dtype)).float().pow(2).mean()
        engine.backward(loss)
        protected.log(loss=loss.item())
        engine.step()
"""
FSDP2 = """
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo")
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    protected = gemini_lab.protect(model=model, optimizer=optimizer)

    def update(batch):
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        protected.log(loss=loss.item())
        optimizer.step()
"""
TRAINING = f"""
    import gc, os, time, torch, gemini_lab
    import torch.distributed as dist
    from gemini_lab.engine.gradients.sent_differences import VersionMaker

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 301), torch.nn.ReLU(), torch.nn.Linear(301, 1))
    ENGINE
    torch.manual_seed(1 + int(os.environ["RANK"]))
    for step in protected.steps({ITERATIONS}):
        if step == {READY_AT}:
            with protected.pause("what makes versions imports"):
                for maker in [one for one in gc.get_objects() if isinstance(one, VersionMaker)]:
                    maker.wait_until_ready(300)
        if step >= {LOST_AT}:
            time.sleep(0.7)  # training must not end before the node does
        update(torch.randn(4, 16))
"""
ENGINES = {
    "ZeRO-3": ZERO.replace("IS_BF16", "False"),
    "ZeRO-3 in bf16": ZERO.replace("IS_BF16", "True"),
    "FSDP2": FSDP2,
}


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("ZeRO-3", {}),
        pytest.param("ZeRO-3 in bf16", {}, marks=pytest.mark.long),
        pytest.param("FSDP2", {"verify_every": 2}, marks=pytest.mark.long),
    ],
)
def test_a_lost_node_comes_back_from_a_replica_that_was_made_of_gradients(
    lab, script, engine, settings
):
    text = TRAINING.replace("    ENGINE\n", ENGINES[engine])
    job = Job(script=str(script(textwrap.dedent(text))))
    quiet = lab.train(job, persistent_url=None).wait(200).report()
    run = lab.train(
        job,
        persistent_url=None,
        replicate="gradients",
        **settings,
        scenario=Scenario().add(NodeLoss("rank-2"), iteration=LOST_AT),
    ).wait(300)
    report = run.report()
    assert report.losses_match(quiet)
    (recovery,) = report.recoveries
    assert "peer" in {receipt.tier for receipt in recovery.receipts}
    told = [entry.event for entry in read_log(run.log)]
    assert not [event for event in told if event.kind in {"replica_differed", "gradients_given_up"}]
    forms = {}
    for event in told:
        if event.kind == "version_complete":
            forms.setdefault((event.epoch, event.version), set()).add(event.form)
    restored = recovery.version
    first = min(epoch for epoch, _ in forms)
    assert restored > READY_AT
    said = {version: form for (epoch, version), form in forms.items() if epoch == first}
    later = [form for version, form in said.items() if version > READY_AT + 1]
    assert later
    assert all(form == {"gradients"} for form in later)
    # A node's loss may come before a worker has said that the newest version is whole.
    assert restored <= max(said) + 1
    begun = min(version for epoch, version in forms if epoch > first)
    assert forms[max(forms)[0], begun] == {"copy"}  # the first after the restart
