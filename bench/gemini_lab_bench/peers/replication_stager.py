"""PyTorch's experimental stager that swaps states between pairs of ranks."""

import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import _ReplicationStager

from gemini_lab_bench.peers.contract import Peer, PeerTask, Region

_TIMEOUT: Final = timedelta(minutes=10)


class ReplicationStager(Peer):
    """Blocks until the partner's state is here and in a file, which is what can be restored."""

    keeps_copies = True

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        self._partner = (task.rank + task.ranks // 2) % task.ranks
        group: Any = dist.group.WORLD
        self._stager = _ReplicationStager(
            group, _TIMEOUT, torch.device("cpu"), str(task.folder / f"replicas-{task.rank}")
        )
        self._whole_s = 0.0

    def begin(self, step: int) -> None:  # noqa: ARG002 - there is only the newest
        self._stager.stage(self.state)
        self._whole_s = time.perf_counter()

    def finish(self) -> float:
        return self._whole_s

    def restore(self) -> dict[str, torch.Tensor]:
        restored: dict[str, torch.Tensor] = torch.load(self._file, weights_only=True)
        return restored

    def expected(self) -> dict[str, torch.Tensor]:
        return self.live_of(self._partner)

    def take_over(self, lost: int) -> dict[str, torch.Tensor] | None:
        """Return the file here, if that rank is the partner."""
        return self.restore() if lost == self._partner else None

    def stored(self) -> Sequence[Region]:
        return [self._file]

    @property
    def _file(self) -> Path:
        folder = self.task.folder / f"replicas-{self.task.rank}"
        return folder / f"rank_{self.task.rank}_replica_partner_{self._partner}.pt"
