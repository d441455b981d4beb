"""A lab of real agents whose workers are stand-ins, for the `control` bench."""

import asyncio
import os
import re
import secrets
import ssl
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec
import psutil

from gemini_lab.errors import GeminiError
from gemini_lab.job import Job, python_command
from gemini_lab.launch.etcd import start_etcd
from gemini_lab.log import events
from gemini_lab.log.entry import encode_entry
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.sealed_store import SealedStore
from gemini_lab.node.start_config import AgentConfig, AgentUp, LabRecord
from gemini_lab.recovery.messages import EventSaid, JobOrder, LabHello
from gemini_lab.seats import Seats, node_name
from gemini_lab.wire.tcp import Channel, connect
from gemini_lab_bench.benches.control_agents import Crowd

ITERATIONS: Final = 5  # after each start
LOOK_S: Final = 0.02
CONNECTIONS: Final = 32  # that are opened at once
CROWDS: Final = 4  # processes of agents: one that is busy for a while keeps fewer from their leases
ANSWER_S: Final = 30.0
_OPERATIONS: Final = re.compile(r"^grpc_server_msg_received_total\{.*\} (\S+)$", re.MULTILINE)
_SENT: Final = re.compile(r"^etcd_network_client_grpc_sent_bytes_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUse:
    """How much a store was used."""

    operations: float  # requests that it received, whether on a stream or alone
    sent_bytes: float  # of its answers, and of what it told those who watch

    def __sub__(self, before: "StoreUse") -> "StoreUse":
        return StoreUse(
            operations=self.operations - before.operations,
            sent_bytes=self.sent_bytes - before.sent_bytes,
        )


def store_use(address: EtcdAddress) -> StoreUse:
    """Return how much an etcd of a lab's own was used since its start."""
    own, url = address.own, f"https://{address.endpoints[0]}/metrics"
    assert own is not None
    trust = ssl.create_default_context(cadata=own.authority_pem)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(own.pem + own.key_pem)
        file.flush()
        trust.load_cert_chain(file.name)
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
    )
    with direct.open(url, timeout=ANSWER_S) as answer:
        return read_use(answer.read().decode())


def read_use(metrics: str) -> StoreUse:
    """Return the use that a text of metrics tells."""
    return StoreUse(
        operations=sum(float(value) for value in _OPERATIONS.findall(metrics)),
        sent_bytes=sum(float(value) for value in _SENT.findall(metrics)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What was used in a look of `s` seconds: processor time, and of the store."""

    s: float
    store: StoreUse
    etcd_s: float
    root_s: float
    agents_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A failure and what came of it."""

    planned_s: float  # from the kill until there was a plan
    reached_s: float  # until every rank had its part
    root_s: float  # processor time of the root agent in that
    agents_s: float  # processor time of all the others, which is theirs on one machine alone


@dataclass(slots=True)
class Owner:
    """What hears the agents, in a lab's place, and keeps of it what the bench wants to know."""

    epoch: int = 0  # the newest of which a plan was told
    planned_s: float = 0.0  # when it was
    # When each rank said that it had its start order, by epoch: of one it may be heard before the
    # plan is, which comes on another connection.
    starts: defaultdict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    # The newest one of each rank, by epoch.
    versions: defaultdict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    last: int = 0  # that iteration
    iterations: int = 0  # all that were heard
    collective_bytes: int = 0  # of what ranks said of their collectives, as lines of a log
    other_bytes: int = 0  # of what else they said of iterations
    channels: dict[str, Channel] = field(default_factory=dict)  # the connections to agents
    lost: set[str] = field(default_factory=set)  # names of nodes that were found lost
    reason: str = ""  # what the run waits for
    failure: str = ""  # why it failed
    waited_for: str = "agents to come up"  # what the bench waits for
    # Whether the lab is being taken down: what is said of that does not count.
    is_over: bool = False

    @property
    def protected(self) -> dict[int, float]:
        """When each rank of the newest epoch said that it had its start order."""
        return self.starts[self.epoch]

    @property
    def finished(self) -> int:
        """How many ranks of that epoch have done their last iteration."""
        return sum(version >= self.last for version in self.versions[self.epoch].values())

    async def listen(self, name: str, channel: Channel) -> None:
        self.channels[name] = channel
        while (message := await channel.receive()) is not None:
            if isinstance(message, EventSaid) and not self.is_over:
                self._take(message)
        del self.channels[name]

    def _take(self, said: EventSaid) -> None:
        entry = said.entry
        match entry.event:
            case events.RecoveryPlanned() as plan:
                self.epoch, self.planned_s = plan.epoch, entry.at_s
                self.last = (plan.version or 0) + ITERATIONS
                self.reason = ""
            case events.RunFailed() as failed:
                self.failure = failed.reason
            case events.RecoveryWaiting() as waiting:
                self.reason = waiting.reason
            case events.NodeLost():
                self.lost.add(entry.event.name)
            case events.Protected() as one:
                self.starts[one.epoch][one.rank] = entry.at_s
            case events.Collectives():
                self.collective_bytes += len(encode_entry(entry)) + 1
            case events.Iteration() | events.Transfer():
                self.other_bytes += len(encode_entry(entry)) + 1
                self.iterations += isinstance(entry.event, events.Iteration)
            case events.VersionComplete() as whole:
                self.other_bytes += len(encode_entry(entry)) + 1
                self.versions[whole.epoch][whole.rank] = whole.version


@dataclass(slots=True, kw_only=True)
class ControlLab:
    """A lab of agents whose workers only talk."""

    size: int
    standbys: int
    store: SealedStore
    owner: Owner
    root: psutil.Process
    # The agents that are to be killed, by name, each a process of its own.
    victims: dict[str, psutil.Process]
    crowds: list[psutil.Process]  # the other agents' processes, but for the root's

    async def look(self, seconds: float) -> Use:
        before, started_s = self._used(), time.monotonic()
        await asyncio.sleep(seconds)
        after = self._used()
        return Use(
            s=time.monotonic() - started_s,
            store=after.store - before.store,
            etcd_s=after.etcd_s - before.etcd_s,
            root_s=after.root_s - before.root_s,
            agents_s=after.agents_s - before.agents_s,
        )

    def submit(self, job: Job) -> None:
        order = JobOrder(
            number=1,
            run=1,
            job=job,
            seats=Seats(nodes=self.size, standbys=self.standbys),
            settings={"persistent_url": None, "min_progress_s": 3600.0},
        )
        self.store.put("job", msgspec.json.encode(order).decode())

    async def work(self) -> float:
        """Wait for the iterations after a start; the root's processor time a rank and iteration."""
        await self.until(lambda: len(self.owner.protected) == self.size, "all ranks to start")
        before_s = _cpu_s(self.root)
        await self.until(lambda: self.owner.finished == self.size, "all ranks to iterate")
        return (_cpu_s(self.root) - before_s) / self.size / ITERATIONS

    async def kill(self, victim: psutil.Process) -> Answered:
        """Kill an agent, and wait until the others have started again."""
        epoch, killed_s = self.owner.epoch, time.time()
        others = [one for one in (*self.victims.values(), *self.crowds) if one != victim]
        others = [one for one in others if one.is_running()]
        root_s, agents_s = _cpu_s(self.root), sum(map(_cpu_s, others))
        victim.kill()
        await self.until(lambda: self.owner.epoch > epoch, "another plan")
        await self.until(lambda: len(self.owner.protected) == self.size, "all ranks to start over")
        return Answered(
            planned_s=self.owner.planned_s - killed_s,
            reached_s=max(self.owner.protected.values()) - killed_s,
            root_s=_cpu_s(self.root) - root_s,
            agents_s=sum(map(_cpu_s, others)) - agents_s,
        )

    def _used(self) -> Use:
        etcd = etcd_process()
        others = [one for one in (*self.victims.values(), *self.crowds) if one.is_running()]
        return Use(
            s=0.0,
            store=store_use(self.store.address),
            etcd_s=_cpu_s(etcd),
            root_s=_cpu_s(self.root),
            agents_s=sum(_cpu_s(one) for one in others),
        )

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something is so; the bench's limit ends it.

        Raises:
            GeminiError: The run failed first.
        """
        self.owner.waited_for = what
        while not is_so():
            if self.owner.failure:
                raise GeminiError(f"waited for {what}; the run failed: {self.owner.failure}")
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def open_lab(
    size: int, standbys: int, *, period_s: float, lease_s: float, owner: Owner
) -> AsyncIterator[ControlLab]:
    """Open a lab that is up; everything it started ends with the `with` block."""
    async with AsyncExitStack() as undo:
        address = undo.enter_context(start_etcd()).address
        token = secrets.token_hex(16)
        store = SealedStore(address, f"gemini_lab/{secrets.token_hex(6)}", token=token)
        undo.callback(store.close)
        store.put("lab", "here")
        machines = size + standbys
        record = LabRecord(identity="", machines=machines, lease_s=lease_s, warm=False, threads=1)
        configs = [
            AgentConfig(
                name=node_name(number),
                token=token,
                etcd=address,
                prefix=store.prefix.rstrip("/"),
                lab=record,
            )
            for number in range(machines)
        ]
        listening: set[asyncio.Task[None]] = set()

        async def start(some: Sequence[AgentConfig]) -> psutil.Process:
            crowd = Crowd(agents=list(some), iterations=ITERATIONS, period_s=period_s)
            process = await _start(crowd, undo)
            gate = asyncio.Semaphore(CONNECTIONS)

            async def join(line: bytes) -> None:
                up = msgspec.json.decode(line, type=AgentUp)
                async with gate:
                    hello = LabHello(at_s=time.time(), owner="bench", taken=0)
                    channel = await connect(up.address, token, hello, timeout_s=30)
                listening.add(asyncio.create_task(owner.listen(up.name, channel)))

            assert process.stdout is not None
            async with asyncio.TaskGroup() as joining:  # each at once: agents wait only seconds
                for _ in some:
                    joining.create_task(join(await process.stdout.readline()))
            return psutil.Process(process.pid)

        root = await start(configs[:1])
        lab = ControlLab(
            size=size, standbys=standbys, store=store, owner=owner, root=root, victims={}, crowds=[]
        )
        await lab.until(lambda: "root" in store.items(), "a root agent")
        for config in configs[1 : standbys + 1]:
            lab.victims[config.name] = await start([config])
        rest = configs[standbys + 1 :]
        parts = min(len(rest), max(CROWDS, os.cpu_count() or 1))
        lab.crowds = [await start(rest[part::parts]) for part in range(parts)]
        await lab.until(lambda: len(owner.channels) == len(configs), "all agents to be connected")
        try:
            yield lab
        finally:
            owner.is_over = True


async def _start(crowd: Crowd, undo: AsyncExitStack) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *python_command("gemini_lab_bench.benches.control_agents"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    undo.push_async_callback(end)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(crowd) + b"\n")
    return process


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def etcd_process() -> psutil.Process:
    """Return the server that this process has started."""
    below = psutil.Process().children(recursive=True)
    return next(one for one in below if one.name() == "etcd")
