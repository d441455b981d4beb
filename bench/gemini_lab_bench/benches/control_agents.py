"""Many agents in one process, for the `control` bench: real ones, whose workers only talk.

Run as `python -m gemini_lab_bench.benches.control_agents`; it reads a `Crowd` as one line of
JSON and prints the answer of each agent. An agent's connections, leases, elections and orders are
what they always are. What its workers would train and its bulk processes would read is not there:
stand-ins say what those would say.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from gemini_lab.errors import GeminiError
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.node.agent import Agent, say_up
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.bulk import Answer, BulkProcesses
from gemini_lab.node.host import Worker, WorkerHost
from gemini_lab.node.start_config import AgentConfig, AgentUp
from gemini_lab.recovery.messages import (
    BulkRequest,
    EventSaid,
    FreeSlabs,
    InspectSlabs,
    KeptCopy,
    SlabsFreed,
    SlabsInspected,
    WorkerStart,
)
from gemini_lab.settings import Settings
from gemini_lab.shard.lineage import Lineage
from gemini_lab.units import to_microsecond
from gemini_lab.wire.local import LocalChannel

THREADS: Final = 32  # for the store's calls of all agents of a process
JOINING: Final = 8  # agents that register at once: each of them logs in
SHARD_BYTES: Final = 78_307_584  # these three as in a quickstart, a GPT of 26 million parameters
COLLECTIVES: Final = 69
COLLECTIVE_BYTES: Final = 2048
DIFFERENT_SIZES: Final = 6
TOLD_S: Final = 0.1  # of an iteration, as its collectives tell it: how long a line is hangs on it

Said = (
    events.Protected
    | events.ShardRestored
    | events.Iteration
    | events.Collectives
    | events.Transfer
    | events.VersionComplete
)


class Crowd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agents of one process, and what their workers do."""

    agents: list[AgentConfig]  # an agent for each of these
    iterations: int  # that workers do after each start; then they stand still
    period_s: float  # from one iteration to the next


@dataclass(slots=True)
class Memory:
    """What a node's memory would hold, and each version since the last start.

    Training waits for its slowest rank, so that two versions are enough; nobody waits here.
    """

    copies: list[KeptCopy] = field(default_factory=list)

    def begin(self, shards: Sequence[int], version: int, lineage: Lineage) -> None:
        self.copies.clear()
        self.hold(shards, version, lineage)

    def hold(self, shards: Sequence[int], version: int, lineage: Lineage) -> None:
        self.copies += [KeptCopy(shard, version, lineage) for shard in shards]


class StandInBulk(BulkProcesses):
    """Answers what is asked about memory, without any."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory = memory

    async def warm_up(self) -> None:
        """Do nothing: there is nothing to warm up."""

    async def ask(
        self, request: BulkRequest, kind: type[Answer], give: Callable[[], list[int]] = list
    ) -> tuple[Answer, list[int]]:
        """Return the answer that bulk processes would give."""
        del give
        answer: SlabsInspected | SlabsFreed
        match request:
            case InspectSlabs():
                answer = SlabsInspected(copies=list(self._memory.copies), damaged=[])
            case FreeSlabs():
                self._memory.copies.clear()
                answer = SlabsFreed()
            case _:
                raise GeminiError(f"the stand-in for bulk work knows no {type(request).__name__}")
        assert isinstance(answer, kind)
        return answer, []


class StandInHost(WorkerHost):
    """Workers that say what training says, at their own pace, and do nothing else."""

    def __init__(self, *, memory: Memory, crowd: Crowd, **rest: object) -> None:
        super().__init__(**rest)  # type: ignore[arg-type]  # as WorkerHost's own
        self._memory, self._crowd = memory, crowd
        self._talking: set[asyncio.Task[None]] = set()

    async def kill_all(self, *, epoch: int, spare: Collection[int] = ()) -> None:
        del epoch, spare
        self.close()

    def start(self, start: WorkerStart, port: tuple[int, ...] = ()) -> None:
        """Start a worker, which talks and serves no port."""
        del port
        channel, _ = LocalChannel.pair()
        self.workers[start.rank] = worker = Worker(
            rank=start.rank,
            local_rank=start.seats.local_rank_of(start.rank),
            born=start.epoch,
            epoch=start.epoch,
            channel=channel,
            output_fd=-1,
        )
        task = asyncio.create_task(self._talk(worker, start))
        self._talking.add(task)
        task.add_done_callback(self._talking.discard)

    def close(self) -> None:
        for task in self._talking:
            task.cancel()
        self.workers.clear()

    def _start_parent(self) -> None:
        self._is_ready.set()

    async def _talk(self, worker: Worker, start: WorkerStart) -> None:
        settings = Settings.parse(start.order.settings)
        seats = start.seats if start.seats.placement else start.seats.placed(settings)
        kept, first = seats.kept_shards(start.rank), start.plan.version or 0
        self._say(
            worker,
            events.Protected(
                shard_bytes=SHARD_BYTES,
                fingerprint="stand-in",
                settings=settings,
                placement=seats.holders,
            ),
        )
        if start.plan.version is not None:
            self._say(worker, _restored(start.rank, first))
        self._memory.begin(kept, first, start.plan.lineage)
        lineage = Lineage(run=start.order.run, epoch=start.epoch)
        peers = seats.peers_that_keep(start.rank)
        for iteration in range(first + 1, first + 1 + self._crowd.iterations):
            await asyncio.sleep(self._crowd.period_s)
            for event in _iterated(iteration, self._crowd.period_s, peers):
                self._say(worker, event)
            self._memory.hold(kept, iteration, lineage)

    def _say(self, worker: Worker, event: Said) -> None:
        known = msgspec.structs.replace(event, rank=worker.rank, epoch=worker.epoch)
        entry = Entry(at_s=time.time(), node="", event=known)
        self._on_message(worker, EventSaid(entry=entry), [])


def _restored(rank: int, version: int) -> events.ShardRestored:
    return events.ShardRestored(
        shard=rank,
        version=version,
        tier="local",
        holder=None,
        size_bytes=SHARD_BYTES,
        verified=True,
        retrieve_s=0.0,
        verify_s=0.0,
        load_s=0.0,
    )


def _call(number: int, step_s: float) -> events.Call:
    """Return a collective like those of ZeRO-3: parameters are gathered, gradients scattered."""
    start_s = number * step_s + step_s * random.random() / 2
    name = "reduce_scatter_tensor" if number % 3 == 2 else "all_gather_into_tensor"
    size_bytes = COLLECTIVE_BYTES * (1 + number % DIFFERENT_SIZES)
    return events.Call(name, size_bytes, start_s, start_s + step_s * random.random() / 2)


def _iterated(iteration: int, period_s: float, peers: Sequence[int]) -> Iterator[Said]:
    """Yield what a worker says of an iteration, with numbers as long as real ones."""
    ended_s, third_s = to_microsecond(time.time()), to_microsecond(period_s / 3)
    yield events.Iteration(
        iteration=iteration,
        duration_s=third_s,
        waited_s=to_microsecond(1 / 3e5),
        values={"loss": 16 / 3},
    )
    step_s = min(period_s, TOLD_S) / COLLECTIVES
    yield events.Collectives.of(
        (_call(number, step_s) for number in range(COLLECTIVES)),
        iteration=iteration,
        began_s=ended_s - period_s,
    )
    for peer in peers:
        yield events.Transfer(
            version=iteration,
            span=None,
            peer=peer,
            sent_bytes=SHARD_BYTES,
            start_s=ended_s,
            end_s=to_microsecond(ended_s + third_s),
        )
    yield events.VersionComplete(
        version=iteration,
        sent_bytes=SHARD_BYTES,
        local_s=third_s,
        duration_s=third_s,
        next_version=iteration + 1,
    )


async def run_crowd(crowd: Crowd) -> None:
    """Run all these agents until their lab ends."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    lives = []
    gate = asyncio.Semaphore(JOINING)

    def announce(up: AgentUp) -> None:
        say_up(up)
        gate.release()

    for config in crowd.agents:
        await gate.acquire()
        memory = Memory()
        agent = Agent(
            config,
            announce,
            machine=AgentMachine(
                host=partial(StandInHost, memory=memory, crowd=crowd),
                bulk=StandInBulk(memory),
                faults=list,
            ),
        )
        lives.append(asyncio.create_task(agent.run()))
    await asyncio.gather(*lives)


def main() -> None:
    """Run the agents that standard input names until their lab ends."""
    asyncio.run(run_crowd(msgspec.json.decode(sys.stdin.readline(), type=Crowd)))


if __name__ == "__main__":
    main()
