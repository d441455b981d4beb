"""DLRover's flash checkpoints: shared memory that a process of the node's keeps.

Without replicas, as is its default: in 0.6.1 restoring from one makes memory of the right size but
does not copy the replica's bytes into it.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dlrover.python.common.multi_process import SOCKET_TMP_DIR
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

from gemini_lab_bench.peers.contract import Peer, PeerTask, Region


class DLRoverFlash(Peer):
    """Copies within the call; the tensors that it restores are views of the shared memory."""

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        self._checkpointer: Any = DdpCheckpointer(
            str(task.folder / "dlrover"), local_shard_num=1, global_shard_num=task.ranks
        )

    def begin(self, step: int) -> None:
        self._checkpointer.save_checkpoint(step, dict(self.state), storage_type=StorageType.MEMORY)

    def finish(self) -> None:
        """Do nothing: no other rank has a copy."""

    def restore(self) -> dict[str, torch.Tensor]:
        restored: dict[str, torch.Tensor] = self._checkpointer.load_checkpoint()
        return restored

    def stored(self) -> Sequence[Region]:
        return [np.frombuffer(self._handler.shared_memory.buf, np.uint8)]

    def close(self) -> None:
        """Remove the shared memory and the sockets, which would stay behind."""
        self._handler.unlink()
        shutil.rmtree(Path(SOCKET_TMP_DIR) / os.environ["TORCHELASTIC_RUN_ID"], ignore_errors=True)

    @property
    def _handler(self) -> Any:
        return self._checkpointer._engine._shm_handler  # noqa: SLF001 - it says nowhere else
