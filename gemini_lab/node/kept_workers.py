"""Workers that keep their process in a recovery: they stand still, and go on with new peers."""

import asyncio
import signal
from collections.abc import Callable
from typing import Final

from gemini_lab.node.host import WorkerHost
from gemini_lab.recovery.messages import Fence, HoldPort, Serve, Serving, Stand, Stands

STAND_S: Final = 5.0
"""For a worker to let go of the node's memory; one that does not is ended as any other."""
LOOK_S: Final = 0.05
"""Between two looks whether one that is asked has ended."""


class KeptWorkers:
    """Asks a node's workers to stand still.

    Args:
        say: Tells a person why one could not.
    """

    def __init__(self, *, say: Callable[[str], None]) -> None:
        self._say = say
        self._asked: dict[int, asyncio.Future[Stands]] = {}
        self._serving: asyncio.Future[int] | None = None
        self._epoch = 0
        self._said: set[str] = set()

    async def stand(self, host: WorkerHost, order: Fence) -> list[int]:
        """Have the node's workers stand still.

        Returns:
            The ranks of those that do: no memory is written by them until they are told to go on.
        """
        loop = asyncio.get_running_loop()
        self._epoch = order.epoch
        asked = host.workers.keys() - {*order.ends}
        self._asked = {rank: loop.create_future() for rank in asked}
        for rank in self._asked:
            host.workers[rank].channel.send(Stand(epoch=order.epoch))
        await self._answers(host)
        kept = [rank for rank in self._asked if self._does(host, rank)]
        for rank in kept:
            host.workers[rank].epoch = order.epoch
        self._asked = {}
        return kept

    async def _answers(self, host: WorkerHost) -> None:
        """Wait for those that are asked, as long as they live; for `STAND_S` at most."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + STAND_S
        while loop.time() < deadline_s:
            asked = [one for rank, one in self._asked.items() if rank in host.workers]
            if all(one.done() for one in asked):
                return
            await asyncio.wait(asked, timeout=LOOK_S)

    async def serve(self, host: WorkerHost, order: HoldPort, *, ip: str) -> int | None:
        """Have a worker that stands still serve the rendezvous.

        Returns:
            The port; `None` if it did not, and was ended.
        """
        assert order.keeper is not None
        self._epoch = order.epoch
        self._serving = asyncio.get_running_loop().create_future()
        if (worker := host.workers.get(order.keeper)) is None:
            return None
        worker.channel.send(Serve(epoch=order.epoch, host=ip))
        await asyncio.wait([self._serving], timeout=STAND_S)
        if self._serving.done():
            return self._serving.result()
        host.signal(order.keeper, signal.SIGKILL)
        return None

    def hear(self, said: Stands | Serving) -> None:
        """A worker answers."""
        if isinstance(said, Serving):
            serving = self._serving
            if serving is not None and said.epoch == self._epoch and not serving.done():
                serving.set_result(said.port)
            return
        asked = self._asked.get(said.rank)
        if asked is not None and said.epoch == self._epoch and not asked.done():
            asked.set_result(said)

    def _does(self, host: WorkerHost, rank: int) -> bool:
        answer = self._asked[rank]
        if rank not in host.workers:
            reason = "it has ended"
        else:
            reason = (
                answer.result().reason if answer.done() else f"no answer within {STAND_S:.0f} s"
            )
        if reason and reason not in self._said:
            self._said.add(reason)
            self._say(f"rank {rank} does not keep its process: {reason}")
        return not reason
