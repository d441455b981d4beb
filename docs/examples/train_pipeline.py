"""A pipeline whose stages differ, with data parallel columns: 1F1B, or one of four other schedules.

    torchrun --nproc-per-node 4 train_pipeline.py                              # as it is
    gemini-lab run --nodes 4 train_pipeline.py                                 # survives lost nodes
    gemini-lab run --nodes 2 train_pipeline.py --schedule ZBVZeroBubble
    gemini-lab run --nodes 8 train_pipeline.py --cut 2                         # on three axes

The first stage has the embedding, the last one the head. Schedules with several stages a rank hand
lists of models and optimizers to `protect`. Only the first and the last stage read data. A resize
changes the number of copies alone.
"""

import argparse
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gemini_lab

VOCABULARY, WIDTH, LENGTH, BATCH = 64, 32, 16, 24
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")


class Stage(nn.Module):
    """One stage: the first looks words up, the last says which word comes next."""

    def __init__(self, number: int, count: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if number == 0 else nn.Identity()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(1 + number % 2))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, VOCABULARY) if number == count - 1 else nn.Identity()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(given)
        for layer in self.layers:
            hidden = hidden + self.drop(torch.tanh(layer(hidden)))
        return self.head(hidden)


def stages_of(schedule: str, place: int, places: int) -> list[int]:
    """Return the stages of a rank, in the order that the schedule asks for."""
    if schedule in {"GPipe", "1F1B"}:
        return [place]
    last = 2 * places - 1 - place if schedule == "ZBVZeroBubble" else place + places
    return [place, last]


def loss_of(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return the loss of a micro-batch."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def endless(loader: DataLoader, sampler: DistributedSampler) -> Iterator[list[torch.Tensor]]:
    """Yield batches, epoch after epoch."""
    while True:
        yield from loader
        sampler.set_epoch(sampler.epoch + 1)


def main() -> None:
    """Train some steps, and print the loss."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--places", type=int, default=2, help="ranks along a pipeline")
    options.add_argument("--cut", type=int, default=1, help="ranks that share each layer")
    options.add_argument("--schedule", choices=SCHEDULES, default="1F1B")
    args = options.parse_args()

    dist.init_process_group("gloo")
    places, copies = args.places, dist.get_world_size() // (args.places * args.cut)
    names = ("stage", "data", "tensor")
    mesh = init_device_mesh("cpu", (places, copies, args.cut), mesh_dim_names=names)
    place, column = mesh.get_local_rank("stage"), mesh.get_local_rank("data")
    numbers = stages_of(args.schedule, place, places)
    count = places * len(numbers)
    models, stages = [], []
    for number in numbers:
        torch.manual_seed(number)
        model = Stage(number, count)
        if args.cut > 1:
            cut = ColwiseParallel(output_layouts=Replicate())
            parallelize_module(model, mesh["tensor"], {"layers.*": cut})
        if copies > 1:
            fully_shard(model, mesh=mesh["data"])
        group = mesh.get_group("stage")
        stages.append(PipelineStage(model, number, count, torch.device("cpu"), group=group))
        models.append(model)
    kind = getattr(schedules, f"Schedule{args.schedule}")
    schedule = kind(stages if len(stages) > 1 else stages[0], 4, loss_fn=loss_of)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=3e-3) for model in models]

    torch.manual_seed(1)
    words = TensorDataset(torch.randint(VOCABULARY, (8 * BATCH, LENGTH + 1)))
    sampler = DistributedSampler(words, num_replicas=copies, rank=column, seed=2)
    loader = DataLoader(words, batch_size=BATCH // copies, sampler=sampler)
    reads_first, reads_last = 0 in numbers, count - 1 in numbers
    data = loader if reads_first or reads_last else ()
    torch.manual_seed(100 + dist.get_rank() // args.cut)  # ranks that share layers drop out alike

    protected = gemini_lab.protect(model=models, optimizer=optimizers, data=data)
    batches = endless(loader, sampler)
    for step in protected.steps(args.steps):
        losses: list[torch.Tensor] = []
        (tokens,) = next(batches) if data else (None,)
        given = (tokens[:, :-1],) if reads_first else ()
        wanted = {"target": tokens[:, 1:], "losses": losses} if reads_last else {}
        schedule.step(*given, **wanted)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if reads_last:
            loss = torch.stack(losses).mean().item()
            protected.log(loss=loss)
            if column == 0:
                print(f"step {step + 1}: loss {loss:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
