"""Loops of libraries, or as their users write them, over two micro-batches a step."""

import random
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DistributedType, FullyShardedDataParallelPlugin
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from gemini_lab.adapters.accelerate import look_into
from gemini_lab.adapters.transformers import TrainerHooks

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 2},
    "zero_force_ds_cpu_optimizer": False,
}


class Noisy(Dataset):
    """Samples that are drawn anew each time, from the generators that training draws from."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.sin(torch.arange(6.0) * index) + 0.1 * torch.randn(6) * random.random()


class Texts(Noisy):
    """The same, as tokens."""

    def __getitem__(self, index):
        ids = (torch.arange(8) * (index + 1) + torch.randint(0, 3, (8,))) % 50
        return {"input_ids": ids, "labels": ids}


class Counter:
    """Something of the script's own that it registers."""

    seen = 0

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def shard(accelerator):
    """Have it use FSDP2, which it does on accelerators alone unless it is told so."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="TRANSFORMER_BASED_WRAP",
        state_dict_type="SHARDED_STATE_DICT",
    )
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin


def accelerated(job, how="DeepSpeed"):
    """9 micro-batches an epoch, so that its fifth and last step has one, not two.

    Without a GPU, Accelerate gives all of them to each rank under DeepSpeed.
    """
    is_zero = how == "DeepSpeed"
    plugin = DeepSpeedPlugin(hf_ds_config=CONFIG) if is_zero else None
    accelerator = Accelerator(
        gradient_accumulation_steps=2, deepspeed_plugin=plugin, cpu=not is_zero
    )
    if how == "FSDP2":
        shard(accelerator)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    loader = DataLoader(Noisy(18 if is_zero else 36), batch_size=2, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    found = look_into(accelerator)
    protected = job.protect(found.engine, data=found.data, also=found.also)
    for _epoch in protected.epochs(3):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                rate = optimizer.param_groups[0]["lr"]
                job.note(found.engine.global_steps + 1, loss.detach(), rate, counter.seen)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            counter.seen += 1


class Noting(TrainerCallback):
    """Draws random numbers after each step, as an evaluation by hand does, and counts them."""

    def __init__(self, job):
        self.job, self.trainer, self.drawn = job, None, 0

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]

    def on_step_end(self, _args, state, *_, **__):
        self.drawn += 1
        rate = self.trainer.lr_scheduler.get_last_lr()[0]
        draw = torch.rand(())
        told = [state.global_step, state.epoch, self.drawn, rate, draw, self.trainer._tr_loss]
        self.job.note(state.global_step, *told)

    def on_train_end(self, _args, state, *_, **__):
        logged = [e.get("loss", e.get("eval_loss")) for e in state.log_history]
        self.job.note(state.max_steps + 1, *[one for one in logged if one is not None])


def trainer(job, how="DeepSpeed"):
    """Epochs of 7 micro-batches, so of 4 steps; evaluates, logs and saves in between."""
    config = {**CONFIG, "train_micro_batch_size_per_gpu": "auto"}
    arguments = TrainingArguments(
        str(job.folder),
        deepspeed=config if how == "DeepSpeed" else None,
        use_cpu=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        learning_rate=1e-2,
        warmup_steps=3,
        lr_scheduler_type="cosine",
        logging_steps=3,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=5,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
    )
    config = GPT2Config(
        vocab_size=50,
        n_positions=8,
        n_embd=8,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    noting = Noting(job)
    made = Trainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=Texts(14),
        eval_dataset=Texts(4),
        callbacks=[noting],
    )
    noting.trainer = made
    if how == "FSDP2":
        shard(made.accelerator)
        made.is_fsdp_enabled = True
    TrainerHooks(made, start=job.protect, version=job.version, remark=job.remarks.append)
    made.train()


LOOPS = {
    f"{loop.__name__} {how}": partial(loop, how=how)
    for loop in (accelerated, trainer)
    for how in ("DeepSpeed", "DDP", "FSDP2")
}
