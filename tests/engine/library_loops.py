"""Loops of libraries, or as their users write them, over two micro-batches a step."""

import random
from functools import partial

import torch
import torch.distributed as dist
from accelerate import Accelerator, ParallelismConfig
from accelerate.utils import DeepSpeedPlugin, DistributedType, FullyShardedDataParallelPlugin
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig

from gemini_lab.adapters.accelerate import look_into
from gemini_lab.adapters.transformers import TrainerHooks

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 2},
    "zero_force_ds_cpu_optimizer": False,
}


AT_LOAD = {
    "FSDP2": {"fsdp_size": 2},
    "HSDP": {"fsdp_size": 2, "dp_replicate_size": 2},
    "TP": {"tp_size": 2},
    "TP x FSDP2": {"tp_size": 2, "fsdp_size": 2},
    "EP": {"fsdp_size": 2, "ep_size": 2},
    "EP x FSDP2": {"fsdp_size": 4, "ep_size": 2},
    "EP x TP": {"tp_size": 2, "fsdp_size": 2, "ep_size": 4},
}
"""How a model is shared as it is loaded."""


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


class Attending(nn.Module):
    """Looks from each position of a sample at all of them, which other ranks may have."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 1)

    def forward(self, sample):
        hidden = self.first(sample)
        with sdpa_kernel(SDPBackend.MATH):  # the only one that torch shares on CPUs
            seen = nn.functional.scaled_dot_product_attention(hidden, hidden, hidden)
        return self.last(self.drop(seen))


def share_samples():
    """Have Accelerate take ranks on CPUs that share a sample, as it does those on other devices."""
    Accelerator.multi_device = property(lambda _: True)


def loaded(job, how):
    """A tiny model that transformers has cut as it loaded it, with experts where it cuts those."""
    if "TP" in how:
        share_samples()
    size = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    size |= {"vocab_size": 56, "num_attention_heads": 4, "num_key_value_heads": 2}
    size |= {"attention_dropout": 0.1, "bos_token_id": 0, "eos_token_id": 0}
    model, kind = LlamaForCausalLM, LlamaConfig(**size)
    if "EP" in how:
        size |= {"moe_intermediate_size": 12, "num_experts": 4, "num_experts_per_tok": 2}
        model, kind = Qwen3MoeForCausalLM, Qwen3MoeConfig(**size, head_dim=4)
    folder = job.folder / "model"
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model(kind).save_pretrained(folder)  # on rank 0 alone
    dist.barrier()
    return model.from_pretrained(folder, distributed_config=DistributedConfig(**AT_LOAD[how]))


def accelerated(job, how="DeepSpeed"):
    """9 micro-batches an epoch, so that its fifth and last step has one, not two.

    Without a GPU, Accelerate gives all of them to each rank under DeepSpeed.
    """
    is_zero = how == "DeepSpeed"
    plugin = DeepSpeedPlugin(hf_ds_config=CONFIG) if is_zero else None
    sizes = {"TP": {"tp_size": 2}, "CP": {"cp_size": 2}}.get(how)
    if sizes:
        share_samples()
    accelerator = Accelerator(
        gradient_accumulation_steps=2,
        deepspeed_plugin=plugin,
        cpu=not is_zero,
        parallelism_config=ParallelismConfig(**sizes) if sizes else None,
    )
    if how in {"FSDP2", "CP"}:
        shard(accelerator)
    if how == "TP":
        model = loaded(job, how)
    elif how == "CP":
        model = Attending()
    else:
        model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    samples = 18 if is_zero or sizes else 36
    loader = DataLoader((Texts if how == "TP" else Noisy)(samples), batch_size=2, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    found = look_into(accelerator)
    protected = job.protect(found.engine, data=found.data, also=found.also)
    for _epoch in protected.epochs(3):
        for batch in loader:
            if how == "CP":
                batch = batch.view(-1, 1, 6, 1)  # noqa: PLW2901
            shares = accelerator.maybe_context_parallel(buffers=[batch], buffer_seq_dims=[2])
            with accelerator.accumulate(model), shares:
                out = model(**batch).loss if how == "TP" else model(batch)
                loss = out.square().mean()
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
    is_loaded = how.startswith("loaded")
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
        save_only_model=is_loaded,  # the Trainer itself has no resuming for those
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
        loaded(job, how.removeprefix("loaded ")) if is_loaded else GPT2LMHeadModel(config),
        arguments,
        train_dataset=Texts(7 * dist.get_world_size()),
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
} | {f"accelerated {how}": partial(accelerated, how=how) for how in ("TP", "CP")}
LOOPS |= {f"trainer loaded {how}": partial(trainer, how=f"loaded {how}") for how in AT_LOAD}
