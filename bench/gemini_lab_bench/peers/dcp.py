"""PyTorch's distributed checkpoints: `async_save` with its default stager."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

from gemini_lab_bench.peers.contract import FilePeer, PeerTask, Region


class Dcp(FilePeer):
    """Staged into shared memory on a thread, written by a process; pinning would need CUDA."""

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=True,
                use_async_staging=True,
                use_non_blocking_copy=False,
            )
        )
        self._response: Any = None

    def begin(self, step: int) -> None:
        self.step = step
        self._response = async_save(
            self._named(),
            checkpoint_id=str(self.folder),
            async_stager=self._stager,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )

    def before_update(self) -> None:
        self._response.staging_completion.result()

    def finish(self) -> None:
        self._response.upload_completion.result()
        self.drop_older()

    def restore(self) -> dict[str, torch.Tensor]:
        load(self._named(), checkpoint_id=str(self.folder))
        return self.state

    def stored(self) -> Sequence[Region]:
        return [*self.folder.glob(f"__{self.task.rank}_*.distcp")]

    def close(self) -> None:
        self._stager.close()

    def _named(self) -> dict[str, Any]:
        return {f"rank{self.task.rank}.{name}": tensor for name, tensor in self.state.items()}
