"""Libraries that loop by themselves, on real nodes: what they count comes back bit by bit."""

import textwrap

import pytest

from gemini_lab import Job
from gemini_lab.injector.failures import NodeLoss, WorkerCrash
from gemini_lab.injector.scenario import Scenario

TRAINER = """
    import random, sys, torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback
    from transformers import TrainingArguments
    from gemini_lab.adapters.transformers import protect_trainer

    class Noisy(torch.utils.data.Dataset):
        def __init__(self, size):
            self.size = size

        def __len__(self):
            return self.size

        def __getitem__(self, index):
            ids = (torch.arange(12) * (index + 1) + torch.randint(0, 3, (12,))) % 50
            return {"input_ids": ids, "labels": ids}

    class Drawing(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            torch.rand(3)
            random.random()

        def on_train_end(self, args, state, control, **_):
            if state.is_world_process_zero:
                seen = [(e["step"], e.get("loss"), e.get("eval_loss")) for e in state.log_history]
                print("HISTORY", state.epoch, seen)

    ds = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
          "zero_optimization": {"stage": 2}, "zero_force_ds_cpu_optimizer": False}
    arguments = TrainingArguments(
        sys.argv[1], deepspeed=ds, use_cpu=True, per_device_train_batch_size=1,
        gradient_accumulation_steps=2, num_train_epochs=3, learning_rate=1e-2, warmup_steps=3,
        lr_scheduler_type="cosine", logging_steps=3, eval_strategy="steps", eval_steps=4,
        save_steps=5, save_total_limit=1, save_only_model=True, report_to=[], disable_tqdm=True)
    config = GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=0)
    # 28 samples over 4 ranks: 7 batches an epoch, so that its last step has one of them, not two.
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Noisy(28),
                      eval_dataset=Noisy(4), callbacks=[Drawing()])
    protect_trainer(trainer)
    trainer.train()
"""

ACCELERATE = """
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DeepSpeedPlugin
    from torch import nn
    from gemini_lab.adapters.accelerate import protect_accelerator

    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return torch.sin(torch.arange(6.0) * index) + 0.1 * torch.randn(6)

    class Counter:
        seen = 0

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            self.seen = state["seen"]

    torch.manual_seed(1)
    ds = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
          "zero_optimization": {"stage": 2}, "zero_force_ds_cpu_optimizer": False}
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2,
                              deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=ds))
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=2, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    accelerator.register_for_checkpointing(counter := Counter())
    protected = protect_accelerator(accelerator)
    for epoch in protected.epochs(4):  # 5 batches an epoch: the last step of each has one, not two
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean() * (1 + counter.seen)
                protected.log(loss=loss.item())
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            counter.seen += 1
"""


@pytest.mark.parametrize(
    ("library", "text"),
    [("transformers", TRAINER), ("accelerate", ACCELERATE)],
    ids=["transformers", "accelerate"],
)
def test_a_librarys_own_loop_comes_back_bit_by_bit(lab, script, tmp_path, library, text):
    pytest.importorskip(library)
    path = str(script(textwrap.dedent(text)))
    quiet = lab.train(Job(script=path, args=[str(tmp_path / "quiet")]), persistent_url=None)
    expected = quiet.wait(200).report()
    scenario = (
        Scenario().add(WorkerCrash("rank-1"), iteration=3).add(NodeLoss("rank-2"), iteration=9)
    )
    broken = lab.train(
        Job(script=path, args=[str(tmp_path / "broken")]), scenario=scenario, persistent_url=None
    )
    report = broken.wait(200).report()
    assert len(report.recoveries) == 2
    assert len(expected.losses) == 12 * 4
    assert report.losses_match(expected)
