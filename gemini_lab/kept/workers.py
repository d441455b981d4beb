"""The agent's orders to workers that keep their processes through a recovery."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from gemini_lab.recovery.messages import (
    Fence,
    GoOn,
    Stand,
    Stands,
    WorkerStart,
)
from gemini_lab.wire.local import LocalChannel

STAND_S: Final = 5.0
"""The limit for a worker to stop writing the node's memory; the agent ends a later one."""
LOOK_S: Final = 0.05
"""The pause between two looks whether a worker that was asked has ended."""


class NodeWorker(Protocol):
    """A worker of this node."""

    epoch: int
    is_ahead: bool

    @property
    def channel(self) -> LocalChannel: ...


class Host(Protocol):
    """The workers of this node."""

    @property
    def workers(self) -> Mapping[int, NodeWorker]: ...


class KeptWorkers:
    """Stops a node's workers at a fence, and lets them go on."""

    def __init__(self, *, say: Callable[[str], None]) -> None:
        self._say = say
        self._asked: dict[int, asyncio.Future[Stands]] = {}
        self._epoch = 0
        self._said: set[str] = set()

    async def stand(self, host: Host, order: Fence) -> list[int]:
        """Stop the node's workers, if the fence keeps any; return the ranks that stand still.

        These write no memory until they are ordered to go on.
        """
        if not order.keeps:
            return []
        loop, workers = asyncio.get_running_loop(), host.workers
        self._epoch = order.epoch
        asked = workers.keys() - {*order.ends}
        self._asked = {rank: loop.create_future() for rank in asked}
        for rank in self._asked:
            workers[rank].channel.send(Stand(epoch=order.epoch))
        await self._answers(host)
        kept = [rank for rank in self._asked if self._stands(host, rank)]
        for rank in kept:
            workers[rank].epoch = order.epoch
        self._asked = {}
        return kept

    async def _answers(self, host: Host) -> None:
        """Wait for those that are asked, as long as they live; for `STAND_S` at most."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + STAND_S
        while loop.time() < deadline_s:
            asked = [one for rank, one in self._asked.items() if rank in host.workers]
            if all(one.done() for one in asked):
                return
            await asyncio.wait(asked, timeout=LOOK_S)

    def go_on(self, host: Host, start: WorkerStart, port: tuple[int, ...]) -> bool:
        """Order a worker to go on, and to serve a port; return whether its process is there."""
        worker = host.workers.get(start.rank)
        if worker is None:
            return False
        worker.is_ahead = False
        worker.channel.send(GoOn(start=start), port)
        return True

    def on_answer(self, said: Stands) -> None:
        if said.epoch != self._epoch:
            return  # to an older fence
        asked = self._asked.get(said.rank)
        if asked is not None and not asked.done():
            asked.set_result(said)

    def _stands(self, host: Host, rank: int) -> bool:
        answer = self._asked[rank]
        if rank not in host.workers:
            reason = "it has ended"
        elif answer.done():
            reason = answer.result().reason
        else:
            reason = f"no answer within {STAND_S:.0f} s"
        if reason and reason not in self._said:
            self._said.add(reason)
            self._say(f"rank {rank} does not keep its process: {reason}")
        return not reason
