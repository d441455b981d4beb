"""Meta's torch_checkpointing: asynchronous saves, staged by a thread and written by a process."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch_checkpointing import CheckpointManager

from gemini_lab_bench.peers.contract import FilePeer, PeerTask, Region


class TorchCheckpointingFiles(FilePeer):
    """Its defaults without CUDA, to memory files; no other rank has a copy."""

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        logging.getLogger("torch_checkpointing").setLevel(logging.ERROR)
        self._manager: Any = CheckpointManager()
        self._written: Any = None

    def begin(self, step: int) -> None:
        self.step = step
        self._written = self._manager.save(str(self.folder), {"state": self.state})

    def before_update(self) -> None:
        """Wait until all is staged, as its documents say: update with its lock held."""
        with self._manager.lock():
            return

    def finish(self) -> None:
        self._written.result()
        self.drop_older()

    def restore(self) -> dict[str, torch.Tensor]:
        loaded = self._manager.load(str(self.folder), into={"state": self.state})
        restored: dict[str, torch.Tensor] = loaded["state"]
        return restored

    def stored(self) -> Sequence[Region]:
        return sorted(path for path in self.folder.rglob(f"*{self.task.rank}*") if path.is_file())

    def close(self) -> None:
        self._manager.close()
