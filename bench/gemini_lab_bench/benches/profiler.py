"""The `profiler` bench: what watching costs each collective, apart from the collective itself."""

import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from gemini_lab.transfer.comm_hook import CommHook
from gemini_lab_bench.rows import Row, timed

CALLS: Final = 1000
"""Collectives of one measured iteration; the rows give the time of one."""


class _OneRank:
    """A comm object with a real backend of one rank, so that nothing has to travel."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def all_reduce(self, tensor: torch.Tensor, *, async_op: bool = False) -> Any:
        work = self._group.allreduce([tensor])
        if async_op:
            return work
        work.wait()
        return None


def bench(repeats: int) -> list[Row]:
    """Return seconds that a collective takes bare, watched, and watched without times."""
    with tempfile.NamedTemporaryFile(prefix="gemini-lab-bench-") as store:
        file_store = dist.FileStore(store.name, 1)  # type: ignore[attr-defined]
        backend = _OneRank(dist.ProcessGroupGloo(file_store, 0, 1, timedelta(seconds=60)))
        rows = []
        for kind, async_op in (("synchronous", False), ("asynchronous", True)):
            work = _iteration(backend, async_op=async_op)
            rows.append(_row(f"{kind}, bare", timed(work, repeats=repeats)))
            for name, recording in (("watched", True), ("counted only", False)):
                hook = CommHook(backend, recording=recording).attach()
                values = timed(_watched(hook, work), repeats=repeats)
                hook.detach()
                rows.append(_row(f"{kind}, {name}", values))
    return rows


def _iteration(backend: _OneRank, *, async_op: bool) -> Callable[[], None]:
    tensor = torch.zeros(1)

    def work() -> None:
        for _ in range(CALLS):
            handle = backend.all_reduce(tensor, async_op=async_op)
            if handle is not None:
                handle.wait()

    return work


def _watched(hook: CommHook, work: Callable[[], None]) -> Callable[[], None]:
    def iteration() -> None:
        work()
        hook.begin_update()
        hook.begin_iteration()

    return iteration


def _row(name: str, values: tuple[float, ...]) -> Row:
    return Row(name=name, values=tuple(value / CALLS * 1e6 for value in values), unit="us")
