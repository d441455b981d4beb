"""torchft's HTTP transport: a replica that comes back fetches the state of a living one."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torchft.checkpointing.http_transport import HTTPTransport

from gemini_lab_bench.peers.contract import Peer, PeerTask

_TIMEOUT: Final = timedelta(minutes=2)
_CHUNKS: Final = 8


class TorchftHttp(Peer):
    """Even ranks serve their live state, odd ranks fetch it; even ranks restore nothing."""

    keeps_saves = False

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        self._serves = task.rank % 2 == 0
        self._transport: Any = HTTPTransport(_TIMEOUT, num_chunks=_CHUNKS)
        addresses: list[Any] = [None] * task.ranks
        dist.all_gather_object(addresses, self._transport.metadata())
        self._address = addresses[task.rank - 1]
        self._thread = ThreadPoolExecutor(1)
        self._fetched: Future[float] | None = None
        self._step = 0

    def begin(self, step: int) -> None:
        self._step = step
        if self._serves:
            self._serve()
        else:
            self._fetched = self._thread.submit(self._fetch_timed)

    def before_update(self) -> None:
        """Wait until the state was fetched: a fetch that comes later would wait for the next."""
        if self._fetched is not None:
            self._fetched.result()
        dist.barrier()
        if self._serves:
            self._transport.disallow_checkpoint()

    def finish(self) -> float | None:
        whole_s = self._fetched.result() if self._fetched else None
        dist.barrier()
        return whole_s

    def restore(self) -> dict[str, torch.Tensor] | None:
        restored = None
        if self._serves:
            self._serve()
        else:
            restored = self._fetch()
        dist.barrier()
        self.before_update()
        return restored

    def expected(self) -> dict[str, torch.Tensor]:
        return self.live_of(self.task.rank - 1)

    def close(self) -> None:
        self._transport.shutdown(wait=False)

    def _serve(self) -> None:
        self._transport.send_checkpoint([self.task.rank + 1], self._step, self.state, _TIMEOUT)

    def _fetch(self) -> dict[str, torch.Tensor]:
        source = self.task.rank - 1
        fetched: dict[str, torch.Tensor] = self._transport.recv_checkpoint(
            source, self._address, self._step, _TIMEOUT
        )
        return fetched

    def _fetch_timed(self) -> float:
        self._fetch()
        return time.perf_counter()
