"""NVIDIA Resiliency Extension: local checkpoints, replicated within cliques of two ranks."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (
    LocalCheckpointManager,
)
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import (
    CliqueReplicationStrategy,
)

from gemini_lab_bench.peers.contract import Peer, PeerTask, Region


class CpuStateDict(BasicTensorAwareStateDict):  # type: ignore[misc]
    """Its own state dict for tensors in CPU memory, which it refuses."""

    def __init__(self, state_dict: dict[str, Any]) -> None:
        self.state_dict = state_dict
        self._is_hollow = False

    def restore_tensor_device(self, non_blocking: bool = True) -> None:  # noqa: FBT001, FBT002
        """Do nothing: tensors are where they belong."""


class NvrxLocal(Peer):
    """Blocks until the replicas are exchanged and written."""

    keeps_copies = True

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        self._manager: Any = LocalCheckpointManager(
            task.folder / "nvrx",
            repl_strategy=CliqueReplicationStrategy.from_replication_params(1, 2),
        )
        self._whole_s = 0.0

    def begin(self, step: int) -> None:
        self._manager.save(CpuStateDict(dict(self.state)), step)
        self._whole_s = time.perf_counter()

    def finish(self) -> float:
        return self._whole_s

    def restore(self) -> dict[str, torch.Tensor]:
        self._manager.find_latest()
        loaded, _ = self._manager.load()
        state: dict[str, torch.Tensor] = loaded.state_dict
        return state

    def take_over(self, lost: int) -> dict[str, torch.Tensor] | None:
        """Read the replica's file; its own way to fetch one passes every tensor through CUDA."""
        files = sorted(self._manager.local_ckpt_dir.glob(f"iter_*_{lost}_local.pt"))
        if not files:
            return None
        state: dict[str, torch.Tensor] = torch.load(files[-1], weights_only=False).state_dict
        return state

    def stored(self) -> Sequence[Region]:
        files = self._manager.local_ckpt_dir.glob(f"iter_*_{self.task.rank}_local.pt")
        return [max(files)]
