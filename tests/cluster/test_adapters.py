"""Libraries that loop by themselves, on real nodes: what they count comes back bit by bit."""

import json
import textwrap
from pathlib import Path

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


LIGHTNING = """
    import os, sys, torch
    from lightning.pytorch import LightningModule, Trainer
    from torch import nn
    from gemini_lab.adapters.lightning import protect_lightning

    class Net(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))

        def training_step(self, batch, _):
            return self.net(batch).square().mean()

        def validation_step(self, batch, _):
            self.log("held out", self.net(batch).square().mean() + torch.rand(()))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]

    torch.manual_seed(1)
    model = Net()
    torch.manual_seed(2 + int(os.environ["RANK"]))
    samples = torch.linspace(-1, 1, 336).view(56, 6)
    loader = torch.utils.data.DataLoader(samples, batch_size=2, shuffle=True)
    trainer = Trainer(
        accelerator="cpu", strategy="ddp", num_nodes=4, devices=1, max_epochs=3, logger=False,
        accumulate_grad_batches=2, val_check_interval=4, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=sys.argv[1])
    protect_lightning(trainer)
    trainer.fit(model, loader, torch.utils.data.DataLoader(samples, batch_size=8))
"""
SHARDED = (
    LIGHTNING.replace(
        "        def training_step",
        """        def configure_model(self):
            for part in (self.net[0], self.net[3], self.net):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])

        def training_step""",
    )
    .replace(
        "from torch import nn\n",
        "from lightning.pytorch.strategies import ModelParallelStrategy\n"
        "    from torch import nn\n"
        "    from torch.distributed.fsdp import fully_shard\n",
    )
    .replace(
        'strategy="ddp"',
        "strategy=ModelParallelStrategy(data_parallel_size=4, tensor_parallel_size=1)",
    )
)
TRL = """
    import json, os, sys, torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer
    from gemini_lab.adapters.transformers import protect_trainer

    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    words = [*special.values(), *(f"w{n}" for n in range(40))]
    known = {word: number for number, word in enumerate(words)}
    split = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=split, **special)

    def said(start, length):
        return " ".join(f"w{start * place % 40}" for place in range(1, length))

    texts = Dataset.from_list(
        [{"prompt": said(n, 4 + n % 5), "completion": said(n + 7, 4 + n % 6)} for n in range(28)])
    ds = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
          "zero_optimization": {"stage": 2}, "zero_force_ds_cpu_optimizer": False}
    arguments = SFTConfig(
        sys.argv[1], deepspeed=ds, use_cpu=True, bf16=False, per_device_train_batch_size=1,
        gradient_accumulation_steps=2, num_train_epochs=3, learning_rate=1e-2, warmup_steps=3,
        lr_scheduler_type="cosine", logging_steps=5, save_strategy="no", report_to=[],
        disable_tqdm=True)
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, attention_dropout=0.1,
        pad_token_id=0, eos_token_id=1, bos_token_id=1))
    trainer = SFTTrainer(model, arguments, train_dataset=texts, processing_class=tokenizer)
    protect_trainer(trainer)
    trainer.train()
    if os.environ["RANK"] == "0":
        os.makedirs(sys.argv[1], exist_ok=True)
        with open(f"{sys.argv[1]}/history.json", "w") as file:
            json.dump(trainer.state.log_history, file)
"""
EXPERTS = (
    TRAINER.replace(
        "    from transformers import TrainingArguments\n",
        "    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM, TrainingArguments\n"
        "    from transformers.distributed import DistributedConfig\n"
        "    import torch.distributed as dist\n",
    )
    .replace("deepspeed=ds, ", "")
    .replace(
        "    config = GPT2Config(",
        """    torch.manual_seed(1)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=56, hidden_size=16, intermediate_size=24, moe_intermediate_size=12,
        num_experts=4, num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, attention_dropout=0.1, bos_token_id=0, eos_token_id=0,
    )).save_pretrained(sys.argv[1] + "-model")
    dist.barrier()
    model = Qwen3MoeForCausalLM.from_pretrained(
        sys.argv[1] + "-model", distributed_config=DistributedConfig(fsdp_size=4, ep_size=2))
    config = GPT2Config(""",
    )
    .replace("GPT2LMHeadModel(config), arguments", "model, arguments")
)
SCRIPTS = {
    "Trainer with ZeRO-2": TRAINER,
    "Trainer with DDP": TRAINER.replace("deepspeed=ds, ", ""),
    "Trainer with experts on some ranks": EXPERTS,
    "Lightning with DDP": LIGHTNING,
    "Lightning with FSDP2": SHARDED,
}


@pytest.fixture
def both(lab, script, tmp_path):
    """Reports of a script that is left alone, and of one that loses a worker and a node.

    Each writes into a folder of its own below `tmp_path`: `quiet` and `broken`.
    """

    def train(text):
        path = str(script(textwrap.dedent(text)))
        folders = [str(tmp_path / name) for name in ("quiet", "broken")]
        quiet = lab.train(Job(script=path, args=folders[:1]), persistent_url=None)
        expected = quiet.wait(200).report()
        failures = Scenario().add(WorkerCrash("rank-1"), iteration=3)
        failures = failures.add(NodeLoss("rank-2"), iteration=9)
        job = Job(script=path, args=folders[1:])
        report = lab.train(job, scenario=failures, persistent_url=None).wait(200).report()
        assert len(report.recoveries) >= 2  # a busy machine may lose one more
        assert len(expected.losses) == 12 * 4
        return expected, report

    return train


@pytest.mark.parametrize(
    "name",
    [
        name if script == EXPERTS else pytest.param(name, marks=pytest.mark.long)
        for name, script in SCRIPTS.items()
    ],
)
def test_a_trainer_comes_back_bit_by_bit_from_a_worker_and_a_node(both, name):
    """tests/engine/test_loops.py has it for more places; here it is started as users do."""
    pytest.importorskip("transformers")
    pytest.importorskip("lightning")
    expected, report = both(SCRIPTS[name])
    assert report.losses_match(expected)


TITAN = Path(__file__).parents[2] / "docs" / "examples" / "train_torchtitan.py"
HELD = """
    import os, xxhash
    held = xxhash.xxh3_64()
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                for one in (weight.data, *optimizer.state[weight].values()):
                    part = one.to_local() if hasattr(one, "to_local") else one
                    held.update(part.contiguous().numpy().tobytes())
    held.update(torch.get_rng_state().numpy().tobytes())
    held.update(repr((trainer.state_dict(), trainer.lr_schedulers.state_dict())).encode())
    with open(f"{trainer.config.dump_folder}-{os.environ['RANK']}", "w") as file:
        file.write(held.hexdigest())
    trainer.close()
"""


def test_torchtitans_trainer_comes_back_bit_by_bit(both, tmp_path):
    """Its layers are cut over two ranks and sharded over two; each step is a version."""
    pytest.importorskip("torchtitan", reason="TorchTitan is not installed")
    text = TITAN.read_text()
    for old, new in (
        ('"--folder", default="outputs"', '"folder"'),
        ('"--tensor-parallel", type=int, default=1', '"--tensor-parallel", type=int, default=2'),
        ("default=14", "default=12"),
        ('"--saves", action="store_true"', '"--saves", action="store_true", default=True'),
        ("    trainer.close()\n", HELD),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    expected, report = both(text)
    assert report.losses_match(expected)
    quiet, broken = (
        [(tmp_path / f"{name}-{rank}").read_text() for rank in range(4)]
        for name in ("quiet", "broken")
    )
    assert broken == quiet
    assert (tmp_path / "broken" / "checkpoint" / "step-12").is_dir()  # TorchTitan's own, as before


def logged(folder):
    """What a Trainer logged, but for times and speeds."""
    entries = json.loads((folder / "history.json").read_text())
    return [{k: v for k, v in one.items() if not k.startswith("train_")} for one in entries]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["DeepSpeed", "DDP"])
def test_trls_sft_trainer_comes_back_with_its_losses_and_with_all_that_it_logs(
    both, tmp_path, engine
):
    """The sums behind `entropy`, `mean_token_accuracy` and `num_tokens` are its own attributes."""
    pytest.importorskip("trl", reason="TRL is not installed; run: pip install trl")
    text = TRL if engine == "DeepSpeed" else TRL.replace("deepspeed=ds, ", "")
    expected, report = both(text)
    assert report.losses_match(expected)
    quiet, broken = logged(tmp_path / "quiet"), logged(tmp_path / "broken")
    assert len(quiet) == 3
    assert {"entropy", "mean_token_accuracy", "num_tokens"} <= quiet[0].keys()
    assert broken == quiet
