"""A node's agent: owns the node's memory and workers, obeys the root agent, and may become it.

Started by `gemini_lab.launch.boot`, it reads its `AgentConfig` as one line of JSON from standard
input and answers with one line: its name, address and pid. `gemini-lab node` is one, too. It ends,
and ends everything that it started, when the lab is closed or gone.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from gemini_lab.engine.pulse import BEAT_S
from gemini_lab.errors import GeminiError
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import (
    Iteration,
    IterationBegun,
    NodeReady,
    Note,
    Protected,
    VersionComplete,
)
from gemini_lab.node.build_locks import build_root, left_locks
from gemini_lab.node.bulk import BulkProcesses
from gemini_lab.node.config import LAB_KEY, AgentConfig, AgentUp
from gemini_lab.node.control_store import EtcdStore, StoreUnavailableError
from gemini_lab.node.etcd_streams import EtcdStreams
from gemini_lab.node.host import Worker, WorkerHost
from gemini_lab.node.keeper import MemoryKeeper
from gemini_lab.node.lab_link import LabLink
from gemini_lab.node.membership import Membership, RootRecord, read_epoch
from gemini_lab.node.network import network_of
from gemini_lab.node.news import Reading
from gemini_lab.node.owner_process import run_owner
from gemini_lab.node.root_shell import RootShell
from gemini_lab.node.shard_writer import ShardWriter
from gemini_lab.node.strike import strike
from gemini_lab.node.watch import WorkerWatch
from gemini_lab.recovery.messages import (
    CloseLab,
    Commit,
    EventSaid,
    Fence,
    Fenced,
    Flush,
    Flushed,
    Heard,
    HoldPort,
    ImportAhead,
    Inject,
    Inventory,
    Joined,
    LabHello,
    Learned,
    ListVersions,
    Message,
    NeedNodes,
    OutputSaid,
    Persist,
    PortHeld,
    Prepare,
    ProbeHello,
    Refused,
    Release,
    RestoreFailed,
    RootHello,
    RootOrder,
    ScriptFinished,
    SlabGiven,
    SlabRequest,
    StartWorkers,
    TakeInventory,
    VersionsListed,
    WorkerExited,
    WorkerPulse,
    WorkerStart,
)
from gemini_lab.recovery.plan import Stored
from gemini_lab.recovery.protocol import HeardEvent
from gemini_lab.wire.tcp import Channel, connect, serve

PROBES: Final = 10  # connections that may break before a silent root counts as alive
LAB_GRACE_S: Final = 5.0  # an agent that has had no lab for this long ends
KEY_GRACE_S: Final = 30.0  # as does one whose lab is connected or to come, but has had no key
ALONE_S: Final = 3600.0  # as does one of a detached lab without workers and without a store
REMEMBERED: Final = 32  # words of a worker on its iterations that a new root is told, two of each
STORAGE_S: Final = 30.0  # for the persistent tier to say which versions it has


class Agent:
    """One node's agent.

    Args:
        config: What it is told.
        announce: Called once it listens and is registered.
        host: What starts and ends its workers.
        bulk: What does its bulk work; by default processes of its own.
    """

    def __init__(
        self,
        config: AgentConfig,
        announce: Callable[[AgentUp], None],
        *,
        host: Callable[..., WorkerHost] = WorkerHost,
        bulk: BulkProcesses | None = None,
    ) -> None:
        self.config = config
        self._announce = announce
        self.name = config.name
        self.epoch = 0
        self._began_at_s = time.time()
        self.lab = LabLink(config.name)
        self.bulk = bulk or BulkProcesses()
        self.keeper = MemoryKeeper(self.bulk)
        self.host = host(
            warm=config.warm,
            on_message=self._on_worker_message,
            on_output=self._on_worker_output,
            on_exit=self._on_worker_exit,
            on_note=lambda text: self.lab.emit(Note(text=text)),
        )
        self._watch = WorkerWatch()
        self._stop = asyncio.Event()
        self._lab_seen_s = time.monotonic()
        self._root: Channel | None = None
        self._term = 0  # of the newest root that has greeted
        self._root_record: RootRecord | None = None
        self._reading: Reading | None = None  # of the store; `None` while it is away
        self._is_store_away = False
        self._settled_s = 0.0  # when the store counts as complete again after it was away
        self._shell: RootShell | None = None
        self._shell_task: asyncio.Task[None] | None = None
        self._owner_task: asyncio.Task[None] | None = None  # of a detached lab, beside its root
        self._protected: Protected | None = None  # what a worker of this node said last
        self._inventory: asyncio.Task[None] | None = None  # memory that is being read
        self._iterations: defaultdict[int, deque[IterationBegun | Iteration]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED)
        )
        self._run: int | None = None  # whose those are
        self._told_locks: set[Path] = set()  # of which it was said that nobody here holds them
        self._is_placed = False  # whether the root agent knows the placement
        self._tasks: set[asyncio.Task[None]] = set()
        self.writer = ShardWriter(
            keeper=self.keeper, bulk=self.bulk, answer=self._to_root, background=self._background
        )

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Join the lab, serve until it ends, and leave nothing behind."""
        address_host = address_towards(self.config.etcd.endpoints[0])
        server, port = await serve(address_host, self.config.token, self._welcome)
        self.address = f"{address_host}:{port}"
        self.membership = Membership(
            store=EtcdStore(self.config.etcd, self.config.prefix),
            streams=EtcdStreams(self.config.etcd, self.config.prefix),
            name=self.config.name,
            address=self.address,
            lease_s=self.config.lease_s,
        )
        await self.membership.register()
        self._announce(AgentUp(name=self.name, address=self.address, pid=os.getpid()))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop.set)
        wait_s = self.config.notice_s
        loop.add_signal_handler(signal.SIGTERM, loop.call_later, wait_s, self._stop.set)
        self._background(self.bulk.warm_up())
        self._background(self._say_when_ready())
        self._background(self._keep_lease())
        self._background(self._watch_store())
        self._background(self._watch_workers())
        await self._stop.wait()
        server.close()
        await self._leave()

    async def _leave(self) -> None:
        await self._resign()
        self.host.close()
        for task in list(self._tasks):
            task.cancel()
        await self.bulk.close()
        self.keeper.close()
        if self._root is not None:
            self._root.close()
        self.lab.close()
        with suppress(StoreUnavailableError):
            await self.membership.leave()
        await asyncio.sleep(0.05)  # for the readers of the closed connections to end

    async def _say_when_ready(self) -> None:
        started_s = time.monotonic()
        await self.host.ready()
        import_s = time.monotonic() - started_s
        network = network_of(self.address.rpartition(":")[0])
        self.lab.emit(NodeReady(name=self.name, import_s=import_s, network=network))

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self.config.lease_s / 4)
            try:
                if not await self.membership.renew():
                    await self._rejoin()
            except StoreUnavailableError:
                self._note_store_away()
                # An outage of the store alone stops nothing; a node cut off from root and store
                # alike has been replaced by now, or will be.
                cut_off = self._root is None and self._shell is None
                if cut_off and self.membership.silent_s > self.config.lease_s:
                    await self.host.kill_all(epoch=self.epoch)

    async def _rejoin(self) -> None:
        """The lease ran out: take another, and end workers whose place was given away meanwhile."""
        await self.membership.register()
        self.lab.emit(Note(text=f"{self.name} lost its lease and took another"))
        await self._end_older_workers((await self.membership.read()).items)

    async def _watch_workers(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for pulse in self._watch.look(self.host.workers.values()):
                self._to_root(pulse)

    async def _watch_store(self) -> None:
        while True:
            await asyncio.sleep(self.membership.poll_s)
            # Who hears the root agent itself need not hear of it from the store at once.
            is_urgent = self._root is None or self._shell is not None
            if self.membership.silent_s > self.config.lease_s:
                self.membership.news.ring()  # who was frozen may not be what it was
            if self.membership.news.is_due(is_urgent=is_urgent):
                await self._read_store()
            elif self._shell is not None and self._reading is not None:
                self._shell.observe(self._reading, is_settled=True)
            self._watch_lab()

    async def _read_store(self) -> None:
        try:
            reading = await self.membership.read(whole=self._shell is not None)
            if self._is_store_away:
                self._settled_s = time.monotonic() + 2 * self.config.lease_s
            self._is_store_away, self._reading = False, reading
            await self._obey_store(reading)
        except StoreUnavailableError:
            self._note_store_away()

    def _note_store_away(self) -> None:
        """What was read counts no more, until the store answers again."""
        self._is_store_away, self._reading = True, None
        self.membership.news.ring()

    async def _obey_store(self, reading: Reading) -> None:
        """Act on what the store says.

        A store that was away may have let leases run out of nodes that live: until they have had
        time to take new ones, nobody is declared lost and no other root is elected.
        """
        items = reading.items
        record = RootRecord.from_text(items["root"]) if "root" in items else None
        is_settled = time.monotonic() > self._settled_s
        if record is None or not is_settled:
            self.membership.news.ring()  # time alone may change what is to be done
        if self._shell is not None:
            is_newest = int(items.get("term", "0")) <= self._shell.record.term
            if record is None and not is_settled and is_newest:
                await self.membership.reclaim(self._shell.record)
            elif record != self._shell.record:
                await self._resign()
            else:
                self._shell.observe(reading, is_settled=is_settled)
        elif record is None and is_settled:
            won = await self.membership.campaign(items)
            if won is not None:
                self._become_root(won)
        elif record is not None and self.membership.is_own(record):
            # Won, but the answer was lost; or resigned while the store was away. Nobody else can
            # be elected while this node's key stands.
            self._become_root(record)
        self._root_record = record or self._root_record
        await self._end_older_workers(items)

    async def _end_older_workers(self, items: Mapping[str, str]) -> None:
        epoch = read_epoch(items)
        if epoch > self.epoch and self.host.workers:
            self.epoch = epoch
            await self.host.kill_all(epoch=self.epoch)

    def _watch_lab(self) -> None:
        """End when the lab is gone: its connection is closed, or its key has run out.

        A lab whose other machines are slow to come takes its time before it connects. A detached
        one lives as long as its key, or, while the store is away, as its workers.
        """
        reading = self._reading
        is_coming = not self.lab.was_opened
        is_here = self.lab.is_open or (is_coming and reading is not None)
        if self.config.detached is not None:
            is_here = reading is not None or bool(self.host.workers)
        if is_here and (reading is None or LAB_KEY in reading.items):
            self._lab_seen_s = time.monotonic()
        is_alone = self.config.detached is not None and reading is None
        # What is read of the key is up to some seconds old; a connection that ended is known.
        grace_s = KEY_GRACE_S if self.lab.is_open or is_coming else LAB_GRACE_S
        if time.monotonic() - self._lab_seen_s > (ALONE_S if is_alone else grace_s):
            self._stop.set()

    def _become_root(self, record: RootRecord) -> None:
        self._shell = RootShell(
            membership=self.membership,
            record=record,
            token=self.config.token,
            emit=lambda event: self.lab.emit(event, term=record.term),
            request_nodes=lambda wanted, reason: self.lab.say(
                NeedNodes(wanted=wanted, reason=reason)
            ),
        )
        self._shell_task = self._background(self._act_as_root(self._shell))
        if self.config.detached is not None:
            owner = run_owner(self.config, record, note=lambda text: self.lab.emit(Note(text=text)))
            self._owner_task = self._background(owner)
        self.membership.news.ring()  # the root agent follows all keys

    async def _act_as_root(self, shell: RootShell) -> None:
        try:
            await shell.run()
        except StoreUnavailableError:
            pass  # another poll finds out who is root
        finally:
            if self._shell is shell:
                self._shell = None
                self._end_owner()
                self.membership.news.ring()

    async def _resign(self) -> None:
        if self._shell_task is not None:
            self._shell_task.cancel()
        self._shell = self._shell_task = None
        self._end_owner()

    def _end_owner(self) -> None:
        if self._owner_task is not None:
            self._owner_task.cancel()
        self._owner_task = None

    # -- connections ---------------------------------------------------------------------------

    async def _welcome(self, channel: Channel) -> None:
        match channel.peer:
            case LabHello():
                await self._serve_lab(channel, channel.peer)
            case RootHello():
                await self._serve_root(channel, channel.peer)

    async def _serve_lab(self, channel: Channel, hello: LabHello) -> None:
        self.lab.open(channel, hello)
        while (message := await channel.receive()) is not None:
            match message:
                case CloseLab():
                    self._stop.set()
                case Heard():
                    self.lab.heard(message.messages)
                case Flush():
                    self.lab.say(Flushed())
                case Inject():
                    await strike(self, message.action)
        self.lab.close(channel)

    async def _serve_root(self, channel: Channel, hello: RootHello) -> None:
        newest = 0 if self._root_record is None else self._root_record.term
        self._term = max(self._term, newest)
        if hello.term < self._term:
            return  # a root that was deposed
        self._term = hello.term
        if self._root is not None:
            self._root.close()
        self._root = channel
        workers = {rank: worker.status for rank, worker in self.host.workers.items()}
        channel.send(Joined(epoch=self.epoch, workers=workers))
        self._watch.forget_told()
        while (message := await channel.receive()) is not None:
            if isinstance(message, RootOrder):
                await self._obey(message)
        if self._root is channel:
            self._root = None
            await self._root_is_silent(hello.name)

    async def _root_is_silent(self, name: str) -> None:
        """The root's connection closed: if its process is dead, elect another one at once."""
        record = self._root_record
        if record is None or record.name != name or self._stop.is_set():
            return
        if await self._is_dead(record.address):
            with suppress(StoreUnavailableError):
                await self.membership.depose(record)
                await self._read_store()

    async def _is_dead(self, address: str) -> bool:
        """Whether nothing listens at `address` any more; silence proves nothing."""
        hello = ProbeHello(name=self.name)
        for _ in range(PROBES):
            try:
                (await connect(address, self.config.token, hello, timeout_s=0.5)).close()
            except ConnectionRefusedError:
                return True
            except (ConnectionError, EOFError, GeminiError):
                await asyncio.sleep(0.05)  # it was just closing
            except (OSError, TimeoutError):
                return False
            else:
                return False
        return False

    def _to_root(self, message: Message) -> None:
        if self._root is not None:
            self._root.send(message)

    def cut_root_link(self) -> None:
        """Close the connection to the root agent, as a failing network does."""
        if self._root is not None:
            self._root.close()

    # -- what the root says ----------------------------------------------------------------------

    async def _obey(self, order: RootOrder) -> None:
        if order.epoch < self.epoch:
            return  # an order from before a fence
        self.epoch = order.epoch
        match order:
            case Fence():
                self._give_up_work()
                await self.host.kill_all(epoch=self.epoch)
                self._to_root(Fenced(epoch=order.epoch))
            case TakeInventory():  # it may take minutes, and a fence must not wait for it
                self._inventory = self._background(self._take_inventory(order))
            case HoldPort():
                self._background(self._hold_port(order))
            case StartWorkers():
                self._start_workers(order)
            case Prepare() if self.config.warm:
                self.host.prepare(ImportAhead(modules=order.modules, environment=order.environment))
            case Persist():
                self.writer.expect(order)
            case Commit():
                self.writer.commit(order)
            case Release():
                self._give_up_work()
                self.writer.is_full = False
                await self.host.kill_all(epoch=self.epoch)
                await self.keeper.free()

    async def _hold_port(self, order: HoldPort) -> None:
        """Beside other orders: a warm parent that still imports must not delay the next fence."""
        host = self.address.rpartition(":")[0]
        port = await self.host.hold_port(host=host, epoch=order.epoch)
        self._to_root(PortHeld(epoch=order.epoch, address=f"{host}:{port}"))

    def _give_up_work(self) -> None:
        """Nobody waits any more for what is being saved or read."""
        self.writer.cancel()
        if self._inventory is not None:
            self._inventory.cancel()
            self._inventory = None

    async def _take_inventory(self, order: TakeInventory) -> None:
        self._clear_build_locks()
        try:
            found = await self.keeper.inventory(order.run)
        except GeminiError as error:
            self.lab.emit(Note(text=f"{self.name} cannot read its memory, and leaves: {error}"))
            self._stop.set()
            return
        stored, unread = None, ""
        if order.persistent_url is not None:
            stored, unread = await self._stored_versions(order.persistent_url)
        self._to_root(
            Inventory(
                epoch=order.epoch,
                copies=found.copies,
                damaged=found.damaged,
                persistent=stored,
                unread=unread,
                iterations=[said for told in self._iterations.values() for said in told]
                if order.run == self._run
                else [],
                protected=self._protected
                if order.asks_settings and (found.copies or found.damaged)
                else None,
            )
        )

    async def _stored_versions(self, url: str) -> tuple[list[Stored] | None, str]:
        """What the persistent tier has, or why it cannot be read: that is not the same as empty."""
        try:
            listing = self.bulk.ask(ListVersions(url=url), VersionsListed)
            answer, _ = await asyncio.wait_for(listing, STORAGE_S)
        except TimeoutError:
            unread = f"it did not answer within {STORAGE_S:.0f} s"
        except (GeminiError, OSError) as error:
            unread = str(error)
        else:
            return answer.versions, ""
        self.lab.emit(Note(text=f"the persistent tier cannot be read: {unread}"))
        return None, unread

    def _clear_build_locks(self) -> None:
        """Take away what a worker left that was killed while it compiled; no node has one now."""
        left = left_locks(build_root(os.environ), since_s=self._began_at_s)
        for lock in left.ours:
            lock.unlink(missing_ok=True)
            self.lab.emit(Note(text=f"removed {lock}: a worker was killed while it compiled there"))
        for lock in sorted({*left.older} - self._told_locks):
            self._told_locks.add(lock)
            self.lab.emit(
                Note(
                    text=f"{lock} is older than this lab, and no process of {self.name} holds it: "
                    "a worker that compiles there waits until it is gone; if no other machine "
                    "does, remove it"
                )
            )

    def _start_workers(self, order: StartWorkers) -> None:
        if self._run != order.order.run:
            self._iterations.clear()
            self._run = order.order.run
        self._is_placed = order.seats.placement is not None
        interface = interface_of(self.address.rpartition(":")[0])
        for rank in order.seats.ranks_on(self.name):
            self.host.start(
                WorkerStart(
                    rank=rank,
                    epoch=order.epoch,
                    order=order.order,
                    seats=order.seats,
                    plan=order.plan,
                    rendezvous=order.rendezvous,
                    fingerprint=order.fingerprint,
                    interface=interface,
                )
            )

    # -- what workers say --------------------------------------------------------------------------

    def _on_worker_message(self, worker: Worker, message: Message, fds: list[int]) -> None:
        del fds  # workers send none
        match message:
            case EventSaid():
                to_log, to_root = told_of(message.entry, is_placed=self._is_placed)
                self.lab.pass_on(to_log)
                if to_root is not None:
                    self._to_root(to_root)
                if isinstance(message.entry.event, VersionComplete):
                    self.writer.begin_if_whole()
                elif isinstance(message.entry.event, Protected):
                    self._protected = message.entry.event
                self._remember(message.entry.event)
            case WorkerPulse():
                self._watch.hear(message)
            case SlabRequest():
                self._background(self._give_slab(worker, message))
            case ScriptFinished() | RestoreFailed() | Learned():
                self._to_root(message)

    def _remember(self, event: events.AnyEvent) -> None:
        """Keep what a worker of this node said of its newest iterations."""
        match event:
            case IterationBegun() | Iteration(restored=False):
                self._iterations[event.rank].append(event)

    async def _give_slab(self, worker: Worker, wanted: SlabRequest) -> None:
        try:
            slab = await self.keeper.slab(worker.local_rank, wanted)
        except (GeminiError, OSError) as error:
            worker.channel.send(Refused.of(error))
        else:
            worker.channel.send(SlabGiven(), (slab.fd,))

    def _on_worker_output(self, worker: Worker, lines: list[str]) -> None:
        self.lab.say(OutputSaid(rank=worker.rank, epoch=worker.epoch, lines=lines))

    def _on_worker_exit(self, worker: Worker, code: int) -> None:
        if worker.epoch < self.epoch or worker.status == "finished":
            return  # ended by a fence, or at its script's end
        self.lab.emit(
            events.WorkerExited(
                rank=worker.rank,
                epoch=worker.epoch,
                pid=worker.pid or 0,
                signal=signal.Signals(-code).name if code < 0 else None,
                exit_code=code if code >= 0 else None,
                output=tuple(worker.output) if code else (),
            )
        )
        self._to_root(
            WorkerExited(
                rank=worker.rank,
                epoch=worker.epoch,
                code=code,
                output="\n".join(worker.output),
                error=worker.error,
            )
        )

    def _background(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            text = f"{self.config.name}'s agent: {type(error).__name__}: {error}"
            self.lab.emit(Note(text=text))
            with suppress(OSError):  # a full disk
                print(text, file=sys.stderr)  # noqa: T201


def told_of(entry: Entry, *, is_placed: bool) -> tuple[Entry, EventSaid | None]:
    """What the log is told of a worker's event, and what the root agent.

    The root agent hears what it decides on. A placement grows with the nodes, so that not every
    one of thousands of ranks repeats it: the log has it from rank 0.

    Args:
        entry: What the worker says.
        is_placed: Whether the root agent knows the placement.
    """
    event, brief = entry.event, entry
    if isinstance(event, Protected):
        brief = msgspec.structs.replace(entry, event=msgspec.structs.replace(event, placement=None))
    is_first = isinstance(event, Protected) and event.rank == 0
    to_root = EventSaid(entry=brief if is_placed else entry)
    return entry if is_first else brief, to_root if isinstance(event, HeardEvent) else None


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


def say_up(answer: AgentUp) -> None:
    """Tell who started this agent, on standard output."""
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


async def run_agent(config: AgentConfig, announce: Callable[[AgentUp], None] = say_up) -> None:
    """One agent's life; see `Agent`."""
    await Agent(config, announce).run()


def main() -> None:
    """Run an agent from standard input's configuration until the lab ends."""
    config = msgspec.json.decode(sys.stdin.readline(), type=AgentConfig)
    with suppress(KeyboardInterrupt):
        asyncio.run(run_agent(config))


if __name__ == "__main__":
    main()
