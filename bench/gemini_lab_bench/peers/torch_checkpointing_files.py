"""Meta's torch_checkpointing: asynchronous saves, staged by a thread and written by a process."""

import logging
import shutil
from collections.abc import Sequence
from typing import Any

import torch
from torch_checkpointing import CheckpointManager

from gemini_lab_bench.peers.contract import Peer, PeerTask, Region


class TorchCheckpointingFiles(Peer):
    """Its defaults without CUDA, to memory files; no other rank has a copy."""

    restores_in_place = True

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        logging.getLogger("torch_checkpointing").setLevel(logging.ERROR)
        self._manager: Any = CheckpointManager()
        self._written: Any = None
        self._step = 0

    def begin(self, step: int) -> None:
        self._step = step
        self._written = self._manager.save(self._folder(step), {"state": self.state})

    def before_update(self) -> None:
        """Wait until all is staged, as its documents say: update with its lock held."""
        with self._manager.lock():
            return

    def finish(self) -> None:
        """Wait for the files, and drop the older ones; no other rank has a copy."""
        self._written.result()
        torch.distributed.barrier()
        if self.task.rank == 0:
            shutil.rmtree(self._folder(self._step - 1), ignore_errors=True)

    def restore(self) -> dict[str, torch.Tensor]:
        loaded = self._manager.load(self._folder(self._step), into={"state": self.state})
        restored: dict[str, torch.Tensor] = loaded["state"]
        return restored

    def stored(self) -> Sequence[Region]:
        folder = self.task.folder / f"step{self._step}"
        return sorted(path for path in folder.rglob(f"*{self.task.rank}*") if path.is_file())

    def close(self) -> None:
        self._manager.close()

    def _folder(self, step: int) -> str:
        return str(self.task.folder / f"step{step}")
