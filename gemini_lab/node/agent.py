"""A node's agent: owns the node's memory and workers, obeys the root agent, and may become it.

Started by `gemini_lab.launch.boot`, it reads its `AgentConfig` as one line of JSON from standard
input and answers with one line: its name, address and pid. `gemini-lab node` is one, too. It ends,
and ends everything that it started, when the lab is closed or gone.
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from gemini_lab.engine.heartbeat import BEAT_S
from gemini_lab.engine.process_exit import adopt_orphans, tie_to_parent, untie_from_parent
from gemini_lab.errors import GeminiError
from gemini_lab.log.events import NodeReady
from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.control_store import StoreForgedError, StoreUnavailableError
from gemini_lab.node.lab_link import LabLink, RootLink
from gemini_lab.node.link_speed import give_filler
from gemini_lab.node.membership import Membership, Reading, RootRecord, read_epoch
from gemini_lab.node.root_role import RootRole
from gemini_lab.node.sealed_store import Sealed
from gemini_lab.node.start_config import LAB_KEY, AgentConfig, AgentUp
from gemini_lab.node.strike import strike
from gemini_lab.node.supervisor import Supervisor
from gemini_lab.node.tasks import Tasks
from gemini_lab.recovery.messages import (
    CloseLab,
    Flush,
    Flushed,
    Heard,
    Inject,
    LabHello,
    MeasureLink,
    ProbeHello,
    RootHello,
    RootOrder,
    TakeStacks,
)
from gemini_lab.wire.tcp import Channel, connect, serve

PROBES: Final = 10  # connections that may break before a silent root counts as alive
LAB_GRACE_S: Final = 5.0  # an agent ends whose lab has had neither a connection nor a key so long
UNHEARD_S: Final = 20.0  # so does one that hears neither lab nor store: the key would be gone
LAB_SILENT_S: Final = 900  # its connection breaks if the lab's machine answers nothing so long
KEY_GRACE_S: Final = 30.0  # so does one whose lab is connected or to come, but has had no key
ALONE_S: Final = 3600.0  # so does one of a detached lab without workers and without a store
STORE_LEFT_S: Final = 10.0  # for others to leave an etcd whose keeper was killed


class Agent:
    """One node's agent."""

    def __init__(
        self,
        config: AgentConfig,  # what it is told
        announce: Callable[[AgentUp], None],  # called once it listens and is registered
        *,
        machine: AgentMachine | None = None,  # where it runs
    ) -> None:
        self.config = config
        self._machine = machine = machine or AgentMachine()
        self._announce = announce
        self.name = config.name
        self._ip = machine.address_towards(config.etcd.endpoints[0])
        self._stop = asyncio.Event()
        self._is_lab_over = self._is_end_known = False
        self._tasks = Tasks(self._say_failure)
        self.lab = LabLink(config.name, wall_s=machine.wall_s, steady_s=machine.steady_s)
        self.root = RootLink(self._say_failure)
        self.supervisor = Supervisor(
            name=config.name,
            ip=self._ip,
            warm=config.lab.warm,
            lab=self.lab,
            root=self.root,
            tasks=self._tasks,
            leave=self._stop.set,
            machine=machine,
        )
        self._root_role = RootRole(
            config=config, lab=self.lab, tasks=self._tasks, machine=machine, on_change=self._ring
        )
        self._term = 0  # of the newest root that has greeted
        self._root_record: RootRecord | None = None
        self._reading: Reading | None = None  # of the store; `None` while it is away
        self._is_store_away = False
        self._turn = asyncio.Lock()  # of who reads the store, and acts on it
        self._forged = ""  # what was said last of values that are not the lab's
        self._settled_s = 0.0  # when the store counts as complete again after it was away
        self._lab_seen_s = self._machine.steady_s()
        self._lab_process = ""  # of the lab that connected last

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> bool:
        """Join the lab, serve until it ends, and leave nothing behind.

        Returns:
            Whether the lab has ended, or cannot be reached any more; else this agent was told to.
        """
        server, port = await serve(self._ip, self.config.token, self._welcome)
        self.address = f"{self._ip}:{port}"
        etcd, prefix = self.config.etcd, self.config.prefix
        sealed = Sealed(etcd, prefix, token=self.config.token, identity=self.config.lab.identity)
        self.membership = Membership(
            store=self._machine.store(etcd, prefix, values=sealed),
            streams=self._machine.store(
                etcd, prefix, timeout_s=max(1.0, self.config.lab.lease_s / 2)
            ),
            machine=self._machine,
            name=self.config.name,
            address=self.address,
            lease_s=self.config.lab.lease_s,
        )
        try:
            await self._join()
            await self._stop.wait()
        finally:  # also where who started it, or the store, is gone before it has joined
            server.close()
            await self._leave()
        if self._is_lab_over:
            await self._machine.end_left(
                prefix,
                is_over=self._is_end_known,
                has_store=etcd.is_followed,
                within_s=STORE_LEFT_S,
            )
        return self._is_lab_over

    async def _join(self) -> None:
        """Register, say so, and begin all that goes on beside."""
        await self.membership.register()
        self._announce(
            AgentUp(
                name=self.name,
                address=self.address,
                pid=self._machine.own_pid(),
                machine=self._machine.identity(),
            )
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop.set)
        loop.add_signal_handler(signal.SIGTERM, self._heed_notice)
        self._tasks.begin(self.supervisor.bulk.warm_up())
        self._tasks.begin(self._say_when_ready())
        self._tasks.begin(self._keep_lease())
        self._tasks.begin(self._watch_store())
        self._tasks.begin(self._watch_workers())

    def _heed_notice(self) -> None:
        """Ask the root agent to move this node's ranks: the machine is to go within the notice."""
        within_s = self.config.notice_s
        if within_s > 0:
            self.supervisor.say_leaving(within_s)
        asyncio.get_running_loop().call_later(within_s, self._stop.set)

    async def _leave(self) -> None:
        self._root_role.resign()
        self._tasks.cancel()
        await self.supervisor.close()
        self.root.cut()
        self.lab.close()
        with suppress(StoreUnavailableError):
            await self.membership.leave()
        # For the readers of the closed connections to end; else asyncio prints each as destroyed.
        await asyncio.sleep(0.05)

    def _say_failure(self, error: BaseException) -> None:
        text = f"{self.name}'s agent: {type(error).__name__}: {error}"
        self.lab.note(text)
        with suppress(OSError):  # a full disk
            print(text, file=sys.stderr)  # noqa: T201

    async def _say_when_ready(self) -> None:
        started_s = self._machine.steady_s()
        await self.supervisor.wait_until_ready()
        import_s = self._machine.steady_s() - started_s
        network = self._machine.network_of(self._ip)
        self.lab.emit(NodeReady(name=self.name, import_s=import_s, network=network))

    async def _keep_lease(self) -> None:
        while True:
            # A little uneven: thousands that beat together would all log in again together, too.
            await asyncio.sleep(self.config.lab.lease_s * self._machine.random.uniform(0.2, 0.25))
            try:
                if not await self.membership.renew():
                    await self._rejoin()
            except StoreUnavailableError:
                self._note_store_away()
                # An outage of the store alone stops nothing; a node cut off from root and store
                # alike has been replaced by now, or will be.
                cut_off = not self.root.is_open and self._root_role.shell is None
                if cut_off and self.membership.silent_s > self.config.lab.lease_s:
                    await self.supervisor.end_workers()

    async def _rejoin(self) -> None:
        """Take another lease, and end workers whose place was given away meanwhile."""
        await self.membership.register()
        self.lab.note(f"{self.name} lost its lease and took another")
        items = (await self.membership.watch.read(whole=False)).items
        await self.supervisor.end_workers(before=read_epoch(items))

    async def _watch_workers(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                self.supervisor.look_at_workers()
            except OSError as error:  # no descriptor is free, say; the next look may find one
                self._say_failure(error)

    async def _watch_store(self) -> None:
        while True:
            await asyncio.sleep(self.membership.poll_s)
            # Who hears the root agent itself need not hear of it from the store at once.
            is_urgent = not self.root.is_open or self._root_role.shell is not None
            if self.membership.silent_s > self.config.lab.lease_s:
                self.membership.watch.ring()  # who was frozen may not be what it was
            if self.membership.watch.is_due(is_urgent=is_urgent):
                await self._read_store()
            elif self._root_role.shell is not None and self._reading is not None:
                self._root_role.shell.observe(self._reading, is_settled=True)
            self._watch_lab()

    async def _read_store(self) -> None:
        # Of two at once each could begin a root agent: one wins, the other reads that it has won.
        async with self._turn:
            await self._read_and_obey()

    async def _read_and_obey(self) -> None:
        try:
            reading = await self.membership.watch.read(whole=self._root_role.shell is not None)
            if self._is_store_away:
                self._settled_s = self._machine.steady_s() + 2 * self.config.lab.lease_s
            self._is_store_away, self._reading, self._forged = False, reading, ""
            await self._obey_store(reading)
        except StoreUnavailableError as error:
            self._note_store_away()
            if isinstance(error, StoreForgedError) and str(error) != self._forged:
                self._forged = str(error)  # it is read again and again
                self._say_failure(error)

    def _note_store_away(self) -> None:
        """Forget what was read: it does not count until the store answers again."""
        self._is_store_away, self._reading = True, None
        self._ring()

    async def _obey_store(self, reading: Reading) -> None:
        """Act on what the store says.

        A store that was away may have let leases run out of nodes that live: until they have had
        time to take new ones, no node is declared lost and no other root is elected.
        """
        items = reading.items
        record = RootRecord.from_text(items["root"]) if "root" in items else None
        is_settled = self._machine.steady_s() > self._settled_s
        if record is None or not is_settled:
            self.membership.watch.ring()  # time alone may change what is to be done
        if (shell := self._root_role.shell) is not None:
            is_newest = int(items.get("term", "0")) <= shell.record.term
            if record is None and not is_settled and is_newest:
                await self.membership.reclaim(shell.record)
            elif record != shell.record:
                self._root_role.resign()
            else:
                shell.observe(reading, is_settled=is_settled)
        elif record is None and is_settled:
            won = await self.membership.campaign(items)
            if won is not None:
                self._root_role.begin(self.membership, won)
        elif record is not None and self.membership.is_own(record):
            # Won, but the answer was lost; or resigned while the store was away. No other can
            # be elected while this node's key stands.
            self._root_role.begin(self.membership, record)
        self._root_record = record or self._root_record
        self.supervisor.note_epoch(read_epoch(items))

    def _watch_lab(self) -> None:
        """End when the lab is gone: its process, or its key and its connection.

        A broken connection alone proves nothing: the lab connects again. A lab whose other machines
        are slow to come takes its time before it connects, while its store is there. A detached one
        lives as long as its key, or, while the store is away, as its workers.
        """
        reading, is_detached = self._reading, self.config.lab.detached is not None
        works = bool(self.supervisor.host.workers) if is_detached else self.lab.is_open
        if LAB_KEY in reading.items if reading is not None else works:
            self._lab_seen_s = self._machine.steady_s()
        has_key_gone = reading is not None and LAB_KEY not in reading.items
        is_killed = not is_detached and self._machine.has_ended(self._lab_process)
        is_away = self._machine.steady_s() - self._lab_seen_s > self._lab_grace_s()
        if is_away or is_killed:
            self._end_with_lab(is_known=has_key_gone or is_killed)

    def _lab_grace_s(self) -> float:
        """Return how long a lab may be away, by what is known of it.

        What is read of its key is up to some seconds old; a connection that ended is known, and a
        detached lab's key stands before its first agent starts.
        """
        is_detached = self.config.lab.detached is not None
        if self._reading is None:
            return ALONE_S if is_detached else UNHEARD_S
        may_come = not self.lab.was_opened and not is_detached
        return KEY_GRACE_S if self.lab.is_open or may_come else LAB_GRACE_S

    def _end_with_lab(self, *, is_known: bool) -> None:
        """End, as the lab is over.

        Args:
            is_known: Whether the lab or the store says so; else this agent only cannot reach them.
        """
        self._is_lab_over, self._is_end_known = True, is_known
        self._stop.set()

    def _ring(self) -> None:
        """Schedule a reading of the store: a root agent follows all keys, others only some."""
        self.membership.watch.ring()

    # -- connections ---------------------------------------------------------------------------

    async def _welcome(self, channel: Channel) -> None:
        try:
            match channel.peer:
                case LabHello():
                    await self._serve_lab(channel, channel.peer)
                case RootHello():
                    await self._serve_root(channel, channel.peer)
                case ProbeHello():
                    await give_filler(channel, channel.peer.pieces)
        except Exception as error:  # noqa: BLE001 - an edge: it is said, and the connection ends
            self._say_failure(error)

    async def _serve_lab(self, channel: Channel, hello: LabHello) -> None:
        self.lab.open(channel, hello)
        self._lab_process = hello.process
        try:
            channel.break_after(LAB_SILENT_S)
            while (message := await channel.receive()) is not None:
                match message:
                    case CloseLab():
                        self._end_with_lab(is_known=True)
                    case Heard():
                        self.lab.heard(message.messages)
                    case Flush():
                        self.lab.say(Flushed())
                    case Inject():
                        await strike(self.supervisor, message.action, self.config)
                    case TakeStacks():
                        self.supervisor.take_stacks(message)
        finally:
            self.lab.close(channel)
            self._lab_seen_s = self._machine.steady_s()  # also by who was frozen until now

    async def _serve_root(self, channel: Channel, hello: RootHello) -> None:
        newest = 0 if self._root_record is None else self._root_record.term
        self._term = max(self._term, newest)
        if hello.term < self._term:
            return  # a root that was deposed
        self._term = hello.term
        self.root.open(channel)
        channel.send(self.supervisor.joined())
        self.supervisor.say_again()
        try:
            while (message := await channel.receive()) is not None:
                match message:
                    case RootOrder():
                        await self.supervisor.obey(message)
                    case MeasureLink():
                        self._tasks.begin(self._measure_link(message))
        finally:
            was_its = self.root.close(channel)
        if was_its:
            await self._root_is_silent(hello.name)

    async def _measure_link(self, peer: MeasureLink) -> None:
        token = self.config.token
        if fault := await self._machine.link_fault(peer, token=token, name=self.name):
            self.supervisor.note_fault(fault)

    async def _root_is_silent(self, name: str) -> None:
        """Elect another root agent at once if the one whose connection closed is dead."""
        record = self._root_record
        if record is None or record.name != name or self._stop.is_set():
            return
        if await self._is_dead(record.address):
            with suppress(StoreUnavailableError):
                await self.membership.depose(record)
                await self._read_store()

    async def _is_dead(self, address: str) -> bool:
        """Return whether nothing listens at `address` any more; silence proves nothing."""
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


def say_up(answer: AgentUp) -> None:
    """Tell who started this agent, on standard output; it may go from then on."""
    untie_from_parent()
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


async def run_agent(config: AgentConfig, announce: Callable[[AgentUp], None] = say_up) -> bool:
    """Run one agent for its life; see `Agent.run`."""
    return await Agent(config, announce).run()


def main() -> None:
    """Run an agent from standard input's configuration until the lab ends.

    Until it is up it ends with who started it, as where the launcher is killed amid that.
    """
    tie_to_parent()
    adopt_orphans()
    config = msgspec.json.decode(sys.stdin.readline(), type=AgentConfig)
    with suppress(KeyboardInterrupt):
        asyncio.run(run_agent(config))


if __name__ == "__main__":
    main()
