"""A cluster of agents: an operator brings them, etcd introduces them, the lab talks to each."""

import asyncio
import time
import traceback
from collections.abc import Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

import msgspec

from gemini_lab.errors import ConfigError, LaunchError
from gemini_lab.injector.orders import Order
from gemini_lab.lab.alone import ALONE_S, LOOK_S, Alone
from gemini_lab.lab.announcement import Announcement
from gemini_lab.lab.bringing import Bringing
from gemini_lab.lab.cluster import Audience
from gemini_lab.lab.connections import ANSWER_S, Connections
from gemini_lab.lab.loop import LoopThread
from gemini_lab.lab.roster import Roster
from gemini_lab.launch.operator import Operator
from gemini_lab.log.events import NodeReady
from gemini_lab.node.config import AgentUp, LabRecord
from gemini_lab.node.control_store import StoreUnavailableError, patiently
from gemini_lab.node.membership import node_addresses
from gemini_lab.node.sealed_store import SealedStore
from gemini_lab.recovery.messages import (
    CloseLab,
    EventSaid,
    Inject,
    JobOrder,
    Message,
    NeedNodes,
    OutputSaid,
)
from gemini_lab.recovery.requests import AnyRequest, StoredRequest

CONNECT_S: Final = 30.0  # for an agent that is up to be connected to
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between tries
GOODBYE_S: Final = 5.0  # for agents to leave by themselves
LEAVE_S: Final = 20.0


class AgentCluster:
    """Implements `Cluster` with real agents.

    Args:
        store: The lab's.
        record: What the lab says of itself there.
        operator: Where machines come from.
        loop: Where agents are listened to.
        audience: Who is told what they say.
        beside: The node on which the owner of a detached lab runs.
    """

    def __init__(
        self,
        *,
        store: SealedStore,
        record: LabRecord,
        operator: Operator,
        loop: LoopThread,
        audience: Audience,
        beside: str | None = None,
    ) -> None:
        self._beside = beside
        self._connections = Connections(operator.token, self, self._begin)
        self._are_met = asyncio.Event()
        self._store, self._operator = store, operator
        self._loop, self._audience = loop, audience
        self._announcement = Announcement(store, record)
        self._roster = Roster()
        self._bringing = Bringing(
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
        """Bring so many agents and connect to them."""
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
        """`undo` is what `close` has to do."""
        self._undo = undo

    def close(self) -> None:
        """End every process of the cluster and give all its memory back."""
        self._begin_to_close()
        self._undo.close()

    def leave(self) -> None:
        """Have the agents end, and take this lab's keys out of the store."""
        self._begin_to_close()
        with suppress(TimeoutError):
            self._loop.finish(self._say_goodbye(), timeout_s=LEAVE_S)

    def _begin_to_close(self) -> None:
        self._is_closing = True
        self._bringing.end()

    def leave_beside(self) -> None:
        """Have the agent end beside which this owner runs, as the last: it ends the owner, too."""
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
        """Say when what a run cannot do without is away, and end the wait when all is lost.

        Agents whose connections broke are connected to again, also while the store is away: they
        still listen at the same addresses.
        """
        alone, away_since_s, known = Alone(), None, dict[str, str]()
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
            verdict = alone.look(
                is_connected=bool(self.members),
                is_coming=self._bringing.is_under_way,
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
        """No root agent is left that would ask for machines."""
        self._audience.take_note(
            f"all nodes are lost, with what they had in memory; {self._machines} new ones are "
            "asked for"
        )
        self._want(self._machines)

    def _want(self, machines: int) -> None:
        self._bringing.wanted = machines
        self._spawn(self._bring())

    async def _bring(self) -> None:
        await self._are_met.wait()
        await self._bringing.bring()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._work.add(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Start what goes on until the loop ends: what is left to say needs a connection."""
        future = self._loop.spawn(work)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, work: Future[None]) -> None:
        """Nobody waits for this work: what went wrong with it would be lost."""
        self._work.discard(work)
        error = None if work.cancelled() else work.exception()
        if error is not None:
            traceback.print_exception(error)
            self._audience.take_note(f"the lab's own error: {type(error).__name__}: {error}")

    # -- who is there ----------------------------------------------------------------------------

    @property
    def members(self) -> Collection[str]:
        """Names of the nodes whose agents are connected."""
        return self._connections.names

    @property
    def living(self) -> tuple[str, ...]:
        """Names of the nodes whose agents live, standbys included."""
        return tuple(name for name in self.members if name not in self._roster.silent)

    @property
    def ready(self) -> Collection[str]:
        """Names of those that have imported what workers need."""
        return self._roster.ready & set(self.living)

    @property
    def root(self) -> str | None:
        """The node with the root agent."""
        return self._roster.root

    @property
    def etcd(self) -> Sequence[str]:
        """`host:port` of each member of etcd."""
        return self._store.address.endpoints

    @property
    def is_local(self) -> bool:
        """Whether all nodes are on this machine, and see its folders."""
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
        """Connect to agents that have joined by themselves; who does not answer is tried again."""
        if not self._is_closing:
            await self._connections.meet(addresses)

    def hear(self, name: str, message: Message) -> None:
        """An agent said something."""
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
        """Say what is likely wrong with the nodes' networks."""
        for text in self._roster.remarks():
            self._audience.take_note(text)

    # -- orders ----------------------------------------------------------------------------------

    def bring(self, machines: int) -> None:
        """Ask for machines until so many nodes live; a run under way asks by itself."""
        self._loop.call(self._want, machines)

    def submit(self, job: JobOrder) -> None:
        """Start a job on the nodes."""
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
        """Tell a node what to do to itself.

        Raises:
            ConfigError: No such node is there.
        """
        if order.node not in self.members:
            known = ", ".join(self.members)
            raise ConfigError(f"no node {order.node!r} is there; there are {known}")
        self._loop.call(self._connections.send, order.node, Inject(action=order.action))
