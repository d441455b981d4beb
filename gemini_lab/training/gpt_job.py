"""Train a byte-level GPT with DeepSpeed: what a user's own script looks like, protection included.

gemini-lab run --nodes 4 --standbys 1 -m gemini_lab.training.gpt_job --size small
torchrun --nproc_per_node 4 -m gemini_lab.training.gpt_job --size small     # unprotected
"""

import argparse
import dataclasses
import json
import math
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm

import gemini_lab
from gemini_lab.engine import session as sessions
from gemini_lab.engine.private_names import avoid_shared_memory_collectives
from gemini_lab.engine.process_exit import leave
from gemini_lab.training.corpus import TokenBatches, load_corpus
from gemini_lab.training.emulate import emulate
from gemini_lab.training.gpt import GPT, SIZES, named_size
from gemini_lab.training.turns import Turns


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options of the job."""
    parser = argparse.ArgumentParser(prog="gpt_job", description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="small", help=f"model: {', '.join(SIZES)}")
    parser.add_argument("--iterations", type=int, default=24, help="optimizer steps in all")
    parser.add_argument("--batch", type=int, default=2, help="sequences a rank and micro-batch")
    parser.add_argument(
        "--global-batch",
        type=int,
        help="sequences an iteration, of all ranks together, in place of --batch: it stays what it "
        "is where another number of nodes goes on",
    )
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches an iteration")
    parser.add_argument("--block", type=int, default=64, help="bytes a sequence")
    parser.add_argument("--seed", type=int, default=1, help="of weights, dropout and data order")
    parser.add_argument("--dropout", type=float, help="in place of the size's own, such as 0")
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="at its peak")
    parser.add_argument("--zero-stage", type=int, default=3, choices=[1, 2, 3])
    parser.add_argument(
        "--zero",
        type=json.loads,
        default={},
        metavar="JSON",
        help='further settings of ZeRO, such as {"stage3_param_persistence_threshold": 0}',
    )
    parser.add_argument(
        "--corpus", help="file, folder, 'wikipedia' or hf:NAME; Python's own text by default"
    )
    parser.add_argument(
        "--gemini", type=json.loads, default={}, help='settings as JSON, such as {"replicas": 2}'
    )
    parser.add_argument(
        "--layer-s", type=float, default=0.0, help="emulated accelerator time: forward, a block"
    )
    parser.add_argument(
        "--link-bytes-per-s", type=float, help="emulated link of each rank, outside a lab"
    )
    parser.add_argument(
        "--bad-batches",
        type=lambda text: {int(number) for number in text.split(",") if number},
        default=set(),
        metavar="N,N...",
        help="micro-batches, counted from 0, whose losses are made NaN: to see a guard at work",
    )
    parser.add_argument(
        "--times",
        type=Path,
        help="write when iterations ended, and the processor time until then, here, as JSON",
    )
    parser.add_argument(
        "--turns", type=Path, help="train in turns with another job: where this one's are given"
    )
    parser.add_argument("--turn-iterations", type=int, default=8, help="of each turn")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # deepspeed passes it
    return parser.parse_args(arguments)


def deepspeed_config(options: argparse.Namespace, *, on_gpu: bool) -> dict[str, Any]:
    """Return the DeepSpeed configuration; bf16 on GPUs, fp32 on CPUs."""
    batch = {"train_micro_batch_size_per_gpu": options.batch}
    if options.global_batch is not None:
        batch = {"train_batch_size": options.global_batch}
    return {
        **batch,
        "gradient_accumulation_steps": options.accumulate,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": on_gpu},
        "zero_optimization": {"stage": options.zero_stage, **options.zero},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": options.learning_rate, "weight_decay": 0.1, "torch_adam": True},
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "total_num_steps": max(options.iterations, 3),
                "warmup_num_steps": max(2, options.iterations // 10),
                "warmup_max_lr": options.learning_rate,
            },
        },
        "gemini": options.gemini,
        "steps_per_print": sys.maxsize,
    }


def now() -> dict[str, float]:
    """Return the clock, and the processor time of this process and of this thread.

    `ready_s` is the time in which this thread could have run and no processor was free, from
    Linux's `schedstat`; 0 without it.
    """
    return {
        "clock_s": time.monotonic(),
        "process_s": time.process_time(),
        "thread_s": time.thread_time(),
        "ready_s": ready_s(),
    }


def ready_s() -> float:
    """Return the seconds for which this thread waited for a processor."""
    try:
        told = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text("ascii")
    except OSError:
        return 0.0
    return int(told.split()[1]) / 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, from the start or from the newest version that is left."""
    options = parse(arguments)
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        avoid_shared_memory_collectives()
    deepspeed.init_distributed(verbose=False)
    rank, world_size = comm.get_rank(), comm.get_world_size()

    torch.manual_seed(options.seed)  # the same weights on every rank
    size = named_size(options.size)
    if options.dropout is not None:
        size = dataclasses.replace(size, dropout=options.dropout)
    model = GPT(size)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=list(model.parameters()),
        config=deepspeed_config(options, on_gpu=on_gpu),
    )
    batches = TokenBatches(
        load_corpus(options.corpus),
        engine.train_micro_batch_size_per_gpu(),
        options.block,
        options.seed,
        rank=rank,
        world_size=world_size,
    )
    torch.manual_seed(options.seed + 1 + rank)  # another dropout on every rank

    emulate(model.blocks, layer_s=options.layer_s, link_bytes_per_s=options.link_bytes_per_s)
    protected = gemini_lab.protect(engine, data=batches)
    turns = Turns(options.turns, options.turn_iterations) if options.turns else None
    if turns:
        turns.wait()
    ended = [now()]
    for step in protected.steps(options.iterations):
        for _ in range(options.accumulate):
            is_bad = batches.position in options.bad_batches
            tokens, targets = (part.to(engine.device) for part in next(batches))
            loss = engine(tokens, targets) * (math.nan if is_bad else 1.0)
            engine.backward(loss)
            protected.log(loss=loss.item())
            engine.step()  # updates after the last micro-batch
        ended.append(now())
        if rank == 0:
            print(f"iteration {step + 1} loss {loss.item()!r}", flush=True)  # noqa: T201
        if turns and turns.are_over(step + 1):
            with protected.pause("another job's turn"):
                turns.wait()
    if rank == 0 and options.times:
        options.times.write_text(json.dumps(ended), encoding="utf-8")
    comm.barrier()
    comm.destroy_process_group()
    return 0


if __name__ == "__main__":
    status = main()
    if sessions.current is None:  # a lab's worker has more to do
        leave(status)
    sys.exit(status)
