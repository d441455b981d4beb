"""The execution of the root agent's orders on one node.

It starts and ends the workers, has the memory read and versions saved, and says when a worker ends.
"""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from gemini_lab.errors import CapacityError, GeminiError
from gemini_lab.kept.workers import KeptWorkers
from gemini_lab.log import events
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.bulk import BulkProcesses
from gemini_lab.node.host import Worker
from gemini_lab.node.lab_link import LabLink, RootLink
from gemini_lab.node.listener import WorkerHistory, WorkerListener
from gemini_lab.node.memory_manager import MemoryManager, ShardWriter
from gemini_lab.node.tasks import Tasks
from gemini_lab.recovery.ailments import FaultsSeen, MachineFault
from gemini_lab.recovery.messages import (
    AllLive,
    CallRoll,
    Commit,
    Disown,
    Drained,
    Fence,
    Fenced,
    Flawed,
    GoBack,
    Hold,
    Inventory,
    Joined,
    ListVersions,
    NodeLeaves,
    OrderFailed,
    Persist,
    Preload,
    ReadyToStart,
    Release,
    RootOrder,
    ScriptError,
    Settle,
    StartWorkers,
    TakeInventory,
    TakeStacks,
    VersionsListed,
    WorkerEnded,
    WorkerStart,
)
from gemini_lab.recovery.told_seats import whole_ranks
from gemini_lab.units import format_bytes

FENCE_S: Final = 1.0
"""For the root agent to say itself that an epoch has begun, and which workers go on in it."""
LONGEST_REASON: Final = 2000
RANKS_WAITING: Final = 1024
"""Connections of ranks that wait for the one that serves their port, which starts meanwhile."""
Order = TypeVar("Order", bound=RootOrder)


class Supervisor:
    """One node's workers and memory, in its agent."""

    def __init__(
        self,
        *,
        name: str,  # the node's
        ip: str,  # where its workers are reached
        warm: bool,  # whether workers are forked from a process that has their imports
        lab: LabLink,  # the way to the log
        root: RootLink,  # the way to the root agent
        tasks: Tasks,  # where work beside an order runs
        leave: Callable[[], None],  # ends the agent
        machine: AgentMachine,  # where its agent runs
    ) -> None:
        self.name, self.lab, self.root = name, lab, root
        # The newest that this node knows; what belongs to an older one counts no more.
        self.epoch = 0
        self._ip, self._is_warm = ip, warm
        self._tasks, self._leave = tasks, leave
        self._machine, self.bulk = machine, machine.bulk
        self.memory = MemoryManager(self.bulk)
        self._kept = KeptWorkers(say=lab.note)
        self.writer = ShardWriter(
            memory=self.memory, bulk=self.bulk, answer=root.send, background=tasks.begin
        )
        self._listener = WorkerListener(
            lab=lab,
            root=root,
            tasks=tasks,
            memory=self.memory,
            writer=self.writer,
            kept=self._kept,
            machine=machine,
        )
        self.host = machine.host(
            warm=warm,
            on_message=self._listener.hear,
            on_output=self._listener.hear_output,
            on_exit=self._on_exit,
            on_note=lab.note,
        )
        self._build_locks = machine.build_locks(name, say=lab.note)
        self._inventory: asyncio.Task[None] | None = None  # memory that is being read
        self._flaws: list[Flawed] = []  # of this machine, by injection, that last
        self._kernel_kills = machine.kernel_kills()  # at the last look
        self._ailments = FaultsSeen()
        self._found: list[MachineFault] = []  # of this machine, beside what the kernel tells
        self._noted = 0  # the newest epoch that the store said has begun
        self._port: socket.socket | None = None  # held for the ranks of an epoch to meet in
        self._port_epoch = 0
        self._leaves_at_s: float | None = None  # when this node's machine goes, if it was told so

    def joined(self) -> Joined:
        """Return the greeting to another root agent, which gets all pulses again.

        It does not know of processes that were started ahead: they end.
        """
        self._listener.watch.forget_told()
        self._ailments.forget_told()
        workers = [*self._seated]
        if len(workers) < len(self.host.workers):
            self._tasks.begin(self.host.kill_all(epoch=self.epoch, spare=workers))
        return Joined(
            epoch=self.epoch,
            workers=workers,
            is_ready=self.host.is_ready,
            memory_bytes=self._machine.free_memory().size_bytes + self.memory.size_bytes,
            wrong_sums=self._listener.history.wrong_sums,
            left=[*self._listener.history.left],
        )

    def say_again(self) -> None:
        """Repeat to a root agent that has greeted what it waits for and may have missed."""
        self._listener.say_again(self.epoch)
        self.say_leaving()

    def say_leaving(self, within_s: float | None = None) -> None:
        """Tell the root agent that this node's machine is to go, once that is known.

        Args:
            within_s: From now; it becomes known by this.
        """
        now_s = self._machine.steady_s()
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
        self._kernel_kills = self._machine.kernel_kills()
        for worker in self._seated.values():
            worker.held_bytes = self._machine.held_bytes(worker.pid) or worker.held_bytes
        watch = self._listener.watch
        for pulse in watch.look(self._seated.values()):
            self.root.send(pulse)
        now_s = self._machine.steady_s()
        found, self._found = [*self._machine.faults(), *self._found], []
        for said in self._ailments.take(found, at_s=now_s):
            self.root.send(said)
        if self._build_locks is not None:
            self._build_locks.note(watch.held_locks)

    def note_fault(self, fault: MachineFault) -> None:
        """Tell the root agent of a fault of this machine, at the next look at the workers."""
        self._found.append(fault)

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
        """End older workers if the store has a newer epoch, unless the root agent fences first.

        The root agent's own fence comes at about the same time, and may let them go on.
        """
        if epoch > max(self.epoch, self._noted):
            self._noted = epoch
            self._tasks.begin(self._end_older(epoch))

    async def _end_older(self, epoch: int) -> None:
        await asyncio.sleep(FENCE_S)
        await self.end_workers(before=epoch)

    def flaw(self, order: Flawed) -> list[int]:
        """Make this node's workers compute wrong, and later ones if that lasts; return their ranks.

        Returns:
            The ranks of those that there are.
        """
        if order.is_lasting:
            self._flaws.append(order)
        for worker in self.host.workers.values():
            worker.channel.send(order)
        return sorted(self.host.workers)

    def take_stacks(self, order: TakeStacks) -> None:
        """Log where the threads of this node's workers are, of the ranks that are asked for."""
        for worker in self.host.workers.values():
            if not order.ranks or worker.rank in order.ranks:
                self._tasks.begin(self._tell_stacks(worker))

    async def _tell_stacks(self, worker: Worker) -> None:
        lines, how = await self.host.stacks(worker)
        self.lab.emit(
            events.StacksTaken(
                rank=worker.rank, epoch=worker.epoch, pid=worker.pid or 0, how=how, lines=lines
            )
        )

    async def close(self) -> None:
        """End all that was started here, and let the memory go."""
        self._close_port()
        self.host.close()
        await self.bulk.close()
        self.memory.close()

    # -- what the root says ----------------------------------------------------------------------

    async def obey(self, order: RootOrder) -> None:
        """Do what the root agent orders; what may take long goes on beside further orders.

        What this machine lacks, descriptors or processes say, is told: to break the connection
        would only bring the same order again.
        """
        if order.epoch < self.epoch:
            return  # an order from before a fence
        self.epoch = order.epoch
        await self._answered(order, self._do)

    async def _answered(self, order: Order, do: Callable[[Order], Awaitable[None]]) -> None:
        """Do what an order asks for, or tell the root agent why that cannot be done here."""
        try:
            await do(order)
        except (GeminiError, OSError) as error:
            reason = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
            name = type(order).__name__
            self.root.send(OrderFailed(epoch=order.epoch, order=name, reason=reason))

    async def _do(self, order: RootOrder) -> None:
        match order:
            case Fence():
                await self._fence(order)
            case TakeInventory():
                work = self._answered(order, self._take_inventory)
                self._inventory = self._tasks.begin(work)
            case Hold() | GoBack() | CallRoll():
                self._ask_workers(order)
            case Settle():
                self._tasks.begin(self.memory.settle(order.ranks))
            case Drained() if self._leaves_at_s is not None:
                self._leave()
            case StartWorkers():
                self._start_workers(order)
            case Preload() if self._is_warm:
                self.host.preload(order)
            case Persist() | Commit():
                self.writer.obey(order)
            case Disown():
                self._tasks.begin(self.writer.disown(order))
            case Release():
                await self._release()

    async def _fence(self, order: Fence) -> None:
        """End workers of older epochs, but for those that stand still and are kept.

        A newer root agent may fence meanwhile: then the workers and the port are its epoch's.
        """
        self._give_up_work()
        kept = await self._kept.stand(self.host, order)
        if order.epoch == self.epoch:
            await self.host.kill_all(epoch=self.epoch, spare=kept)
        if order.epoch == self.epoch:
            address, no_port = self._hold_port(order.epoch)
            self.root.send(Fenced(epoch=order.epoch, kept=kept, address=address, no_port=no_port))

    def _hold_port(self, epoch: int) -> tuple[str, str]:
        """Hold a port in which the ranks of an epoch may meet, so that no other program takes it.

        Returns:
            Its address; and, if none could be opened, the reason.
        """
        if self._port is None or self._port_epoch != epoch:  # older workers may still call the old
            self._close_port()
            try:
                self._port = self._machine.open_port(self._ip, waiting=RANKS_WAITING)
            except OSError as error:
                return "", f"no port of {self._ip} could be opened: {error}"
            self._port_epoch = epoch
        return f"{self._ip}:{self._port.getsockname()[1]}", ""

    def _close_port(self) -> None:
        """Close this process's end of the port: once its worker ends, ranks must be refused."""
        if self._port is not None:
            self._port.close()
            self._port = None

    async def _release(self) -> None:
        """Free all that was kept of a run that is over."""
        self._give_up_work()
        self._close_port()
        self.writer.is_full = False
        await self.host.kill_all(epoch=self.epoch)
        await self.memory.free()

    def _ask_workers(self, order: Hold | GoBack | CallRoll) -> None:
        """Hand an order on to the workers; whether they live is seen without them."""
        if not isinstance(order, CallRoll):
            for worker in self.host.workers.values():
                worker.channel.send(order)
        elif all(self.host.lives(rank) for rank in self._seated):
            self.root.send(AllLive(epoch=order.epoch))

    def _give_up_work(self) -> None:
        """Cancel what is being saved or read."""
        self.writer.cancel()
        if self._inventory is not None:
            self._inventory.cancel()
            self._inventory = None

    async def _take_inventory(self, order: TakeInventory) -> None:
        """Say what this node has."""
        if self._build_locks is not None:
            self._build_locks.clear()
        history = self._listener.history
        inventory = await take_inventory(order, memory=self.memory, bulk=self.bulk, history=history)
        if inventory.unread:
            self.lab.note(f"the persistent tier cannot be read: {inventory.unread}")
        self.root.send(inventory)

    def _start_workers(self, order: StartWorkers) -> None:
        seats = order.seats.whole()
        all_kept = whole_ranks(order.kept, seats.ranks)
        self._listener.history.begin(order.order.run)
        self._listener.is_placed = seats.placement is not None
        self.memory.turn_to(seats.world_size)
        interface = self._machine.network_of(self._ip).interface
        ranks = seats.ranks_on(self.name)
        kept = {*ranks} & {*all_kept}
        port: tuple[int, ...] = ()
        if self._port is not None and order.rendezvous == self._hold_port(order.epoch)[0]:
            port = (self._port.fileno(),)
        server = min(ranks, key=lambda rank: (rank in kept, rank), default=None)
        for rank in ranks:
            served = port if rank == server else ()
            start = WorkerStart(
                rank=rank,
                epoch=order.epoch,
                order=order.order,
                seats=seats,
                plan=order.plan,
                rendezvous=order.rendezvous,
                fingerprint=order.fingerprint,
                interface=interface,
                kept=all_kept,
                joins=order.joins,
                code=order.code,
            )
            if rank in kept:
                if not self._kept.go_on(self.host, start, served):
                    self._tell_gone(start)
                continue
            try:
                self.host.start(start, served)
            except OSError as error:
                self._tell_unstarted(start, f"{self.name}'s agent cannot start it: {error}")
                continue
            for flaw in self._flaws if rank in self.host.workers else ():
                self.host.workers[rank].channel.send(flaw)
        self._close_port()

    def _tell_unstarted(self, start: WorkerStart, reason: str) -> None:
        """Tell that a worker never began, for something that this machine lacks."""
        rank, epoch = start.rank, start.epoch
        self.lab.emit(
            events.WorkerExited(
                rank=rank, epoch=epoch, pid=0, signal=None, exit_code=1, output=(reason,)
            )
        )
        error = ScriptError(error=CapacityError.__name__, text=reason)
        self.root.send(WorkerEnded(rank=rank, epoch=epoch, code=1, output=reason, error=error))

    def _tell_gone(self, start: WorkerStart) -> None:
        """Report a kept worker whose process has ended since it stood still."""
        self.root.send(
            WorkerEnded(rank=start.rank, epoch=start.epoch, code=-signal.SIGKILL, output="")
        )

    # -- what workers do -------------------------------------------------------------------------

    def _seen_of_kill(self, worker: Worker) -> str:
        """Return what was seen of memory when a worker was killed, by whomever."""
        free = self._machine.free_memory()
        kills = self._machine.kernel_kills() - self._kernel_kills
        seen = "it was ended by SIGKILL"
        if kills > 0:
            seen += f", as the kernel's OOM killer ended {kills} of this machine's processes"
        if worker.held_bytes:
            seen += f"; it held {format_bytes(worker.held_bytes)} of memory when it was seen last"
        return f"{seen}; {free.bound_by} has {format_bytes(free.size_bytes)} left"

    def _on_exit(self, worker: Worker, code: int) -> None:
        if worker.epoch < self.epoch or worker.status == "finished":
            return  # ended by a fence, or at its script's end
        if code == -signal.SIGKILL:
            worker.output.append(self._seen_of_kill(worker))
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
            WorkerEnded(
                rank=worker.rank,
                epoch=worker.epoch,
                code=code,
                output="\n".join(worker.output),
                error=worker.error,
            )
        )


STORAGE_S: Final = 30.0  # for the persistent tier to say which versions it has


async def take_inventory(
    order: TakeInventory, *, memory: MemoryManager, bulk: BulkProcesses, history: WorkerHistory
) -> Inventory:
    """Return what this node has of the run that `order` names.

    Args:
        order: The root agent's.
        memory: Has the node's memory.
        bulk: Asks the persistent tier.
        history: What the node's workers said.

    Raises:
        GeminiError: The memory cannot be read.
        OSError: The same.
    """
    found = await memory.inventory(order.run)
    stored, unread = VersionsListed(), ""
    if order.persistent_url is not None:
        stored, unread = await _stored_versions(bulk, order.persistent_url)
    is_asked = order.asks_settings and (found.copies or found.damaged)
    return Inventory(
        epoch=order.epoch,
        copies=found.copies,
        damaged=found.damaged,
        persistent=stored.versions,
        unclear=stored.unclear,
        unread=unread,
        disowned=stored.disowned,
        left=[*history.left],
        iterations=history.iterations(order.run, after=order.words_after),
        protected=history.protected if is_asked else None,
        code=history.code(order.run),
    )


async def _stored_versions(bulk: BulkProcesses, url: str) -> tuple[VersionsListed, str]:
    """Return the persistent tier's versions, or why it cannot be read, which is not empty."""
    try:
        async with asyncio.timeout(STORAGE_S):
            answer, _ = await bulk.ask(ListVersions(url=url), VersionsListed)
    except TimeoutError:
        return VersionsListed(), f"it did not answer within {STORAGE_S:.0f} s"
    except (GeminiError, OSError) as error:
        return VersionsListed(), str(error)
    return answer, ""
