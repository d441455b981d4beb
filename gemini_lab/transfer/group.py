"""The process group of checkpoint traffic, apart from all of training's groups."""

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gemini_lab.transfer.sockets import Connections, can_be_found


class CheckpointGroup:
    """All ranks of a job on Gloo, for checkpoint traffic alone.

    It is made beside torch's registry of groups, so that a script that destroys its groups at its
    end does not take the last version's way along.

    Args:
        store: A store that all ranks share.
        rank: This one.
        world_size: How many there are.
        timeout_s: After this, a transfer whose peer says nothing fails.

    Attributes:
        messages: How many this rank has begun to send and to receive.
    """

    def __init__(self, store: Any, *, rank: int, world_size: int, timeout_s: float = 1800) -> None:
        self.rank = rank
        self.world_size = world_size
        self.messages = 0
        torch_distributed: Any = dist  # its stubs leave out what this class stands on
        self._connections = Connections()
        with self._connections.opened() if can_be_found() else nullcontext():
            self._group: Any = torch_distributed.ProcessGroupGloo(
                torch_distributed.PrefixStore("gemini_lab", store),
                rank,
                world_size,
                timedelta(seconds=timeout_s),
            )

    def cut(self) -> None:
        """Close the connections: what waits for another rank fails, on every thread."""
        self._connections.cut()

    def isend(self, tensor: torch.Tensor, to: int, *, tag: int = 0) -> Any:
        """Begin to send; `wait()` ends it. Messages of a tag between two ranks keep order."""
        self.messages += 1
        return self._group.send([tensor], to, tag)

    def irecv(self, tensor: torch.Tensor, source: int, *, tag: int = 0) -> Any:
        """Begin to receive into `tensor`."""
        self.messages += 1
        return self._group.recv([tensor], source, tag)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send and wait."""
        self.isend(tensor, to).wait()

    def recv(self, tensor: torch.Tensor, source: int) -> None:
        """Receive and wait."""
        self.irecv(tensor, source).wait()

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._group.barrier().wait()

    def all_gather(self, values: Sequence[int]) -> list[list[int]]:
        """Every rank's `values` (equally many, 64-bit), in rank order."""
        ours = torch.tensor(values, dtype=torch.int64)
        theirs = [torch.zeros_like(ours) for _ in range(self.world_size)]
        self._group.allgather([theirs], [ours]).wait()
        return [one.tolist() for one in theirs]
