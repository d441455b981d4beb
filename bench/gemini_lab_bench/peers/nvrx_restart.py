"""A rank under NVRx's restart within the process: it trains until it is told to end.

`python -m gemini_lab_bench.peers.nvrx_restart FOLDER PORT ACTIVE SIZE [LOOK_S]`, in the
peer's environment. Model and optimizer are made once and stay; nothing is loaded after a restart.
What waits in a collective of Gloo's, which NVRx cannot break off as it does NCCL's, a hook of its
kind breaks off by closing Gloo's connections, as gemini_lab does.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess

from gemini_lab.training.gpt import GPT, named_size
from gemini_lab.transfer.sockets import OwnConnections
from gemini_lab_bench.peers.nvrx_restarts import END, ended_file, monitor_file

BATCH, BLOCK = 2, 64


class CloseConnections(inprocess.abort.Abort):  # type: ignore[misc]
    """Ends all waits of a Gloo group."""

    def __init__(self) -> None:
        self.connections = OwnConnections()

    def __call__(self, state: Any) -> Any:
        """Close the connections; NVRx calls this on a thread of its own when a rank is lost."""
        self.connections.cut()
        return state


def wrapper(
    folder: Path, active: int, look_s: float | None, abort: CloseConnections
) -> inprocess.Wrapper:
    """Return NVRx's wrapper, with ranks beyond `active` in reserve.

    Args:
        folder: Takes what says which processes watch the ranks.
        active: Ranks that train.
        look_s: How often it looks for failures; `None` for what it comes with (1 s), and for its
            wait for others' failures (1 s), which is 0 otherwise.
        abort: Called before NVRx's own.
    """
    looks: dict[str, Any] = {}
    if look_s is not None:
        every = timedelta(seconds=look_s)
        looks = {
            "monitor_thread_interval": every,
            "monitor_process_interval": every,
            "heartbeat_interval": every,
            "progress_watchdog_interval": every,
            "last_call_wait": timedelta(0),
        }
    return inprocess.Wrapper(
        abort=inprocess.Compose(inprocess.abort.AbortTorchDistributed(), abort),
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(active),
            inprocess.rank_assignment.ShiftRanks(),
        ),
        monitor_process_pidfile=str(monitor_file(folder, os.environ["RANK"])),
        **looks,
    )


def average_gradients(model: torch.nn.Module) -> None:
    """Average gradients as DDP does; nothing holds on to the group after this call."""
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    flat = torch.cat([one.flatten() for one in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    torch.nn.utils.vector_to_parameters(flat, gradients)


def main(arguments: Sequence[str]) -> int:
    """Train, and note when each iteration ended."""
    folder, port, active = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    look_s = float(arguments[4]) if len(arguments) > 4 else None
    first = int(os.environ["RANK"])
    torch_distributed: Any = dist  # its stubs leave out what is used here
    store = torch_distributed.TCPStore(
        "127.0.0.1", port, is_master=first == 0, wait_for_workers=False
    )
    torch.manual_seed(1)
    model = GPT(named_size(arguments[3]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    numbers = torch.Generator().manual_seed(first)

    abort = CloseConnections()

    @wrapper(folder, active, look_s, abort)  # type: ignore[untyped-decorator]
    def train(call: inprocess.CallWrapper | None = None) -> None:
        assert call is not None
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        shared = torch_distributed.PrefixStore(str(call.iteration), store)
        with abort.connections.opened():
            dist.init_process_group("gloo", store=shared, rank=rank, world_size=size)
        with ended_file(folder, first).open("a", encoding="utf-8") as told:
            is_to_end = torch.zeros(1)
            while not is_to_end:
                tokens = torch.randint(0, 256, (BATCH, BLOCK + 1), generator=numbers)
                optimizer.zero_grad()
                model(tokens[:, :-1], tokens[:, 1:]).backward()
                average_gradients(model)
                optimizer.step()
                told.write(json.dumps([call.iteration, time.monotonic()]) + "\n")
                told.flush()
                is_to_end.fill_((folder / END).exists())
                dist.all_reduce(is_to_end)
        dist.destroy_process_group()

    train()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
