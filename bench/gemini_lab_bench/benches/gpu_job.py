"""The job of the steps on a GPU: FSDP2 or DeepSpeed's ZeRO, with dropout; on a GPU in bf16.

It is what a user's own script looks like. Two workers that share one GPU meet over Gloo, as NCCL
refuses that.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gemini_lab
from gemini_lab.training.gpt import GPT, named_size

BLOCK, BATCH = 64, 2

Training = tuple[Any, Callable[[Tensor], Tensor], Callable[[], None]]
"""What `protect` gave, what makes a batch's loss, and what then updates the weights."""


def parse() -> argparse.Namespace:
    """Parse the job's options."""
    parser = argparse.ArgumentParser(prog="gpu_job", description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=["fsdp2", "zero3"], required=True)
    parser.add_argument("--size", default="small", help="the model's (%(default)s)")
    parser.add_argument("--iterations", type=int, default=20, help="in all (%(default)s)")
    parser.add_argument("--backend", help="of the process group (default: nccl on a GPU)")
    parser.add_argument("--compile", action="store_true", help="torch.compile each block")
    return parser.parse_args()


def with_fsdp2(model: GPT, *, on_gpu: bool, compiled: bool) -> Training:
    """Shard the model by FSDP2, and protect its training."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if on_gpu else None)
    for block in model.blocks:
        if compiled:
            block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=on_gpu)
    protected = gemini_lab.protect(model=model, optimizer=optimizer)

    def loss_of(tokens: Tensor) -> Tensor:
        loss: Tensor = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return protected, loss_of, update


def with_zero3(model: GPT, *, on_gpu: bool) -> Training:
    """Give the model to DeepSpeed, and protect its engine."""
    import deepspeed  # noqa: PLC0415 - seconds, which the other framework does not pay

    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "bf16": {"enabled": on_gpu},
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "torch_adam": True}},
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )

    def loss_of(tokens: Tensor) -> Tensor:
        loss: Tensor = engine(tokens[:, :-1], tokens[:, 1:])
        engine.backward(loss)
        return loss

    return gemini_lab.protect(engine), loss_of, engine.step


def main() -> None:
    """Train to the end, from the start or from the newest version."""
    told, on_gpu = parse(), torch.cuda.is_available()
    # Attention's backward pass and cuBLAS add in a fixed order only if they are asked to.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(told.backend or ("nccl" if on_gpu else "gloo"))
    torch.manual_seed(1)
    with device:
        model = GPT(named_size(told.size))
    draw = torch.Generator().manual_seed(1000 + dist.get_rank())
    shape = told.iterations, BATCH, BLOCK + 1
    tokens = torch.randint(256, shape, generator=draw)
    if told.framework == "zero3":
        protected, loss_of, update = with_zero3(model, on_gpu=on_gpu)
    else:
        protected, loss_of, update = with_fsdp2(model, on_gpu=on_gpu, compiled=told.compile)
    for step in protected.steps(told.iterations):
        loss = loss_of(tokens[step].to(device))
        protected.log(loss=loss.item())
        update()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
