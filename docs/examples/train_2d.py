"""A language model cut over two dimensions: tensor parallel within a row, FSDP2 over the rows.

    torchrun --nproc-per-node 4 train_2d.py                         # as it is
    gemini-lab run --nodes 2 --workers-per-node 2 train_2d.py       # and survives lost nodes

Ranks of a row share each layer: they read the same samples and drop out the same. Norms and biases
that a row replicates are DTensors, too (`SequenceParallel`), so that versions keep them once. The
sampler deals samples to rows, and a batch is of all rows, so that a resize changes neither.
"""

import argparse
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gemini_lab

VOCABULARY, WIDTH, LENGTH, BATCH = 64, 32, 16, 24


class Block(nn.Module):
    """A feed-forward layer around which the sequence is cut among the ranks of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = nn.functional.gelu(self.up(self.norm(hidden)))
        return hidden + self.drop(self.down(inner))


class Model(nn.Module):
    """An embedding, two blocks, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


PLAN = {
    "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "blocks.*.norm": SequenceParallel(),
    "blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
    "blocks.*.down": RowwiseParallel(output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def endless(loader: DataLoader, sampler: DistributedSampler) -> Iterator[list[torch.Tensor]]:
    """Yield batches, epoch after epoch."""
    while True:
        yield from loader
        sampler.set_epoch(sampler.epoch + 1)


def main() -> None:
    """Train some steps, and print the loss."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--row", type=int, default=2, help="ranks that share each layer")
    args = options.parse_args()

    dist.init_process_group("gloo")
    rows = dist.get_world_size() // args.row
    mesh = init_device_mesh("cpu", (rows, args.row), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(1)
    model = parallelize_module(Model(), mesh["tensor"], PLAN)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    row = mesh.get_local_rank("data")
    words = TensorDataset(torch.randint(VOCABULARY, (8 * BATCH, LENGTH + 1)))
    sampler = DistributedSampler(words, num_replicas=rows, rank=row, seed=2)
    loader = DataLoader(words, batch_size=BATCH // rows, sampler=sampler)
    torch.manual_seed(100 + row)

    protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)
    batches = endless(loader, sampler)
    for step in protected.steps(args.steps):
        (tokens,) = next(batches)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        protected.log(loss=loss.item())
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
