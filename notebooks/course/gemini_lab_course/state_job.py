"""A small language model under eight kinds of parallelism; each rank tells the log what it holds.

    gemini-lab run --nodes 4 state_job.py --way TP

Lab 09 trains it. After the second update each rank logs a checksum and the size of every tensor
that it has of the weights and of Adam's moments, of its generator, and of the samples that it read.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import gemini_lab

WAYS = ("DP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "TP", "PP", "EP", "TP+FSDP")
VOCABULARY, WIDTH, INNER, LENGTH, BATCH = 64, 256, 1024, 16, 8
STAGES = (1, 1, 2, 2)
"""Blocks of each stage of the pipeline."""
TOLD_AFTER = 2
"""Updates after which the ranks tell: Adam's moments are there."""
MOST = 2**52
"""Checksums are below it: a log has numbers, and takes such ones to the bit."""


class FeedForward(nn.Module):
    """Two layers, without biases: every weight can be cut in four."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, inner, bias=False)
        self.down = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(nn.functional.gelu(self.up(hidden)))
        return found


class Block(nn.Module):
    """A residual layer that drops out; with experts, each word goes to one of four."""

    def __init__(self, *, has_experts: bool) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)
        if has_experts:
            from deepspeed.moe.layer import MoE  # noqa: PLC0415 - one of eight ways needs it

            expert = FeedForward(INNER // 4)
            self.inner = MoE(WIDTH, expert, num_experts=4, ep_size=4, min_capacity=0)
        else:
            self.inner = FeedForward(INNER)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        found = self.inner(hidden)
        dropped: torch.Tensor = self.drop(found[0] if isinstance(found, tuple) else found)
        return hidden + dropped


class Model(nn.Module):
    """A model, or one stage of it: only the first looks words up, only the last scores them."""

    def __init__(
        self, blocks: int, *, is_first: bool = True, is_last: bool = True, has_experts: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if is_first else nn.Identity()
        kinds = (has_experts and number % 2 == 1 for number in range(blocks))
        self.blocks = nn.ModuleList(Block(has_experts=kind) for kind in kinds)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if is_last else nn.Identity()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embed(given)
        for block in self.blocks:
            hidden = block(hidden)
        scores: torch.Tensor = self.head(hidden)
        return scores


CUT = {
    "embed": RowwiseParallel(input_layouts=Replicate()),
    "blocks.*.inner.up": ColwiseParallel(),
    "blocks.*.inner.down": RowwiseParallel(),
    "head": ColwiseParallel(output_layouts=Replicate()),
}
"""How tensor parallel ranks share each weight."""


@dataclass
class Training:
    """A rank's part of a job.

    Attributes:
        protects: Arguments of `gemini_lab.protect`.
        optimizer: Its optimizer of torch's, whose state has the moments.
        update: Does an iteration with a batch, and returns the loss if this rank knows it.
        row: Ranks with the same number read the same samples.
        rows: How many such numbers there are.
        reads: Whether this rank reads samples at all.
        seed: Of its generator while it trains.
    """

    model: nn.Module
    protects: dict[str, Any]
    optimizer: torch.optim.Optimizer
    update: Callable[[torch.Tensor | None], torch.Tensor | None]
    row: int = field(default_factory=dist.get_rank)
    rows: int = field(default_factory=dist.get_world_size)
    reads: bool = True
    seed: int = field(default_factory=lambda: 100 + dist.get_rank())


def loss_of(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return the loss of a batch."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def in_torch(model: nn.Module, **more: Any) -> Training:
    """Train a model by a plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def update(tokens: torch.Tensor | None) -> torch.Tensor:
        assert tokens is not None
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Training(model, {"model": model, "optimizer": optimizer}, optimizer, update, **more)


def in_deepspeed(model: nn.Module, *, stage: int) -> Training:
    """Train a model by DeepSpeed's ZeRO."""
    import deepspeed  # noqa: PLC0415 - half of the ways need it
    from deepspeed.moe.utils import (  # noqa: PLC0415 - as above
        split_params_into_different_moe_groups_for_optimizer,
    )

    weights = {"params": list(model.parameters()), "name": "all"}
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=split_params_into_different_moe_groups_for_optimizer(weights),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "steps_per_print": 10**9,
        },
    )

    def update(tokens: torch.Tensor | None) -> torch.Tensor:
        assert tokens is not None
        loss = loss_of(engine(tokens[:, :-1]), tokens[:, 1:])
        engine.backward(loss)
        engine.step()
        return loss

    return Training(model, {"engine": engine}, engine.optimizer.optimizer, update)


def in_stages() -> Training:
    """Train a pipeline: each rank is a stage, and the first and the last read the samples."""
    rank, last = dist.get_rank(), len(STAGES) - 1
    is_first, is_last = rank == 0, rank == last
    model = Model(STAGES[rank], is_first=is_first, is_last=is_last)
    stage = PipelineStage(model, rank, len(STAGES), torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def update(tokens: torch.Tensor | None) -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        given = () if tokens is None or not is_first else (tokens[:, :-1],)
        target = None if tokens is None or not is_last else tokens[:, 1:]
        schedule.step(*given, target=target, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean() if losses else None

    protects = {"model": model, "optimizer": optimizer}
    reads = is_first or is_last
    return Training(model, protects, optimizer, update, row=0, rows=1, reads=reads)


def training(way: str) -> Training:
    """Return this rank's part of the job under one kind of parallelism."""
    if way == "PP":
        return in_stages()
    model = Model(sum(STAGES), has_experts=way == "EP")
    if way == "DP":
        return in_torch(DistributedDataParallel(model))
    if way == "TP":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return in_torch(parallelize_module(model, mesh, CUT), row=0, rows=1, seed=100)
    if way == "TP+FSDP":
        rows = dist.get_world_size() // 2
        mesh = init_device_mesh("cpu", (rows, 2), mesh_dim_names=("data", "tensor"))
        row = mesh.get_local_rank("data")
        parallelize_module(model, mesh["tensor"], CUT)
        fully_shard(model, mesh=mesh["data"])
        return in_torch(model, row=row, rows=rows, seed=100 + row)
    return in_deepspeed(model, stage=1 if way == "EP" else int(way[-1]))


# -- what a rank holds -----------------------------------------------------------------------------


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of a tensor that several share."""
    part = getattr(tensor, "ds_tensor", tensor)  # ZeRO-3 leaves an empty weight, and its part here
    return part.to_local() if hasattr(part, "to_local") else part


def held(kind: str, tensors: Iterable[torch.Tensor]) -> dict[str, float]:
    """Return size and checksum of each tensor, as a log takes them."""
    told: dict[str, float] = {}
    for number, tensor in enumerate(tensors):
        raw = own_part(tensor).detach().contiguous().view(torch.uint8).numpy().data
        told[f"{kind} {number} bytes"] = raw.nbytes
        told[f"{kind} {number} sum"] = xxhash.xxh3_64_intdigest(raw) % MOST
    return told


def all_held(job: Training, tokens: torch.Tensor | None) -> dict[str, float]:
    """Return what this rank holds of each of the four kinds of state."""
    states = (job.optimizer.state[key] for key in job.optimizer.state)
    moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
    return {
        **held("weights", job.model.parameters()),
        **held("moments", moments),
        **held("generator", [torch.get_rng_state()]),
        **held("data", [] if tokens is None else [tokens]),
    }


def endless(loader: DataLoader[tuple[torch.Tensor, ...]]) -> Iterator[torch.Tensor]:
    """Yield batches, epoch after epoch."""
    while True:
        for (tokens,) in loader:
            yield tokens


def main() -> None:
    """Train some steps, and print the loss."""
    options = argparse.ArgumentParser()
    options.add_argument("--way", choices=WAYS, default="DP")
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # deepspeed passes it
    args = options.parse_args()

    if args.way in {"EP", "ZeRO-1", "ZeRO-2", "ZeRO-3"}:
        import deepspeed  # noqa: PLC0415 - as above

        deepspeed.init_distributed("gloo", verbose=False)
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    job = training(args.way)
    torch.manual_seed(2)
    words = torch.randint(VOCABULARY, (32 * BATCH * job.rows, LENGTH + 1))[job.row :: job.rows]
    order = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(words), batch_size=BATCH, shuffle=True, generator=order)
    torch.manual_seed(job.seed)

    protected = gemini_lab.protect(**job.protects, data=loader if job.reads else ())
    batches = endless(loader)
    for step in protected.steps(args.steps):
        tokens = next(batches) if job.reads else None
        loss = job.update(tokens)
        if loss is not None:
            protected.log(loss=loss.item())
        if step + 1 == TOLD_AFTER:
            protected.log(**all_held(job, tokens))
        if loss is not None and dist.get_rank() == dist.get_world_size() - 1:
            print(f"step {step + 1}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
