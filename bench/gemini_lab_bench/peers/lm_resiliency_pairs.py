"""LM Resiliency's in-memory checkpoints: every rank's state beside its partner's, over Gloo."""

import time
from collections.abc import Sequence
from threading import Thread
from typing import Any

import numpy as np
import torch
from lm_resiliency.checkpointing.config import InMemoryCkptConfig
from lm_resiliency.checkpointing.manager import InMemoryCheckpointManager

from gemini_lab_bench.peers.contract import Peer, PeerTask, Region


class LmResiliencyPairs(Peer):
    """Every save in memory, none to disk; on CPUs its copy happens within the call.

    Its checksums are for the files that it writes when a job ends or a rank was lost, and are
    switched on here (its default is off). A copy in memory has none.
    """

    keeps_copies = True

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        config = InMemoryCkptConfig(
            interval=1,
            replication_jump=1,
            disk_flush_interval=0,
            disk_folder=str(task.folder / f"disk-{task.rank}"),
            run_id="bench",
            verify_integrity=True,
        )
        self._manager: Any = InMemoryCheckpointManager(config)
        self._whole: list[float] = []
        self._waiter = Thread()

    def begin(self, step: int) -> None:
        self._manager.save_tensors(list(self.state.values()), step)
        self._whole = []
        self._waiter = Thread(target=self._finish)
        self._waiter.start()

    def finish(self) -> float | None:
        self._waiter.join()
        return self._whole[0] if self._whole else None

    def restore(self) -> dict[str, torch.Tensor]:
        tensors, *_ = self._manager.load_tensors()
        return dict(zip(self.state, tensors, strict=True))

    def take_over(self, lost: int) -> dict[str, torch.Tensor] | None:
        """Write all memory to files and read one of them, as its restart does."""
        self._manager.flush_for_restart()
        files = self._manager._disk  # noqa: SLF001 - a started worker would find it again
        steps = [step for step in files.find_steps_on_disk() if files.has_rank(step, lost)]
        if not steps:
            return None
        _, tensors = files.load(max(steps), rank=lost)
        return dict(zip(self.state, tensors, strict=True))

    def stored(self) -> Sequence[Region]:
        slots = self._manager._buffer_pool  # noqa: SLF001 - it says nowhere else
        newest = slots.get_slot_by_step(slots.get_latest_own_step())
        return [tensor.numpy().view(np.uint8) for tensor in newest.tensors]

    def close(self) -> None:
        self._manager.close()

    def _finish(self) -> None:
        if self._manager.finalize_replication():
            self._whole.append(time.perf_counter())
