"""The least that a replicated, checksummed copy takes: three plain steps, one after another."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import xxhash

from gemini_lab_bench.peers.contract import Peer, PeerTask


class Floor(Peer):
    """Copies the state, sends the copy to the next rank, and checksums it; nothing overlaps."""

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        self._copy, self._room = (torch.zeros(task.size_bytes // 4) for _ in range(2))
        self._views = dict(zip(self.state, self._copy.tensor_split(len(self.state)), strict=True))
        self._whole_s = 0.0

    def begin(self, step: int) -> None:  # noqa: ARG002 - there is only the newest
        """Do everything at once: the bench measures how long it takes, not how it is hidden."""
        self._timed("memcpy", self._copy_state)
        self._timed("checksum", self._hash)
        self._timed("bare Gloo", self._exchange)
        self._whole_s = time.perf_counter()

    def finish(self) -> float:
        return self._whole_s

    def restore(self) -> dict[str, torch.Tensor]:
        """Return the copy as it is, after a look at every byte."""
        self._hash()
        return self._views

    def _copy_state(self) -> None:
        for name, tensor in self.state.items():
            self._views[name].copy_(tensor)

    def _hash(self) -> None:
        xxhash.xxh3_64_intdigest(self._copy.numpy().data)

    def _exchange(self) -> None:
        rank, ranks = self.task.rank, self.task.ranks
        works: list[Any] = [
            dist.isend(self._copy, (rank + 1) % ranks),
            dist.irecv(self._room, (rank - 1) % ranks),
        ]
        for work in works:
            work.wait()

    def _timed(self, name: str, work: Callable[[], object]) -> None:
        started_s = time.perf_counter()
        work()
        self.details[name] = time.perf_counter() - started_s
