"""A simulated lab: real agents, a store, an owner, an operator, and a person."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import fsspec
import msgspec

from gemini_lab.errors import GeminiError, IntegrityError, LaunchError
from gemini_lab.job import Job
from gemini_lab.node.agent_machine import MakeRoot
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.etcd_address import EtcdAddress
from gemini_lab.node.membership import node_addresses
from gemini_lab.node.sealed_store import SEAL_CHARACTERS, Sealed
from gemini_lab.node.start_config import LAB_KEY, NONE_COME_KEY, AgentConfig, LabRecord
from gemini_lab.recovery.messages import (
    BulkRequest,
    CloseLab,
    EventSaid,
    Heard,
    JobOrder,
    LabHello,
    ListVersions,
    NeedNodes,
    VersionsListed,
    WorkerStart,
)
from gemini_lab.recovery.requests import AnyRequest, StoredRequest
from gemini_lab.seats import Seats
from gemini_lab.settings import SettingValue
from gemini_lab.wire.tcp import Channel, connect
from gemini_lab_bench.world.judge import LOOK_S, RUN, Judge
from gemini_lab_bench.world.virtual_loop import VirtualLoop, VirtualProcess
from gemini_lab_bench.world.virtual_machine import VirtualMachine
from gemini_lab_bench.world.virtual_network import VirtualNetwork
from gemini_lab_bench.world.virtual_rank import SCRIPT, RankGroup
from gemini_lab_bench.world.virtual_store import VirtualClient, VirtualStore

TOKEN: Final = "token"  # noqa: S105 - of a simulated lab
PREFIX: Final = "lab"
FOLLOWING: Final[dict[str, SettingValue]] = {
    "replicas": "auto",
    "failures_per_day": 0.001,
    "survival_target": 0.99999,
    "adapt_pause_s": 2.0,
}
"""Settings with which one failure of a node is reason enough to have copies placed again."""
MOST_MACHINES: Final = 16
"""Which an operator has, whatever a user asks for."""
RACKS: Final = {f"node-{number}": "ab"[number // 2 % 2] for number in range(40)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldShape:
    """How large a world is."""

    nodes: int = 4
    standbys: int = 2
    workers: int = 1
    replicas: int = 2
    has_tier: bool = True
    persist_every: int = 4
    shrinks: bool = False
    iterations: int = 0  # after so many training ends; 0: when it is told
    # Whether machines come for standbys, too, and not only where one is missing.
    is_refilled: bool = True
    follows: bool = False  # whether copies follow the risk
    pace: float = 1.0  # how many times longer an iteration is than usual
    notice_s: float = 0.0  # between the word that a machine is to go and its end
    lease_s: float = 2.0
    store_members: int = 1
    keeps: bool = False  # whether ranks that are not lost keep their process
    preloads: bool = False  # whether nodes are to import something for the next start


class VirtualTier:
    """The persistent tier: the real one in this process's memory, if it is reached.

    Attributes:
        is_up: Whether it answers; else it says that it does not.
        hangs: Whether it does not even say that.
        is_full: Whether it takes nothing more.
        is_mute: Whether it lists what it has, and returns nothing of it.
        lies: Whether what it returns differs from its checksums.
        listed: What it lists instead of what it has, if it lists late.
        only: The one machine that reaches it; `None` if all do.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.clear()
        self.recover()

    def recover(self) -> None:
        """Be well."""
        self.is_up, self.hangs, self.is_full, self.is_mute = True, False, False, False
        self.lies = False
        self.listed: VersionsListed | None = None
        self.only: VirtualMachine | None = None

    def rot(self, bit: int) -> bool:
        """Flip a bit of the newest shard; return whether there is one."""
        there = fsspec.filesystem("memory")
        files = sorted(name for name in there.store if name.startswith(self.url[8:]))
        shards = [name for name in files if name.endswith(".safetensors")]
        if shards:
            data = bytearray(there.cat_file(shards[-1]))
            data[-1 - bit % 64] ^= 1
            there.pipe_file(shards[-1], bytes(data))
        return bool(shards)

    def clear(self) -> None:
        """Remove all that is there."""
        files = fsspec.filesystem("memory")
        folder = self.url.removeprefix("memory:/")
        if files.exists(folder):
            files.rm(folder, recursive=True)

    async def reach(self, request: BulkRequest | None, client: VirtualMachine) -> None:
        """Wait as its clients do.

        Args:
            request: What an agent asks; `None` if a rank reads.
            client: Where from.

        Raises:
            GeminiError: It does not do what is asked.
        """
        while self.hangs:
            await asyncio.sleep(1.0)
        if not self.is_up or self.only not in {None, client}:
            raise GeminiError("the store does not answer: 503")
        if self.is_mute and request is None:
            raise GeminiError("the store does not return what it lists")
        if self.lies and request is None:
            raise IntegrityError("what the store returns differs from its checksums")
        is_read = request is None or isinstance(request, ListVersions)
        if self.is_full and not is_read:
            raise GeminiError("the store is full")


class VirtualWorld:
    """All that there is.

    Args:
        seed: Of all that is drawn.
        shape: How large.
    """

    def __init__(self, seed: int, shape: WorldShape) -> None:
        self.seed, self.shape = seed, shape
        self.rng = random.Random(f"world {seed}")
        self.loop = VirtualLoop()
        self.network = self.loop.network = VirtualNetwork(
            self.loop, random.Random(f"network {seed}")
        )
        store_rng = random.Random(f"store {seed}")
        self.store = VirtualStore(self.network, store_rng, shape.store_members)
        self.store.on_write = self.note_write
        self.tier = VirtualTier(f"memory://world-{seed}")
        self.judge = Judge(self)
        self.machines: list[VirtualMachine] = []
        self.core: list[VirtualMachine] = []
        self.jobs: dict[tuple[int, str], RankGroup] = {}
        self.is_ending = self.is_closing = self.has_lacked = False
        self.is_finite = True  # whether losses are numbers
        self.code = "first"  # the digest of the script
        self.nodes_asked = shape.nodes
        self.drained: list[VirtualMachine] = []
        self.fuse: tuple[int, str] | None = None  # writes of the root's state, and what then
        self.make_root: MakeRoot | None = None  # in the place of the lab's own root agent
        self.strike_root: Callable[[str], None] = lambda _: None
        self._pids = 1000
        self._sealed = Sealed(self._etcd, PREFIX, token=TOKEN, identity="id")
        self.owner = VirtualOwner(self)
        for _ in range(shape.nodes + shape.standbys):
            self.bring()
        self._look()

    def _look(self) -> None:
        self.judge.look()
        self.loop.after(LOOK_S, self._look)

    # -- machines --------------------------------------------------------------------------------

    @property
    def _etcd(self) -> EtcdAddress:
        return EtcdAddress(endpoints=tuple(f"{host.ip}:2379" for host in self.store.hosts))

    def bring(self) -> VirtualMachine:
        """Start another machine with its agent."""
        machine = VirtualMachine(self, f"node-{len(self.machines)}")
        self.machines.append(machine)
        record = LabRecord(
            identity="id",
            machines=self.shape.nodes + self.shape.standbys,
            lease_s=self.shape.lease_s,
            warm=True,
            threads=None,
        )
        machine.start_agent(
            AgentConfig(
                name=machine.name,
                token=TOKEN,
                etcd=self._etcd,
                prefix=PREFIX,
                lab=record,
                notice_s=self.shape.notice_s,
            )
        )
        return machine

    def want(self, machines: int) -> None:
        """Bring machines until so many live, as an operator does."""
        if self.is_closing:
            return
        alive = sum(not one.is_dead for one in self.machines)
        for _ in range(min(machines, self.most_machines) - alive):
            self.bring()

    @property
    def most_machines(self) -> int:
        """Return how many machines an operator brings."""
        standbys = self.shape.standbys if self.shape.is_refilled else 0
        return max(self.shape.nodes + standbys, min(self.nodes_asked, MOST_MACHINES))

    def named(self, name: str) -> VirtualMachine:
        """Return the machine of this name."""
        return self.machines[int(name.rpartition("-")[2])]

    def root(self) -> VirtualMachine | None:
        """Return the machine whose agent is root."""
        return next((machine for machine, _ in self.judge.shells()), None)

    def note_write(self, key: bytes) -> None:
        """Burn the fuse with each state that a root agent stores."""
        if key == f"{PREFIX}/epoch".encode():
            self.judge.note_epoch()
        if self.fuse is None or key != f"{PREFIX}/state".encode():
            return
        left, how = self.fuse
        self.fuse = (left - 1, how) if left else None
        if not left:
            self.loop.after(self.rng.choice((0.0, 0.001, 0.01, 0.1)), self.strike_root, how)

    # -- for others ------------------------------------------------------------------------------

    def value(self, key: str) -> str | None:
        """Return a value of the lab in the store."""
        found = self.store.keys.get(f"{PREFIX}/{key}".encode())
        return None if found is None else found[0].decode()[SEAL_CHARACTERS:]

    def job_of(self, start: WorkerStart) -> RankGroup:
        """Return the job of which a rank is started."""
        return self.jobs.setdefault((start.epoch, start.rendezvous), RankGroup(self, start))

    def new_pid(self) -> int:
        """Return the number of a new process."""
        self._pids += 1
        return self._pids

    def order(self) -> JobOrder:
        """Return the job."""
        shape = self.shape
        settings: dict[str, SettingValue] = {"replicas": shape.replicas}
        if shape.has_tier:
            settings["persistent_url"] = self.tier.url
            settings["persist_every_iterations"] = shape.persist_every
        if shape.shrinks:
            settings |= {"when_short": "shrink", "shrink_after_s": 1.0, "grow_pause_s": 2.0}
        if shape.follows:
            settings |= FOLLOWING
        if shape.keeps:
            settings["keep_processes"] = True
        if shape.preloads:
            settings["preload"] = "numpy"
        return JobOrder(
            number=1,
            run=RUN,
            job=Job(script=SCRIPT, cwd="/"),
            seats=Seats(
                nodes=shape.nodes,
                standbys=shape.standbys,
                workers_per_node=shape.workers,
                rack_of=RACKS if shape.follows else {},
            ),
            settings=settings,
            root="own" if self.make_root else "",
        )

    def end(self) -> None:
        """End all that runs here: code of killed processes, too, which acts on nothing any more."""
        processes = [self.owner.process]
        for machine in self.machines:
            processes += [machine.process, *(rank.process for rank in machine.ranks)]
        for machine in self.machines:
            machine.net.has_power = False
            if machine.agent is not None:
                machine.agent.supervisor.memory.close()
        self.tier.clear()
        tasks = [task for process in processes for task in process.end_for_good()]
        for task in tasks:
            task.cancel()

        async def last() -> None:
            await asyncio.wait(tasks, timeout=60.0)

        if tasks:
            self.loop.run_until_complete(last())
        self.loop.close()


class VirtualOwner:
    """The lab's owner and the user, on a machine that nothing befalls."""

    def __init__(self, world: VirtualWorld) -> None:
        self.world = world
        self.process = VirtualProcess("lab", world.loop)
        world.network.place_of[self.process] = world.network.add("lab")
        self._client = VirtualClient(world._etcd, PREFIX, values=world._sealed)  # noqa: SLF001
        self._client.store = world.store
        self._taken: dict[str, int] = {}
        self._channels: dict[str, Channel] = {}
        self._opening: set[str] = set()
        self._is_submitted = False
        self.process.start(self._live())

    async def _live(self) -> None:
        await self._put(LAB_KEY, "{}")
        while True:
            await asyncio.sleep(0.5)
            with suppress(StoreUnavailableError):
                items = await self._client.items()
                for name, address in node_addresses(items).items():
                    if name not in self._opening:
                        self._opening.add(name)
                        self.process.start(self._follow(name, address))
                shape = self.world.shape
                if not self._is_submitted and len(self._channels) >= shape.nodes:
                    self._is_submitted = True
                    order = msgspec.json.encode(self.world.order()).decode()
                    await self._put("job", order)

    async def _put(self, key: str, value: str) -> None:
        while True:
            with suppress(StoreUnavailableError):
                return await self._client.put(key, value)
            await asyncio.sleep(0.2)

    async def _follow(self, name: str, address: str) -> None:
        def hello() -> LabHello:
            at_s = 1e9 + self.world.loop.time()
            return LabHello(at_s=at_s, owner="owner", taken=self._taken.get(name, 0))

        try:
            channel = await connect(address, TOKEN, hello, timeout_s=2.0)
        except (OSError, EOFError, LaunchError):
            self._opening.discard(name)
            return
        channel.break_after(60)
        self._channels[name] = channel
        while (message := await channel.receive()) is not None:
            match message:
                case EventSaid():
                    self._taken[name] = self._taken.get(name, 0) + 1
                    channel.send(Heard(messages=self._taken[name]))
                case NeedNodes(wanted=wanted):
                    self._taken[name] = self._taken.get(name, 0) + 1
                    wait_s = self.world.rng.uniform(2, 20)
                    self.world.loop.after(wait_s, self.world.want, wanted)
        self._channels.pop(name, None)
        self._opening.discard(name)

    def ask(self, request: AnyRequest) -> None:
        """Ask something of the run, as a user does."""
        self.process.start(self._ask(request))

    async def _ask(self, request: AnyRequest) -> None:
        while True:
            with suppress(StoreUnavailableError):
                items = await self._client.items()
                stored = StoredRequest.following(items, 1, request, now_ns=1)
                return await self._client.put(request.key, stored.to_text())
            await asyncio.sleep(0.2)

    def say_none_come(self) -> None:
        """Say that no machine comes, as a provider does."""
        self.process.start(self._put(NONE_COME_KEY, f"{self.world.loop.time()}"))

    def close(self) -> None:
        """End the lab: the agents that are not connected see that its key is gone."""
        for channel in self._channels.values():
            channel.send(CloseLab())
        self.process.start(self._client.delete(LAB_KEY))
