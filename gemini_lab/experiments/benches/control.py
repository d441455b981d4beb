"""The `control` bench: what a lab of N agents costs its store, its root and its log.

Agents, their connections, etcd and the root agent are real, on one box. Workers are stand-ins that
talk as training does (`control_agents`). The root agent has a process of its own, and so has each
agent that is to be killed; the others share as many processes as there are cores.
"""

import argparse
import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec
import psutil

from gemini_lab.errors import ConfigError, GeminiError
from gemini_lab.experiments.bench import Row, growth
from gemini_lab.experiments.benches.control_agents import Crowd
from gemini_lab.experiments.benches.store_metrics import StoreUse, store_use
from gemini_lab.job import Job
from gemini_lab.launch.etcd import start_etcd
from gemini_lab.log import events
from gemini_lab.log.entry import encode_entry
from gemini_lab.node.config import AgentConfig, AgentUp
from gemini_lab.node.control_store import EtcdStore
from gemini_lab.recovery.messages import EventSaid, JobOrder, LabHello
from gemini_lab.seats import Seats, node_name
from gemini_lab.wire.tcp import Channel, connect

LEASE_S: Final = 2.0  # a lab's default
ITERATIONS: Final = 5  # after each start
PACE: Final = 500.0  # iterations a second of all ranks together, at most: one process hears them
TOP_PACE: Final = 10.0  # of each rank
MINUTE_ITERATIONS: Final = 600  # at ten a second
LIMIT_S: Final = 300.0
LOOK_S: Final = 0.02
CONNECTIONS: Final = 32  # that are opened at once
OPERATIONS: Final = "store operations an agent and second"
ANSWERS: Final = "store's answers and notices an agent"
WIDE: Final = 18  # characters of a column
LOG: Final = "log a rank and minute, at 10 iterations/s"


def add_options(parser: argparse.ArgumentParser) -> None:
    """How many agents, and for how long they are watched."""
    parser.add_argument("--agents", default="10,100", help="sizes, such as 10,100,1000")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each look at an idle lab")


def bench(repeats: int, *, agents: str, seconds: float) -> list[Row]:
    """Rows for each number of agents; then how each quantity grows.

    Raises:
        ConfigError: A number of agents is none, or too small for the failures.
    """
    sizes = [_size(text, repeats) for text in agents.split(",")]
    found = [asyncio.run(measure(size, repeats, seconds)) for size in sizes]
    rows = [row for one in zip(*found, strict=True) for row in one]
    if len(sizes) < 2:
        return rows
    return [*rows, *(_growth(sizes, one) for one in zip(*found, strict=True))]


def _size(text: str, repeats: int) -> int:
    if not text.strip().isdigit() or int(text) < repeats + 2:
        raise ConfigError(
            f"--agents {text!r}: {repeats} repeats kill {repeats} agents beside the root; give "
            f"numbers from {repeats + 2} on, with commas between them, or lower --repeats"
        )
    return int(text)


def _growth(sizes: Sequence[int], rows: Sequence[Row]) -> Row:
    values = [row.median for row in rows]
    name = rows[0].name
    if min(values) <= 0:
        return Row(name=name, values=(), why_not="it is 0 somewhere")
    return Row(name=name, unit="", values=(growth(sizes, values),))


def table(rows: Sequence[Row]) -> str:
    """A line for each quantity, a column for each number of agents."""
    sizes = sorted({row.settings["agents"] for row in rows if row.settings})
    found: dict[str, dict[int | None, Row]] = {}
    for row in rows:
        found.setdefault(row.name, {})[row.settings.get("agents")] = row
    lines = [f"{'agents':<46}" + "".join(f"{size:>{WIDE}}" for size in sizes) + f"{'growth':>9}"]
    for name, by_size in found.items():
        unit = by_size[sizes[0]].unit
        medians = "".join(f"{by_size[size].median:>13.4g}" for size in sizes)
        power = f"N^{by_size[None].median:.2f}" if None in by_size and by_size[None].values else ""
        lines.append(f"{name + ', ' + unit:<46}{medians}{power:>9}")
        spreads = (_spread(by_size[size]) for size in sizes)
        lines.append(f"{'':<46}" + "".join(f"{spread:>{WIDE}}" for spread in spreads))
    return "\n".join([*lines, *_conditions(rows)])


def _spread(row: Row) -> str:
    low, high = row.interval
    return f"{low:.2g}..{high:.2g}" if len(row.values) > 1 else ""


def _conditions(rows: Sequence[Row]) -> list[str]:
    repeats = max(len(row.values) for row in rows)
    paces = {
        row.settings["agents"]: row.settings["iterations_per_s"] for row in rows if row.settings
    }
    told = ", ".join(f"{pace:g} at {size}" for size, pace in paces.items())
    return [
        f"medians of up to {repeats} values, below them 95 % intervals; lease {LEASE_S:g} s",
        f"iterations a second of each rank: {told}; one rank an agent",
    ]


async def measure(size: int, repeats: int, seconds: float) -> list[Row]:
    """One lab of `size` agents and a standby for each failure: idle, at work, and losing agents."""
    pace = min(TOP_PACE, PACE / size)
    working: list[float] = []
    planned_s: list[float] = []
    reached_s: list[float] = []
    async with _lab(size, repeats, period_s=1 / pace) as lab:
        idle = [await lab.look(seconds) for _ in range(repeats)]
        lab.submit(Job(script="stand-in"))
        for number in range(repeats + 1):
            working.append(await lab.work())
            if number == repeats:
                break
            killed_s = await lab.kill(lab.victims[number])
            planned_s.append(lab.owner.planned_s - killed_s)
            reached_s.append(max(lab.owner.protected.values()) - killed_s)
        owner = lab.owner
        line_bytes = (owner.collective_bytes + owner.other_bytes) / owner.iterations
        short_bytes = owner.other_bytes / owner.iterations
    settings = {"agents": size, "lease_s": LEASE_S, "iterations_per_s": pace}

    def row(name: str, values: Sequence[float], unit: str) -> Row:
        return Row(name=name, values=tuple(values), unit=unit, settings=settings)

    all_s = [(use, use.s * (size + repeats)) for use in idle]
    return [
        row(OPERATIONS, [use.store.operations / s for use, s in all_s], "1/s"),
        row(ANSWERS, [use.store.sent_bytes / s for use, s in all_s], "B/s"),
        row("etcd, lab idle", [use.etcd_s / use.s for use in idle], "cores"),
        row("root agent, lab idle", [use.root_s / use.s for use in idle], "cores"),
        row("another agent, lab idle", [use.agents_s / s for use, s in all_s], "cores"),
        row("root agent, a rank and iteration", working, "s"),
        row("agent killed, until there is a plan", planned_s, "s"),
        row("agent killed, until all have their part", reached_s, "s"),
        row(LOG, [line_bytes * MINUTE_ITERATIONS / 1e6], "MB"),
        row("... with log_collectives false", [short_bytes * MINUTE_ITERATIONS / 1e6], "MB"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What was used in a look of `s` seconds: processor time, and of the store."""

    s: float
    store: StoreUse
    etcd_s: float
    root_s: float
    agents_s: float


@dataclass(slots=True)
class Owner:
    """What hears the agents, in a lab's place, and keeps of it what the bench wants to know.

    Attributes:
        epoch: The newest of which a plan was told.
        planned_s: When it was.
        protected: When each rank of that epoch said that it had its start order.
        finished: The ranks of that epoch that have done their last iteration.
        last: That iteration.
        iterations: All that were heard.
        collective_bytes: Of what ranks said of their collectives, as lines of a log.
        other_bytes: Of what else they said of iterations.
        channels: The connections to agents.
        failure: Why the run failed, or what it waits for.
    """

    epoch: int = 0
    planned_s: float = 0.0
    protected: dict[int, float] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    last: int = 0
    iterations: int = 0
    collective_bytes: int = 0
    other_bytes: int = 0
    channels: dict[str, Channel] = field(default_factory=dict)
    failure: str = ""

    async def listen(self, name: str, channel: Channel) -> None:
        """Hear one agent until its connection ends."""
        self.channels[name] = channel
        while (message := await channel.receive()) is not None:
            if isinstance(message, EventSaid):
                self._take(message)
        del self.channels[name]

    def _take(self, said: EventSaid) -> None:
        entry = said.entry
        match entry.event:
            case events.RecoveryPlanned() as plan:
                self.epoch, self.planned_s = plan.epoch, entry.at_s
                self.last = (plan.version or 0) + ITERATIONS
                self.protected, self.finished = {}, set()
            case events.RunFailed() as failed:
                self.failure = failed.reason
            case events.RecoveryWaiting() as waiting:
                self.failure = waiting.reason
            case events.Protected() as one if one.epoch == self.epoch:
                self.protected[one.rank] = entry.at_s
            case events.Collectives():
                self.collective_bytes += len(encode_entry(entry)) + 1
            case events.Iteration() | events.Transfer():
                self.other_bytes += len(encode_entry(entry)) + 1
                self.iterations += isinstance(entry.event, events.Iteration)
            case events.VersionComplete() as whole:
                self.other_bytes += len(encode_entry(entry)) + 1
                if (whole.epoch, whole.version) == (self.epoch, self.last):
                    self.finished.add(whole.rank)


@dataclass(slots=True, kw_only=True)
class ControlLab:
    """A lab of agents whose workers only talk.

    Attributes:
        victims: The agents that are to be killed, each a process of its own.
        crowds: The other agents' processes, but for the root's.
    """

    size: int
    standbys: int
    store: EtcdStore
    owner: Owner
    root: psutil.Process
    victims: list[psutil.Process]
    crowds: list[psutil.Process]

    async def look(self, seconds: float) -> Use:
        """What everybody uses in so many seconds."""
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
        """Start a job of stand-ins."""
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
        await self.until(lambda: len(self.owner.finished) == self.size, "all ranks to iterate")
        return (_cpu_s(self.root) - before_s) / self.size / ITERATIONS

    async def kill(self, victim: psutil.Process) -> float:
        """Kill an agent, and wait until the others have started anew; says when it was killed."""
        epoch, killed_s = self.owner.epoch, time.time()
        victim.kill()
        await self.until(lambda: self.owner.epoch > epoch, "another plan")
        await self.until(lambda: len(self.owner.protected) == self.size, "all ranks to start anew")
        return killed_s

    def _used(self) -> Use:
        etcd = _etcd_process()
        endpoint = self.store.address.endpoints[0]
        others = [one for one in (*self.victims, *self.crowds) if one.is_running()]
        return Use(
            s=0.0,
            store=store_use(endpoint),
            etcd_s=_cpu_s(etcd),
            root_s=_cpu_s(self.root),
            agents_s=sum(_cpu_s(one) for one in others),
        )

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something is so.

        Raises:
            GeminiError: The run failed first, or waits, or too much time went by.
        """
        give_up_s = time.monotonic() + LIMIT_S
        while not is_so():
            if self.owner.failure or time.monotonic() > give_up_s:
                raise GeminiError(
                    f"{self.size} agents: waited for {what}; "
                    f"{self.owner.failure or f'that did not come in {LIMIT_S:.0f} s'}"
                )
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def _lab(size: int, standbys: int, *, period_s: float) -> AsyncIterator[ControlLab]:
    """A lab that is up; everything it started ends with the `with` block."""
    async with AsyncExitStack() as undo:
        address = undo.enter_context(start_etcd()).address
        store = EtcdStore(address, f"gemini_lab/{secrets.token_hex(6)}")
        undo.callback(store.close)
        store.put("lab", "here")
        token = secrets.token_hex(16)
        configs = [
            AgentConfig(
                name=node_name(number),
                token=token,
                etcd=address,
                prefix=store.prefix.rstrip("/"),
                lease_s=LEASE_S,
                warm=False,
                threads=1,
            )
            for number in range(size + standbys)
        ]
        owner = Owner()
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
            size=size, standbys=standbys, store=store, owner=owner, root=root, victims=[], crowds=[]
        )
        await lab.until(lambda: "root" in store.items(), "a root agent")
        lab.victims = [await start([config]) for config in configs[1 : standbys + 1]]
        rest = configs[standbys + 1 :]
        parts = min(len(rest), os.cpu_count() or 1)
        lab.crowds = [await start(rest[part::parts]) for part in range(parts)]
        yield lab


async def _start(crowd: Crowd, undo: AsyncExitStack) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gemini_lab.experiments.benches.control_agents"),
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


def _etcd_process() -> psutil.Process:
    """The server that this process has started."""
    below = psutil.Process().children(recursive=True)
    return next(one for one in below if one.name() == "etcd")
