"""A node's agent: owns the node's memory and workers, obeys the root agent, and may become it.

Started by `gemini_lab.launch.boot`; reads its `AgentConfig` as one line of JSON from standard
input and answers with one line: its name, address and pid. It ends, and ends everything that it
started, when the lab is closed or gone.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import psutil

from gemini_lab.errors import GeminiError
from gemini_lab.node.control_store import EtcdAddress, EtcdStore, StoreUnavailableError
from gemini_lab.node.host import Worker, WorkerHost
from gemini_lab.node.keeper import MemoryKeeper
from gemini_lab.node.membership import Membership, RootRecord
from gemini_lab.node.root_shell import RootShell
from gemini_lab.node.strike import full_store, strike
from gemini_lab.storage import persistent_tier
from gemini_lab.wire.local import Message
from gemini_lab.wire.tcp import Channel, connect, serve

PROBES: Final = 10  # connections that may break before a silent root counts as alive
LAB_GRACE_S: Final = 5.0  # without a lab for so long, an agent ends
_JOB_FIELDS: Final = (
    "nodes", "workers_per_node", "racks", "settings", "script", "module", "args", "cwd", "env",
)  # fmt: skip
CLOCK_TRUST_S: Final = 0.5  # clocks that differ less are closer than this way of comparing them
_MOMENTS: Final = ("start_s", "end_s", "began_s", "failed_at_s")
STORAGE_S: Final = 30.0  # for the persistent tier to say which versions it has
BACKLOG_EVENTS: Final = 10_000  # kept for a lab that is not connected yet


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What an agent is told at its start."""

    name: str
    token: str
    etcd: EtcdAddress
    prefix: str
    lease_s: float
    warm: bool
    threads: int | None

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "AgentConfig":
        """The configuration that `to_json` gave."""
        etcd = {**record["etcd"], "endpoints": tuple(record["etcd"]["endpoints"])}
        return cls(**{**record, "etcd": EtcdAddress(**etcd)})

    def to_json(self) -> dict[str, Any]:
        """The configuration as plain JSON values."""
        return asdict(self)


class Agent:
    """One node's agent."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.epoch = 0
        self.keeper = MemoryKeeper()
        self.host = WorkerHost(
            warm=config.warm,
            on_message=self._on_worker_message,
            on_output=self._on_worker_output,
            on_exit=self._on_worker_exit,
        )
        self._stop = asyncio.Event()
        self.lab: Channel | None = None
        self._lab_seen_s = time.monotonic()
        self._clock_offset_s = 0.0
        self._root: Channel | None = None
        self._root_record: RootRecord | None = None
        self._settled_s = 0.0  # when the store counts as complete again after it was away
        self._shell: RootShell | None = None
        self._shell_task: asyncio.Task[None] | None = None
        self._backlog: deque[Message] = deque(maxlen=BACKLOG_EVENTS)
        self.store_is_full = False  # the injector's doing
        self._persist: Message | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Join the lab, serve until it ends, and leave nothing behind."""
        address_host = address_towards(self.config.etcd.endpoints[0])
        server, port = await serve(address_host, self.config.token, self._welcome)
        self.address = f"{address_host}:{port}"
        self.membership = Membership(
            store=EtcdStore(self.config.etcd, self.config.prefix),
            name=self.config.name,
            address=self.address,
            lease_s=self.config.lease_s,
        )
        await self.membership.register()
        _say({"name": self.config.name, "address": self.address, "pid": os.getpid()})
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signal_number, self._stop.set)
        self._background(self._say_when_ready())
        self._background(self._keep_lease())
        self._background(self._watch_store())
        await self._stop.wait()
        server.close()
        await self._leave()

    async def _leave(self) -> None:
        await self._resign()
        self.host.close()
        self.keeper.free()
        for task in list(self._tasks):
            task.cancel()
        for channel in (self._root, self.lab):
            if channel is not None:
                channel.close()
        with suppress(StoreUnavailableError):
            await self.membership.leave()
        await asyncio.sleep(0.05)  # for the readers of the closed connections to end

    async def _say_when_ready(self) -> None:
        started_s = time.monotonic()
        await self.host.ready()
        import_s = time.monotonic() - started_s
        self.emit("node_ready", name=self.config.name, import_s=import_s)

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self.config.lease_s / 4)
            try:
                if not await self.membership.renew():
                    await self._rejoin()
            except StoreUnavailableError:
                # An outage of the store alone stops nothing; a node cut off from root and store
                # alike has been replaced by now, or will be.
                cut_off = self._root is None and self._shell is None
                if cut_off and self.membership.silent_s > self.config.lease_s:
                    await self.host.kill_all(epoch=self.epoch)

    async def _rejoin(self) -> None:
        """The lease ran out: take another, and end workers whose place was given away meanwhile."""
        await self.membership.register()
        self.emit("note", text=f"{self.config.name} lost its lease and took another")
        await self._end_older_workers(await self.membership.read())

    async def _watch_store(self) -> None:
        is_away = False
        while True:
            await asyncio.sleep(self.membership.poll_s)
            try:
                items = await self.membership.read()
                if is_away:
                    self._settled_s = time.monotonic() + 2 * self.config.lease_s
                is_away = False
                await self._obey_store(items)
                self._watch_lab(items)
            except StoreUnavailableError:
                is_away = True
                self._watch_lab(None)

    async def _obey_store(self, items: dict[str, str]) -> None:
        """Act on what the store says.

        A store that was away may have let leases run out of nodes that live: until they have had
        time to take new ones, nobody is declared lost and no other root is elected.
        """
        record = RootRecord.from_text(items["root"]) if "root" in items else None
        is_settled = time.monotonic() > self._settled_s
        if self._shell is not None:
            if record is None and not is_settled:
                await self.membership.reclaim(self._shell.record)
            elif record != self._shell.record:
                await self._resign()
            else:
                self._shell.observe(items, is_settled=is_settled)
        elif record is None and is_settled:
            won = await self.membership.campaign(items)
            if won is not None:
                self._become_root(won)
        self._root_record = record or self._root_record
        await self._end_older_workers(items)

    async def _end_older_workers(self, items: dict[str, str]) -> None:
        state = json.loads(items.get("state", '{"epoch": 0}'))
        if state["epoch"] > self.epoch and self.host.workers:
            self.epoch = state["epoch"]
            await self.host.kill_all(epoch=self.epoch)

    def _watch_lab(self, items: dict[str, str] | None) -> None:
        """End when the lab is gone: its connection is closed, or its key has run out."""
        if self.lab is not None and (items is None or "lab" in items):
            self._lab_seen_s = time.monotonic()
        if time.monotonic() - self._lab_seen_s > LAB_GRACE_S:
            self._stop.set()

    def _become_root(self, record: RootRecord) -> None:
        self._shell = RootShell(
            membership=self.membership, record=record, token=self.config.token,
            emit=lambda kind, data: self.emit(kind, **data),
            request_nodes=lambda wanted, reason: self._to_lab(
                {"op": "need_nodes", "wanted": wanted, "reason": reason}
            ),
        )  # fmt: skip
        self._shell_task = self._background(self._act_as_root(self._shell))

    async def _act_as_root(self, shell: RootShell) -> None:
        try:
            await shell.run()
        except StoreUnavailableError:
            pass  # another poll finds out who is root
        finally:
            if self._shell is shell:
                self._shell = None

    async def _resign(self) -> None:
        if self._shell_task is not None:
            self._shell_task.cancel()
        self._shell = self._shell_task = None

    # -- connections ---------------------------------------------------------------------------

    async def _welcome(self, channel: Channel) -> None:
        if channel.peer["role"] == "lab":
            await self._serve_lab(channel)
        elif channel.peer["role"] == "root":
            await self._serve_root(channel)

    async def _serve_lab(self, channel: Channel) -> None:
        self.lab = channel
        offset_s = channel.peer["at_s"] - time.time()
        if abs(offset_s) > CLOCK_TRUST_S:
            self._clock_offset_s = offset_s
        while self._backlog:
            channel.send(self._backlog.popleft())
        while (message := await channel.receive()) is not None:
            if message["op"] == "close":
                self._stop.set()
            elif message["op"] == "inject":
                await strike(self, message["failure"])
        if self.lab is channel:
            self.lab = None

    async def _serve_root(self, channel: Channel) -> None:
        term = channel.peer["term"]
        if self._root_record is not None and term < self._root_record.term:
            return  # a root that was deposed
        if self._root is not None:
            self._root.close()
        self._root = channel
        workers = {str(rank): worker.status for rank, worker in self.host.workers.items()}
        channel.send({"op": "joined", "epoch": self.epoch, "workers": workers})
        while (message := await channel.receive()) is not None:
            await self._obey(message)
        if self._root is channel:
            self._root = None
            await self._root_is_silent(channel.peer["name"])

    async def _root_is_silent(self, name: str) -> None:
        """The root's connection closed: if its process is dead, elect another one at once."""
        record = self._root_record
        if record is None or record.name != name or self._stop.is_set():
            return
        if await self._is_dead(record.address):
            with suppress(StoreUnavailableError):
                await self.membership.depose(record)
                await self._obey_store(await self.membership.read())

    async def _is_dead(self, address: str) -> bool:
        """Whether nothing listens at `address` any more; silence proves nothing."""
        hello = {"role": "probe", "name": self.config.name}
        for _ in range(PROBES):
            try:
                (await connect(address, self.config.token, hello, timeout_s=0.5)).close()
            except ConnectionRefusedError:
                return True
            except (ConnectionError, asyncio.IncompleteReadError, GeminiError):
                await asyncio.sleep(0.05)  # it was just closing
            except (OSError, TimeoutError):
                return False
            else:
                return False
        return False

    def emit(self, kind: str, **data: Any) -> None:
        """Say an event of this node."""
        self._event({"op": "event", "kind": kind, "at_s": time.time(), "data": data})

    def _event(self, message: Message) -> None:
        offset_s = self._clock_offset_s
        moments = {k: v + offset_s for k, v in message["data"].items() if k in _MOMENTS}
        data = {**message["data"], **moments}
        at_s = message["at_s"] + offset_s
        self._to_lab({**message, "at_s": at_s, "node": self.config.name, "data": data})

    def _to_lab(self, message: Message) -> None:
        if self.lab is None or self.lab.is_closed:
            self._backlog.append(message)
        else:
            self.lab.send(message)

    def _to_root(self, message: Message) -> None:
        if self._root is not None:
            self._root.send(message)

    def cut_root_link(self) -> None:
        """Close the connection to the root agent, as a failing network does."""
        if self._root is not None:
            self._root.close()

    # -- what the root says ----------------------------------------------------------------------

    async def _obey(self, message: Message) -> None:
        if message["epoch"] < self.epoch:
            return  # an order from before a fence
        self.epoch = message["epoch"]
        match message["op"]:
            case "stop":
                self._persist = None
                await self.host.kill_all(epoch=self.epoch)
                self._to_root({"op": "stopped", "epoch": message["epoch"]})
            case "inventory":
                await self._answer_inventory(message)
            case "rendezvous":
                host = self.address.rpartition(":")[0]
                port = await self.host.hold_port(host=host, epoch=message["epoch"])
                self._to_root(
                    {"op": "rendezvous", "epoch": message["epoch"], "address": f"{host}:{port}"}
                )
            case "start":
                await self._start_workers(message)
            case "persist":
                self._persist = message
                self._persist_if_complete()
            case "commit":
                self._background(self._commit(message))
            case "release":
                await self.host.kill_all(epoch=self.epoch)
                self.keeper.free()
                self.store_is_full = False

    async def _answer_inventory(self, message: Message) -> None:
        answer = await asyncio.to_thread(self.keeper.inventory)
        if message.get("persistent_url"):
            answer["persistent"] = []
            try:
                tier = persistent_tier(message["persistent_url"])
                listing = asyncio.to_thread(tier.versions)
                answer["persistent"] = await asyncio.wait_for(listing, STORAGE_S)
            except TimeoutError:
                text = f"the persistent tier did not answer within {STORAGE_S:.0f} s"
                self.emit("note", text=text)
            except (GeminiError, OSError) as error:
                self.emit("note", text=f"the persistent tier cannot be read: {error}")
        self._to_root({"op": "inventory", "epoch": message["epoch"], **answer})

    async def _start_workers(self, message: Message) -> None:
        job, plan = message["job"], message["plan"]
        per_node = job["workers_per_node"]
        for position, node in enumerate(plan["members"]):
            for local_rank in range(per_node) if node == self.config.name else ():
                self.host.start({
                    "rank": position * per_node + local_rank, "local_rank": local_rank,
                    "world_size": job["nodes"] * per_node, "node": node,
                    "epoch": message["epoch"], "members": plan["members"], "plan": plan,
                    "rendezvous": message["rendezvous"], "fingerprint": message["fingerprint"],
                    "interface": interface_of(self.address.rpartition(":")[0]),
                    **{name: job[name] for name in _JOB_FIELDS},
                })  # fmt: skip

    # -- the persistent tier -----------------------------------------------------------------------

    def _persist_if_complete(self) -> None:
        order = self._persist
        if order is not None and self.keeper.has(order["version"]):
            self._persist = None
            self._background(self._write_shards(order))

    async def _write_shards(self, order: Message) -> None:
        answer = {"version": order["version"], "epoch": order["epoch"]}
        try:
            records = await asyncio.to_thread(self._persist_shards, order)
        except (GeminiError, OSError) as error:
            self._to_root({"op": "persist_failed", "reason": str(error), **answer})
        else:
            self._to_root({"op": "persisted", "records": records, **answer})

    def _persist_shards(self, order: Message) -> list[dict[str, Any]]:
        with full_store(is_full=self.store_is_full):
            return self.keeper.persist(order["version"], order["url"])

    async def _commit(self, order: Message) -> None:
        answer = {"version": order["version"], "epoch": order["epoch"]}
        try:
            tier = persistent_tier(order["url"], keep=order["keep"])
            await asyncio.to_thread(tier.commit, order["version"], order["records"], order["meta"])
        except (GeminiError, OSError) as error:
            self._to_root({"op": "persist_failed", "reason": str(error), **answer})
        else:
            size_bytes = sum(record["size_bytes"] for record in order["records"])
            self._to_root({"op": "committed", "size_bytes": size_bytes, **answer})

    # -- what workers say --------------------------------------------------------------------------

    def _on_worker_message(self, worker: Worker, message: Message, fds: list[int]) -> None:
        del fds  # workers send none
        tagged = {**message, "rank": worker.rank, "epoch": worker.epoch}
        match message["op"]:
            case "event":
                self._event(message)
                self._to_root(tagged)
                if message["kind"] == "version_complete":
                    self._persist_if_complete()
            case "slab":
                self._give_slab(worker, message)
            case _:
                self._to_root(tagged)

    def _give_slab(self, worker: Worker, message: Message) -> None:
        try:
            slab = self.keeper.slab(
                worker.local_rank,
                slots=[(shard, size) for shard, size in message["slots"]],
                chunk_bytes=message["chunk_bytes"],
                layout=message["layout"],
            )
        except GeminiError as error:
            worker.channel.send({"error": type(error).__name__, "text": str(error)})
        else:
            worker.channel.send({"op": "slab"}, (slab.fd,))

    def _on_worker_output(self, worker: Worker, lines: list[str]) -> None:
        self._to_lab({"op": "output", "rank": worker.rank, "epoch": worker.epoch, "lines": lines})

    def _on_worker_exit(self, worker: Worker, code: int) -> None:
        if worker.epoch < self.epoch or worker.status == "finished":
            return  # ended by a fence, or at its script's end
        output = "\n".join(worker.output)
        name = signal.Signals(-code).name if code < 0 else None
        self.emit(
            "worker_exited", rank=worker.rank, pid=worker.pid, signal=name, epoch=worker.epoch,
            exit_code=code if code >= 0 else None, output=output if code else "",
        )  # fmt: skip
        self._to_root(
            {"op": "exited", "rank": worker.rank, "epoch": worker.epoch, "code": code,
             "output": output, "error": worker.error}
        )  # fmt: skip

    def _background(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            text = f"{self.config.name}'s agent: {type(error).__name__}: {error}"
            self.emit("note", text=text)
            print(text, file=sys.stderr)  # noqa: T201


def address_towards(endpoint: str) -> str:
    """The address of this machine on the way to `endpoint` (`host:port`); nothing is sent."""
    host, _, port = endpoint.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The network interface with this IP address, if there is one."""
    for name, entries in psutil.net_if_addrs().items():
        if address in (entry.address for entry in entries):
            return str(name)
    return None


def _say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


async def run_agent(config: AgentConfig) -> None:
    """One agent's life."""
    await Agent(config).run()


def main() -> None:
    """Run an agent from standard input's configuration until the lab ends."""
    config = AgentConfig.from_json(json.loads(sys.stdin.readline()))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a full disk is an error, not the end
    with suppress(KeyboardInterrupt):
        asyncio.run(run_agent(config))


if __name__ == "__main__":
    main()
