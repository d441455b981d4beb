"""Agents of a lab: an operator starts them, etcd names them, the lab connects to each."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, Literal

import msgspec

from gemini_lab.errors import ConfigError, GeminiError, LaunchError
from gemini_lab.injector.orders import Order
from gemini_lab.lab.announcement import Announcement
from gemini_lab.lab.connections import ANSWER_S, AgentConnections
from gemini_lab.lab.loop import LoopThread, Work
from gemini_lab.lab.node_contracts import Audience
from gemini_lab.lab.roster import Roster
from gemini_lab.launch.operator import Operator
from gemini_lab.log.events import NodeReady
from gemini_lab.node.control_store import StoreUnavailableError, patiently
from gemini_lab.node.membership import node_addresses
from gemini_lab.node.sealed_store import SealedStore
from gemini_lab.node.start_config import NONE_COME_KEY, AgentUp, LabRecord
from gemini_lab.recovery.messages import (
    CloseLab,
    EventSaid,
    Inject,
    JobOrder,
    Message,
    NeedNodes,
    OutputSaid,
    TakeStacks,
)
from gemini_lab.recovery.requests import AnyRequest, StoredRequest

CONNECT_S: Final = 30.0  # for an agent that is up to be connected to
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between tries
GOODBYE_S: Final = 5.0  # for agents to leave by themselves
LEAVE_S: Final = 20.0


class AgentCluster:
    """Implements `NodeCluster` with real agents."""

    def __init__(
        self,
        *,
        store: SealedStore,  # the lab's
        record: LabRecord,  # the lab's description in the store
        operator: Operator,  # the source of machines
        loop: LoopThread,  # receives the agents' messages
        audience: Audience,  # gets them
        beside: str | None = None,  # the node on which the owner of a detached lab runs
    ) -> None:
        self._beside = beside
        self._connections = AgentConnections(operator.token, self, self._begin)
        self._are_met = asyncio.Event()
        self._store, self._operator = store, operator
        self._loop, self._audience = loop, audience
        self._announcement = Announcement(store, record)
        self._roster = Roster()
        self._requests = MachineRequests(
            operator=operator,
            store=store,
            connect=self._connect,
            count_living=lambda: len(self.living),
            audience=audience,
        )
        self._machines = 0
        self._is_closing = False
        self._work: set[Future[None]] = set()
        self._undo = ExitStack()

    # -- start and end ---------------------------------------------------------------------------

    def open(self, machines: int) -> None:
        self._machines = machines
        self._announcement.make()
        self._spawn(self._announcement.keep())  # from here on: to bring machines may take minutes
        agents = self._operator.bring(machines)
        self._loop.finish(self._connect(agents), timeout_s=CONNECT_S + 2 * ANSWER_S)
        self._go_on()

    def take_over(self) -> None:
        """Connect to the agents that are there, in another owner's place."""
        addresses = node_addresses(patiently(self._store.items))
        with suppress(TimeoutError):
            self._loop.finish(self._meet(addresses), timeout_s=CONNECT_S)
        self._go_on()

    def _go_on(self) -> None:
        self._loop.call(self._are_met.set)
        self._spawn(self._watch())
        self._spawn(self._connections.acknowledge(self._audience.settle))

    def ends_with(self, undo: ExitStack) -> None:
        self._undo = undo

    def close(self) -> None:
        self._begin_to_close()
        self._undo.close()

    def leave(self) -> None:
        self._begin_to_close()
        with suppress(TimeoutError):
            self._loop.finish(self._say_goodbye(), timeout_s=LEAVE_S)

    def _begin_to_close(self) -> None:
        self._is_closing = True
        self._requests.end()

    def leave_beside(self) -> None:
        """End the agent beside this owner last, because it ends the owner, too."""
        if self._beside is not None:
            self._loop.call(self._connections.send, self._beside, CloseLab())

    async def _say_goodbye(self) -> None:
        for name in {*self.members} - {self._beside}:
            self._connections.send(name, CloseLab())
        deadline_s = time.monotonic() + GOODBYE_S
        while {*self.members} - {self._beside} and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        for work in self._work.copy():
            work.cancel()
        # Without these the agent beside which this owner runs would end it too early.
        spare = set() if self._beside is None else {"root", f"nodes/{self._beside}"}
        with suppress(StoreUnavailableError):
            await asyncio.to_thread(self._announcement.withdraw, spare=spare)

    async def _watch(self) -> None:
        """Log when the store is away, and end the run when all nodes are lost.

        Agents whose connections broke are connected to again, also while the store is away: they
        still listen at the same addresses.
        """
        all_lost, away_since_s, known = AllNodesLost(), None, dict[str, str]()
        while not self._is_closing:
            await asyncio.sleep(LOOK_S)
            addresses = None
            try:
                addresses = known = node_addresses(await asyncio.to_thread(self._store.items))
            except StoreUnavailableError as error:
                if away_since_s is None:
                    away_since_s = time.monotonic()
                    self._audience.take_note(f"{error}; no failure is answered until it is back")
            else:
                if away_since_s is not None:
                    away_s = time.monotonic() - away_since_s
                    self._audience.take_note(f"etcd is back after {away_s:.0f} s")
                away_since_s = None
            await self._meet(known)
            verdict = all_lost.look(
                is_connected=bool(self.members),
                is_coming=self._requests.is_under_way,
                is_empty=addresses == {},
            )
            if verdict == "bring":
                self._bring_anew()
            elif verdict == "end":
                self._audience.take_end(
                    f"no agent is left, and none came within {ALONE_S:.0f} s: all memory is lost"
                )
                return

    def _bring_anew(self) -> None:
        """Ask for all machines again, because no root agent is left to do so."""
        self._audience.take_note(
            f"all nodes are lost, with what they had in memory; {self._machines} new ones are "
            "asked for"
        )
        self._want(self._machines)

    def _want(self, machines: int) -> None:
        async def bring() -> None:
            await self._are_met.wait()
            await self._requests.bring()

        self._requests.wanted = machines
        self._spawn(bring())

    def _spawn(self, work: Work) -> None:
        self._work.add(self._begin(work))

    def _begin(self, work: Work) -> Future[None]:
        """Start work that goes on until the loop ends, because last messages need a connection."""
        future = self._loop.spawn(work)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, work: Future[None]) -> None:
        """Log an error of this work, because no caller waits for it."""
        self._work.discard(work)
        error = None if work.cancelled() else work.exception()
        if error is not None:
            traceback.print_exception(error)
            self._audience.take_note(f"the lab's own error: {type(error).__name__}: {error}")

    # -- who is there ----------------------------------------------------------------------------

    @property
    def members(self) -> Collection[str]:
        return self._connections.names

    @property
    def living(self) -> tuple[str, ...]:
        return tuple(name for name in self.members if name not in self._roster.silent)

    @property
    def ready(self) -> Collection[str]:
        return self._roster.ready & set(self.living)

    @property
    def root(self) -> str | None:
        return self._roster.root

    @property
    def etcd(self) -> Sequence[str]:
        return self._store.address.endpoints

    @property
    def is_local(self) -> bool:
        return self._operator.is_local

    # -- what agents say -------------------------------------------------------------------------

    async def _connect(self, agents: Sequence[AgentUp]) -> None:
        await asyncio.gather(*(self._connect_to(agent) for agent in agents))

    async def _connect_to(self, agent: AgentUp) -> None:
        """Connect to an agent that is up; a port that refuses for a moment is tried again."""
        give_up_s, pause_s = time.monotonic() + CONNECT_S, FIRST_PAUSE_S
        while True:
            try:
                await self._connections.open(agent.name, agent.address)
            except (OSError, EOFError, TimeoutError) as error:
                if time.monotonic() + pause_s > give_up_s:
                    raise LaunchError(
                        f"{agent.name} has said that it listens on {agent.address}, and for "
                        f"{CONNECT_S:.0f} s each try to connect to it from this machine ended "
                        f"with: {str(error) or type(error).__name__}; its own log is "
                        f"agents/{agent.name}.log in the lab's folder"
                    ) from error
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                return

    async def _meet(self, addresses: Mapping[str, str]) -> None:
        """Connect to agents that joined by themselves; try silent ones again."""
        if not self._is_closing:
            await self._connections.meet(addresses)

    def hear(self, name: str, message: Message) -> None:
        match message:
            case EventSaid(entry=entry) if self._roster.is_heard(message.term):
                self._roster.follow(entry.event)
                if isinstance(entry.event, NodeReady):
                    self._remark()
                self._audience.take(entry)
            case OutputSaid():
                self._audience.take_output(message, node=name)
            case NeedNodes():
                self._want(message.wanted)

    def _remark(self) -> None:
        for text in self._roster.remarks():
            self._audience.take_note(text)

    # -- orders ----------------------------------------------------------------------------------

    def bring(self, machines: int) -> None:
        self._loop.call(self._want, machines)

    def submit(self, job: JobOrder) -> None:
        self._roster.begin_run()
        self._remark()
        self._put("job", msgspec.json.encode(job).decode())

    def ask(self, number: int, request: AnyRequest) -> None:
        """Write a request to the run with this number into the store, for the root agent."""
        items = patiently(self._store.items)
        stored = StoredRequest.following(items, number, request, now_ns=time.time_ns())
        self._put(request.key, stored.to_text())

    def _put(self, key: str, value: str) -> None:
        patiently(partial(self._store.put, key, value))

    def obey(self, order: Order) -> None:
        """Send a node an injected failure.

        Raises:
            ConfigError: No such node is there.
        """
        if order.node not in self.members:
            known = ", ".join(self.members)
            raise ConfigError(f"no node {order.node!r} is there; there are {known}")
        self._loop.call(self._connections.send, order.node, Inject(action=order.action))

    def take_stacks(self, nodes: Sequence[str], order: TakeStacks) -> None:
        for node in nodes:
            self._loop.call(self._connections.send, node, order)


# -- all nodes lost --------------------------------------------------------------------------------

LOOK_S: Final = 1.0
LOST_S: Final = 3.0  # after this long without any agent, new machines are asked for
ALONE_S: Final = 60.0  # after this long without any, and none on its way, a run has ended

Verdict = Literal["wait", "bring", "end"]


class AllNodesLost:
    """How long a lab has been without any agent.

    No root agent is left then that would ask for machines, so the lab itself does, once. That the
    store still names agents, whose leases have not run out, or does not answer, delays it.
    """

    def __init__(self) -> None:
        self._alone_s = 0.0
        self._has_asked = False

    def look(self, *, is_connected: bool, is_coming: bool, is_empty: bool) -> Verdict:
        """Return what to do now; called every `LOOK_S`."""
        if is_connected:
            self._alone_s, self._has_asked = 0.0, False
            return "wait"
        if not is_coming:
            self._alone_s += LOOK_S
        if self._alone_s >= ALONE_S:
            return "end"
        if self._alone_s > LOST_S and is_empty and not self._has_asked:
            self._has_asked = True
            return "bring"
        return "wait"


# -- requests for machines -------------------------------------------------------------------------

FIRST_RETRY_S: Final = 5.0
LONGEST_RETRY_S: Final = 60.0


class MachineRequests:
    """Requests for missing machines to the operator."""

    def __init__(
        self,
        *,
        operator: Operator,  # the source of machines
        store: SealedStore,  # tells the root agent of a short run that no machine comes
        # Connects to agents that the operator brought.
        connect: Callable[[Sequence[AgentUp]], Awaitable[None]],
        count_living: Callable[[], int],  # returns how many agents live now
        audience: Audience,  # logs why no machine comes
    ) -> None:
        self.wanted = 0  # agents that the root agent wants by its newest message
        self._operator, self._store = operator, store
        self._connect, self._count_living, self._audience = connect, count_living, audience
        self._coming = 0
        self._waits = 0
        self._has_ended = False

    @property
    def is_under_way(self) -> bool:
        return self._coming > 0

    def end(self) -> None:
        self._has_ended = True

    async def bring(self) -> None:
        """Ask the operator for the machines that are missing and not already on their way.

        An operator without machines may have some later, so this asks again after ever longer
        pauses, as long as machines are missing. Of several waiting calls the newest asks for all.
        """
        pause_s = FIRST_RETRY_S
        while (count := self._missing) > 0 and not self._has_ended:
            self._coming += count
            try:
                await self._connect(await asyncio.to_thread(self._operator.bring, count))
            except GeminiError as error:  # what is impossible now may be mended meanwhile
                self._audience.take_note(
                    f"no new node: {error}; the operator is asked again in {pause_s:.0f} s"
                )
                await asyncio.to_thread(self._say_none_come)
            finally:
                self._coming -= count
            self._waits += 1
            wait = self._waits
            await asyncio.sleep(pause_s)
            if wait != self._waits:
                return
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    @property
    def _missing(self) -> int:
        return self.wanted - self._count_living() - self._coming

    def _say_none_come(self) -> None:
        """Tell the root agent of a short run, which may go on with fewer nodes."""
        with suppress(StoreUnavailableError):
            self._store.put(NONE_COME_KEY, str(time.time_ns()))
