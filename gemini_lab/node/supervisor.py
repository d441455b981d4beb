"""What an agent does on its node: what the root agent orders, and what its workers say.

It starts and ends the workers, reads the memory, has versions saved, and passes on to the root
agent and the log what each is to hear.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

import msgspec
import psutil

from gemini_lab.errors import GeminiError
from gemini_lab.log import events
from gemini_lab.log.entry import Entry
from gemini_lab.log.events import Protected, VersionComplete
from gemini_lab.memory.free import free_memory
from gemini_lab.node.build_locks import BuildLocks
from gemini_lab.node.bulk import BulkProcesses
from gemini_lab.node.host import Worker, WorkerHost
from gemini_lab.node.keeper import MemoryKeeper
from gemini_lab.node.kept_workers import KeptWorkers
from gemini_lab.node.lab_link import LabLink
from gemini_lab.node.remembered import Remembered
from gemini_lab.node.root_link import RootLink
from gemini_lab.node.shard_writer import ShardWriter
from gemini_lab.node.tasks import Tasks
from gemini_lab.node.watch import WorkerWatch
from gemini_lab.recovery.messages import (
    AllLive,
    CallRoll,
    Commit,
    Disown,
    Drained,
    EventSaid,
    Fence,
    Fenced,
    Flawed,
    GoBack,
    GoOn,
    Held,
    Hold,
    HoldPort,
    ImportAhead,
    Inventory,
    Joined,
    Learned,
    ListVersions,
    Message,
    NodeLeaves,
    OldSlabsGiven,
    OldSlabsWanted,
    OutputSaid,
    Persist,
    PortHeld,
    Prepare,
    ReadyToJoin,
    ReadyToStart,
    Refused,
    Release,
    RestoreFailed,
    RootOrder,
    ScriptFinished,
    Serving,
    Settle,
    Severed,
    SlabGiven,
    SlabRequest,
    Stands,
    StartWorkers,
    TakeInventory,
    VersionsListed,
    WorkerExited,
    WorkerPulse,
    WorkerStart,
)
from gemini_lab.recovery.plan import Stored
from gemini_lab.recovery.protocol import HeardEvent

FENCE_S: Final = 1.0
"""For the root agent to say itself that an epoch has begun, and which workers go on in it."""
STORAGE_S: Final = 30.0  # for the persistent tier to say which versions it has


class Supervisor:
    """One node's workers and memory, in its agent.

    Args:
        name: The node's.
        ip: Where its workers are reached.
        warm: Whether workers are forked from a process that has their imports.
        lab: The way to the log.
        root: The way to the root agent.
        tasks: Where work beside an order runs.
        leave: Ends the agent.
        host: What starts and ends its workers.
        bulk: What does its bulk work; by default processes of its own.

    Attributes:
        epoch: The newest that this node knows; what belongs to an older one counts no more.
    """

    def __init__(
        self,
        *,
        name: str,
        ip: str,
        warm: bool,
        lab: LabLink,
        root: RootLink,
        tasks: Tasks,
        leave: Callable[[], None],
        host: Callable[..., WorkerHost] = WorkerHost,
        bulk: BulkProcesses | None = None,
    ) -> None:
        self.name, self.lab, self.root = name, lab, root
        self.epoch = 0
        self._ip, self._is_warm = ip, warm
        self._tasks, self._leave = tasks, leave
        self.bulk = bulk or BulkProcesses()
        self.keeper = MemoryKeeper(self.bulk)
        self.host = host(
            warm=warm,
            on_message=self._on_message,
            on_output=self._on_output,
            on_exit=self._on_exit,
            on_note=lab.note,
        )
        self.writer = ShardWriter(
            keeper=self.keeper, bulk=self.bulk, answer=root.send, background=tasks.begin
        )
        self._watch = WorkerWatch()
        self._kept = KeptWorkers(say=lab.note)
        self._build_locks = BuildLocks.here(name, say=lab.note)
        self._protected: Protected | None = None  # what a worker of this node said last
        self._inventory: asyncio.Task[None] | None = None  # memory that is being read
        self._remembered = Remembered()
        self._flaws: list[Flawed] = []  # of this machine, by injection, that last
        self._is_placed = False  # whether the root agent knows the placement
        self._noted = 0  # the newest epoch that the store said has begun
        self._leaves_at_s: float | None = None  # when this node's machine goes, if it was told so

    def joined(self) -> Joined:
        """What another root agent is told first; it hears all of the workers' pulses anew.

        It does not know of processes that were started ahead: they end.
        """
        self._watch.forget_told()
        workers = {rank: one.status for rank, one in self._seated.items()}
        if len(workers) < len(self.host.workers):
            self._tasks.begin(self.host.kill_all(epoch=self.epoch, spare=workers))
        return Joined(
            epoch=self.epoch,
            workers=workers,
            is_ready=self.host.is_ready,
            memory_bytes=free_memory().size_bytes + self.keeper.size_bytes,
            wrong_sums=self._remembered.wrong_sums,
        )

    def say_leaving(self, within_s: float | None = None) -> None:
        """Tell the root agent that this node's machine is to go, once that is known.

        Args:
            within_s: From now; it becomes known by this.
        """
        now_s = time.monotonic()
        if within_s is not None:
            self._leaves_at_s = now_s + within_s
        if self._leaves_at_s is not None:
            self.root.send(NodeLeaves(within_s=max(0.0, self._leaves_at_s - now_s)))

    @property
    def _seated(self) -> dict[int, Worker]:
        """The workers that train, or start to; not those that were started ahead."""
        return {rank: one for rank, one in self.host.workers.items() if not one.is_ahead}

    async def wait_until_ready(self) -> None:
        """Return when workers can start without waiting for imports, and have the root know."""
        await self.host.ready()
        self.root.send(ReadyToStart())

    def look_at_workers(self) -> None:
        """Tell the root agent what has changed in how they get on; called about once a second."""
        for pulse in self._watch.look(self._seated.values()):
            self.root.send(pulse)
        if self._build_locks is not None:
            self._build_locks.look(held=self._watch.held, waited_for=self._watch.waited_for)

    async def end_workers(self, *, before: int | None = None) -> None:
        """End all of this node's workers.

        Args:
            before: Only if they belong to an older epoch than this one, which begins here now.
        """
        if before is not None:
            if before <= self.epoch or not self.host.workers:
                return
            self.epoch = before
        await self.host.kill_all(epoch=self.epoch)

    def note_epoch(self, epoch: int) -> None:
        """The store says that an epoch has begun: older workers end if the root agent is not heard.

        The root agent's own fence comes at about the same time, and may let them go on.
        """
        if epoch > max(self.epoch, self._noted):
            self._noted = epoch
            self._tasks.begin(self._end_older(epoch))

    async def _end_older(self, epoch: int) -> None:
        await asyncio.sleep(FENCE_S)
        await self.end_workers(before=epoch)

    def flaw(self, order: Flawed) -> list[int]:
        """Have this node's workers compute wrong: those that there are, and later ones if it lasts.

        Returns:
            The ranks of those that there are.
        """
        if order.is_lasting:
            self._flaws.append(order)
        for worker in self.host.workers.values():
            worker.channel.send(order)
        return sorted(self.host.workers)

    async def close(self) -> None:
        """End all that was started here, and let the memory go."""
        self.host.close()
        await self.bulk.close()
        self.keeper.close()

    # -- what the root says ----------------------------------------------------------------------

    async def obey(self, order: RootOrder) -> None:
        """Do what the root agent orders; what may take long goes on beside further orders."""
        if order.epoch < self.epoch:
            return  # an order from before a fence
        self.epoch = order.epoch
        match order:
            case Fence():
                await self._fence(order)
            case TakeInventory():
                self._inventory = self._tasks.begin(self._take_inventory(order))
            case Hold() | GoBack() | CallRoll():
                self._ask_workers(order)
            case Settle():
                self._tasks.begin(self.keeper.settle(order.ranks))
            case Drained() if self._leaves_at_s is not None:
                self._leave()
            case HoldPort():
                self._tasks.begin(self._hold_port(order))
            case StartWorkers():
                self._start_workers(order)
            case Prepare() if self._is_warm:
                self.host.prepare(ImportAhead(modules=order.modules, environment=order.environment))
            case Persist() | Commit():
                self.writer.obey(order)
            case Disown():
                self._tasks.begin(self.writer.disown(order))
            case Release():
                await self._release()

    async def _fence(self, order: Fence) -> None:
        """A new epoch: workers of older ones end, but for those that stand still and are kept."""
        self._give_up_work()
        kept = await self._kept.stand(self.host, order) if order.keeps else []
        await self.host.kill_all(epoch=self.epoch, spare=kept)
        self.root.send(Fenced(epoch=order.epoch, kept=kept))

    async def _release(self) -> None:
        """The run is over: nothing of it is needed any more."""
        self._give_up_work()
        self.writer.is_full = False
        await self.host.kill_all(epoch=self.epoch)
        await self.keeper.free()

    def _ask_workers(self, order: Hold | GoBack | CallRoll) -> None:
        """Hand an order on to the workers; whether they live is seen without them."""
        if not isinstance(order, CallRoll):
            for worker in self.host.workers.values():
                worker.channel.send(order)
        elif all(self.host.lives(rank) for rank in self._seated):
            self.root.send(AllLive(epoch=order.epoch))

    async def _hold_port(self, order: HoldPort) -> None:
        """Beside other orders: a warm parent that still imports must not delay the next fence."""
        host, port = self._ip, None
        if order.keeper is not None:
            port = await self._kept.serve(self.host, order, ip=host)
        if port is None:
            port = await self.host.hold_port(host=host, epoch=order.epoch)
        self.root.send(PortHeld(epoch=order.epoch, address=f"{host}:{port}"))

    def _give_up_work(self) -> None:
        """Nobody waits any more for what is being saved or read."""
        self.writer.cancel()
        if self._inventory is not None:
            self._inventory.cancel()
            self._inventory = None

    async def _take_inventory(self, order: TakeInventory) -> None:
        """Say what this node's memory has; to read it takes minutes, for which no fence waits."""
        if self._build_locks is not None:
            self._build_locks.clear()
        try:
            found = await self.keeper.inventory(order.run)
        except (GeminiError, OSError) as error:
            self.lab.note(f"{self.name} cannot read its memory, and leaves: {error}")
            self._leave()
            return
        stored, unread = None, ""
        if order.persistent_url is not None:
            stored, unread = await self._stored_versions(order.persistent_url)
        self.root.send(
            Inventory(
                epoch=order.epoch,
                copies=found.copies,
                damaged=found.damaged,
                persistent=stored,
                unread=unread,
                left=[*self._remembered.left],
                iterations=self._remembered.iterations(order.run),
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
        self.lab.note(f"the persistent tier cannot be read: {unread}")
        return None, unread

    def _start_workers(self, order: StartWorkers) -> None:
        self._remembered.begin(order.order.run)
        self._is_placed = order.seats.placement is not None
        self.keeper.turn_to(order.seats.world_size)
        interface = interface_of(self._ip)
        for rank in order.seats.ranks_on(self.name):
            start = WorkerStart(
                rank=rank,
                epoch=order.epoch,
                order=order.order,
                seats=order.seats,
                plan=order.plan,
                rendezvous=order.rendezvous,
                fingerprint=order.fingerprint,
                interface=interface,
                kept=order.kept,
                joins=order.joins,
            )
            if rank in order.kept:
                self._go_on(start)
                continue
            self.host.start(start)
            for flaw in self._flaws:
                self.host.workers[rank].channel.send(flaw)

    def _go_on(self, start: WorkerStart) -> None:
        """Have a worker that stands still go on, if its process is still there."""
        worker = self.host.workers.get(start.rank)
        if worker is not None:
            worker.is_ahead = False
            worker.channel.send(GoOn(start=start))
            return
        self.root.send(
            WorkerExited(rank=start.rank, epoch=start.epoch, code=-signal.SIGKILL, output="")
        )

    # -- what workers say --------------------------------------------------------------------------

    def _on_message(self, worker: Worker, message: Message, fds: list[int]) -> None:
        del fds  # workers send none
        match message:
            case EventSaid():
                self._on_event(message.entry)
            case WorkerPulse():
                self._watch.hear(message)
            case Stands() | Serving():
                self._kept.hear(message)
            case SlabRequest():
                self._tasks.begin(self._give_slab(worker, message))
            case OldSlabsWanted():
                slabs, layouts = self.keeper.set_aside(message.ranks)
                given = OldSlabsGiven(layouts=layouts)
                worker.channel.send(given, tuple(slab.fd for slab in slabs))
            case (
                ScriptFinished() | Held() | Severed() | ReadyToJoin() | RestoreFailed() | Learned()
            ):
                self.root.send(message)

    def _on_event(self, entry: Entry) -> None:
        """Pass an event on, and keep of it what this node is asked for later."""
        to_log, to_root = told_of(entry, is_placed=self._is_placed)
        self.lab.pass_on(to_log)
        if to_root is not None:
            self.root.send(to_root)
        if isinstance(entry.event, VersionComplete):
            self.writer.begin_if_whole()
        elif isinstance(entry.event, Protected):
            self._protected = entry.event
        self._remembered.take(entry.event)

    async def _give_slab(self, worker: Worker, wanted: SlabRequest) -> None:
        try:
            slab = await self.keeper.slab(worker.local_rank, wanted)
        except (GeminiError, OSError) as error:
            worker.channel.send(Refused.of(error))
        else:
            worker.channel.send(SlabGiven(), (slab.fd,))

    def _on_output(self, worker: Worker, lines: list[str]) -> None:
        self.lab.say(OutputSaid(rank=worker.rank, epoch=worker.epoch, lines=lines))

    def _on_exit(self, worker: Worker, code: int) -> None:
        if worker.epoch < self.epoch or worker.status == "finished":
            return  # ended by a fence, or at its script's end
        if not worker.is_ahead:
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
        self.root.send(
            WorkerExited(
                rank=worker.rank,
                epoch=worker.epoch,
                code=code,
                output="\n".join(worker.output),
                error=worker.error,
            )
        )


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


def interface_of(address: str) -> str | None:
    """The network interface with this IP address, if there is one."""
    for name, entries in psutil.net_if_addrs().items():
        if address in (entry.address for entry in entries):
            return str(name)
    return None
