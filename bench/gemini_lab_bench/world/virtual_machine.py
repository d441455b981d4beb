"""A simulated machine: what an agent uses of it, with real slabs and the real persistent tier."""

import asyncio
import errno
import os
import random
import signal
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Network, Rewound
from gemini_lab.memory.free import MEASURE, FreeMemory
from gemini_lab.memory.slab import Slab
from gemini_lab.node.agent import Agent
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.bulk import Answer, BulkProcesses
from gemini_lab.node.bulk_process import answer_to
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.etcd_client import EtcdClient, Values
from gemini_lab.node.host import Worker, WorkerHost
from gemini_lab.node.start_config import AgentConfig
from gemini_lab.recovery.ailments import MachineFault
from gemini_lab.recovery.discarded_versions import left_of
from gemini_lab.recovery.messages import (
    BulkRequest,
    EventSaid,
    ListVersions,
    MeasureLink,
    Message,
    Preload,
    ScriptError,
    ScriptFinished,
    VersionsListed,
    WorkerStart,
    WriteLeft,
    WriteManifest,
    WriteShards,
)
from gemini_lab.recovery.plan import VersionId, joined
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root_state import RootState
from gemini_lab_bench.world.virtual_loop import VirtualProcess
from gemini_lab_bench.world.virtual_rank import PORT_FD, RankChannel, VirtualRank
from gemini_lab_bench.world.virtual_store import VirtualClient

if TYPE_CHECKING:
    from gemini_lab_bench.world.world import VirtualWorld

MEMORY = FreeMemory(size_bytes=2**34, bound_by="the machine")
TOUCHES_TIER = (WriteShards, WriteManifest, WriteLeft, ListVersions)


class VirtualMachine(AgentMachine):
    """One machine of a world, with the agent that runs on it.

    Attributes:
        is_dead: Whether its memory is gone.
        lacks: Whether no process can be started on it.
        has_memory: Whether more memory can be taken on it.
        ailing: The fault that it tells of; empty without one.
        is_wrong: Whether it computes wrong.
        left: What rewinds left behind, of which its workers have told its agent.
        slowness: How many times longer its workers compute than others.
    """

    def __init__(self, world: "VirtualWorld", name: str) -> None:
        self.world, self.name = world, name
        self.net = world.network.add(name)
        self.random = random.Random(f"{world.seed} {name}")
        self.is_dead = self.lacks = self.is_wrong = False
        self.has_memory = True
        self.ailing, self.slowness = "", 1.0
        self.left: tuple[VersionId, ...] = ()
        self._set_by_s, self._drift, self._drifts_since_s = 0.0, 0.0, 0.0
        self.process = self.new_process(name)
        self.processes = [self.process]
        self.ranks: list[VirtualRank] = []
        self.bulk = VirtualBulk(self)
        self.host = self._new_host
        self.faults = self._told_faults
        self.agent: Agent | None = None

    def new_process(self, name: str) -> VirtualProcess:
        """Return a process of this machine."""
        process = VirtualProcess(name, self.world.loop)
        self.world.network.place_of[process] = self.net
        process.context.run(MEASURE.set, self.free_memory)
        return process

    def start_agent(self, config: AgentConfig) -> None:
        """Run an agent here."""
        self.process.start(self._live(config))

    async def _live(self, config: AgentConfig) -> None:
        self.agent = Agent(config, lambda _: None, machine=self)
        self.world.judge.follow(self)
        try:
            await self.agent.run()
        except StoreUnavailableError as error:  # before it has joined: whoever started it is told
            self.world.judge.note(f"{self.name}: its agent cannot join: {error}")
        else:
            self.world.judge.note_left(self)
        self.kill(has_power=True)

    # -- what befalls it -------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        """Whether its processes act."""
        return not self.is_dead and self.process.runs

    @property
    def has_workers(self) -> bool:
        """Whether ranks run here."""
        return self.runs and any(rank.process.runs for rank in self.ranks)

    def kill(self, *, has_power: bool) -> None:
        """End all processes at once, and with them the memory.

        Args:
            has_power: Whether the kernel lives, so that others are told.
        """
        if self.is_dead:
            return
        self.is_dead = True
        for rank in self.ranks:
            rank.kill(is_told=has_power)
        self.process.kill()
        if has_power:
            self.world.network.close_all(self.process)
        else:
            self.world.network.power_off(self.net)
        self.world.judge.note_dead(self)
        if self.agent is not None:
            self.agent.supervisor.memory.close()

    def freeze(self) -> None:
        """Stop every process; the kernel goes on."""
        for process in (self.process, *(rank.process for rank in self.ranks)):
            process.stop("frozen")

    def set_clock(self, by_s: float, *, drift: float) -> None:
        """Set the clock, and have it go wrong from then on.

        Args:
            by_s: How far it is set ahead.
            drift: Seconds by which it gains in a second.
        """
        self._set_by_s = self.wall_s() - 1e9 - self.world.loop.time() + by_s
        self._drift, self._drifts_since_s = drift, self.world.loop.time()

    def recover(self) -> None:
        """Have whatever processes and connections need."""
        self.lacks = self.net.refuses = False
        self.has_memory = self.net.opens = True

    def thaw(self) -> None:
        """Continue every process."""
        for process in (self.process, *(rank.process for rank in self.ranks)):
            process.go_on("frozen")

    # -- what its agent asks ---------------------------------------------------------------------

    def _new_host(self, **callbacks: Any) -> WorkerHost:
        return VirtualHost(self, **callbacks)

    def steady_s(self) -> float:  # type: ignore[override]
        return self.world.loop.time()

    def wall_s(self) -> float:  # type: ignore[override]
        now_s = self.world.loop.time()
        return 1e9 + now_s + self._set_by_s + self._drift * (now_s - self._drifts_since_s)

    def _told_faults(self) -> list[MachineFault]:
        return [MachineFault(self.ailing, "as simulated")] if self.ailing else []

    async def link_fault(self, peer: MeasureLink, *, token: str, name: str) -> None:
        """Measure nothing: millions of bytes would take this world's time, and no decision."""

    def address_towards(self, endpoint: str) -> str:
        del endpoint
        return self.net.ip

    def open_port(self, ip: str, *, waiting: int) -> Any:
        del waiting
        if not self.net.opens:
            raise OSError(errno.EMFILE, "Too many open files")
        self.net.next_port += 1
        return _Port(ip, self.net.next_port)

    def network_of(self, ip: str) -> Network:
        return Network(address=ip)

    def identity(self) -> str:
        return self.name

    def store(
        self,
        address: EtcdAddress,
        prefix: str,
        *,
        timeout_s: float = 1.0,
        values: Values | None = None,
    ) -> EtcdClient:
        client = VirtualClient(address, prefix, timeout_s=timeout_s, values=values)
        client.store = self.world.store
        return client

    def own_root(  # type: ignore[override]
        self, packed: str, *, state: RootState, at_s: float
    ) -> RootAgent | None:
        make = self.world.make_root
        return None if make is None else make(packed, state=state, at_s=at_s)

    def free_memory(self) -> FreeMemory:
        return MEMORY if self.has_memory else FreeMemory(size_bytes=0, bound_by="the machine")

    def kernel_kills(self) -> int:
        return 0

    def held_bytes(self, pid: int | None) -> int:
        del pid
        return 0

    def is_stopped(self, pid: int) -> bool:
        return any(one.pid == pid and not one.process.runs for one in self.ranks)

    def has_ended(self, process: str) -> bool:
        del process
        return False

    def own_pid(self) -> int:
        return 1

    def build_locks(self, node: str, *, say: Callable[[str], object]) -> None:
        del node, say

    async def end_left(
        self, prefix: str, *, is_over: bool, has_store: bool, within_s: float
    ) -> None:
        """Do nothing: no other process of the lab can be left here."""


class _Port:
    """A port in which ranks meet."""

    def __init__(self, ip: str, number: int) -> None:
        self._ip, self._number = ip, number

    def getsockname(self) -> tuple[str, int]:
        return self._ip, self._number

    def fileno(self) -> int:
        return PORT_FD

    def close(self) -> None:
        """Close it: nobody really listens."""


class VirtualHost(WorkerHost):
    """The simulated workers of one node."""

    def __init__(
        self,
        machine: VirtualMachine,
        *,
        warm: bool,
        on_message: Callable[[Worker, Message, list[int]], None],
        on_output: Callable[[Worker, list[str]], None],
        on_exit: Callable[[Worker, int], None],
        on_note: Callable[[str], None],
    ) -> None:
        del warm, on_output, on_note
        self.workers = {}
        self._machine = machine
        self._on_message, self._on_exit = on_message, on_exit

    @property
    def is_ready(self) -> bool:
        return True

    async def ready(self) -> None:
        await asyncio.sleep(self._machine.random.uniform(0.5, 5.0))

    async def kill_all(self, *, epoch: int, spare: Collection[int] = ()) -> None:
        del epoch
        doomed = [one for rank, one in self.workers.items() if rank not in spare]
        self._machine.world.judge.note_ended(self._machine, doomed)
        if doomed:
            await asyncio.sleep(self._machine.random.uniform(0.005, 0.05))
        for worker in doomed:
            self._of(worker).kill(is_told=True)
            self.end(worker, -signal.SIGKILL)

    def _of(self, worker: Worker) -> VirtualRank:
        channel = worker.channel
        assert isinstance(channel, RankChannel)
        return channel.rank

    def preload(self, order: Preload) -> None:
        """Do nothing: simulated workers import nothing."""

    def start(self, start: WorkerStart, port: tuple[int, ...] = ()) -> None:
        machine = self._machine
        if machine.lacks:
            raise OSError(11, "Resource temporarily unavailable")
        rank = VirtualRank(machine.world, machine, start, serves=bool(port))
        worker = Worker(
            rank=start.rank,
            local_rank=start.seats.local_rank_of(start.rank),
            born=start.epoch,
            epoch=start.epoch,
            channel=RankChannel(rank),
            output_fd=-1,
            is_ahead=bool(start.joins),
            pid=rank.pid,
        )
        machine.world.judge.note_started(machine, rank)
        machine.ranks = [one for one in machine.ranks if not one.process.is_gone]
        machine.ranks.append(rank)
        self.workers[start.rank] = worker
        rank.begin(
            say=lambda message: self._hear(worker, message), end=lambda code: self.end(worker, code)
        )

    def _hear(self, worker: Worker, message: Message) -> None:
        if self.workers.get(worker.rank) is worker:
            match message:
                case ScriptFinished():
                    worker.status = "finished"
                case ScriptError():
                    worker.error = message
                case EventSaid(entry=Entry(event=Rewound() as said)):
                    machine = self._machine
                    run = self._of(worker).start.order.run
                    machine.left = joined(machine.left, [left_of(said, run=run)])
            self._on_message(worker, message, [])

    def end(self, worker: Worker, code: int) -> None:
        """Note that a worker has ended."""
        if self.workers.get(worker.rank) is worker:
            del self.workers[worker.rank]
            self._on_exit(worker, code)

    def signal(self, rank: int, signal_number: int) -> int | None:
        worker = self.workers.get(rank)
        if worker is None:
            return None
        if signal_number == signal.SIGKILL:
            self._of(worker).kill(is_told=True)
            self._machine.world.loop.soon(self._machine.process, self.end, worker, -signal.SIGKILL)
        else:
            self._of(worker).process.stop("stopped")
        return worker.pid

    def lives(self, rank: int) -> bool:
        worker = self.workers[rank]
        return worker.error is None and not self._of(worker).process.is_gone

    def close(self) -> None:
        for worker in self.workers.values():
            self._of(worker).kill(is_told=True)
        self.workers.clear()


class VirtualBulk(BulkProcesses):
    """The work of bulk processes, done at once, on real slabs and by the real persistent tier."""

    def __init__(self, machine: VirtualMachine) -> None:
        super().__init__()
        self._machine = machine

    async def warm_up(self) -> None:
        """Do nothing: there is nothing to warm up."""

    async def close(self) -> None:
        """Do nothing: nothing is left."""

    async def ask(
        self, request: BulkRequest, kind: type[Answer], give: Callable[[], list[int]] = list
    ) -> tuple[Answer, list[int]]:
        await asyncio.sleep(self._machine.random.uniform(0.001, 0.02))
        if not self._machine.net.opens:
            raise OSError(errno.EMFILE, "Too many open files")
        slabs: list[Slab] = []
        tier = self._machine.world.tier
        fds = give()
        try:
            slabs.extend(map(Slab.attach, fds))
        finally:
            for fd in fds:
                os.close(fd)
        try:
            if isinstance(request, TOUCHES_TIER):
                await tier.reach(request, self._machine)
            answer, theirs = answer_to(request, slabs)
            if isinstance(answer, VersionsListed):
                answer = tier.listed or answer
            given = [os.dup(fd) for fd in theirs]
        finally:
            while slabs:
                slabs.pop().close()
        assert isinstance(answer, kind)
        return answer, given
