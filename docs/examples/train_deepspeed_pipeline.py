"""A DeepSpeed pipeline of unlike stages with a tied embedding, and data parallel columns.

    torchrun --nproc-per-node 4 train_deepspeed_pipeline.py             # as it is
    gemini-lab run --nodes 4 train_deepspeed_pipeline.py                # survives lost nodes
    gemini-lab run --nodes 4 train_deepspeed_pipeline.py --zero 0

The first stage looks words up, and the last one scores them with the same table: DeepSpeed adds up
both gradients. Layers are computed again in the backward pass, with the same dropout. DeepSpeed
makes the loader of `training_data`, which the first and the last stage read.
"""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.activation_checkpointing import checkpointing
from torch import nn
from torch.utils.data import TensorDataset

import gemini_lab

VOCABULARY, WIDTH, LENGTH = 64, 32, 16


class Block(nn.Module):
    """A feed-forward layer that drops out, on a generator of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        with checkpointing.get_cuda_rng_tracker().fork():
            return hidden + self.drop(self.down(nn.functional.gelu(self.up(hidden))))


def score(table: nn.Embedding, hidden: torch.Tensor) -> torch.Tensor:
    """Return how likely each word comes next."""
    return hidden @ table.weight.T


def loss_of(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return the loss of a micro-batch."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def main() -> None:
    """Train some steps, and print the loss."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--stages", type=int, default=2)
    options.add_argument("--zero", type=int, choices=(0, 1), default=1)
    options.add_argument("--local_rank", type=int, default=0)
    args = options.parse_args()

    deepspeed.init_distributed("gloo" if not torch.cuda.is_available() else "nccl")
    torch.manual_seed(0)
    words = ("words", nn.Embedding, VOCABULARY, WIDTH)
    net = PipelineModule(
        [
            TiedLayerSpec(*words, tied_weight_attr="weight"),
            *[LayerSpec(Block, WIDTH) for _ in range(3)],
            LayerSpec(nn.LayerNorm, WIDTH),
            TiedLayerSpec(*words, forward_fn=score, tied_weight_attr="weight"),
        ],
        num_stages=args.stages,
        loss_fn=loss_of,
        activation_checkpoint_interval=1,
        checkpointable_layers=["Block"],
    )
    checkpointing.configure(None)
    text = torch.randint(VOCABULARY, (288, LENGTH + 1))
    engine, *_ = deepspeed.initialize(
        model=net,
        model_parameters=[weight for weight in net.parameters() if weight.requires_grad],
        training_data=TensorDataset(text[:, :-1], text[:, 1:]),
        config={
            "train_batch_size": 24,  # of all columns: a resize keeps it
            "gradient_accumulation_steps": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8}},
            "zero_optimization": {"stage": args.zero},
            "gradient_clipping": 1.0,
        },
    )
    torch.manual_seed(100 + dist.get_rank())
    checkpointing.get_cuda_rng_tracker().add("model-parallel-rng", 200 + dist.get_rank())

    protected = gemini_lab.protect(engine)
    for step in protected.steps(args.steps):
        loss = engine.train_batch()
        protected.log(loss=loss.item())
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
