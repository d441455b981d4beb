"""The acting half of the root agent: it carries out what `RootAgent` decides."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from gemini_lab.log.entry import shifted
from gemini_lab.log.events import AnyEvent, Note, RootElected
from gemini_lab.node.agent_links import AgentLinks
from gemini_lab.node.agent_machine import OWN_ROOTS, AgentMachine, MakeRoot
from gemini_lab.node.control_store import (
    StoreForgedError,
    StoreFullError,
    StoreUnavailableError,
)
from gemini_lab.node.lab_link import CLOCK_TRUST_S
from gemini_lab.node.membership import Membership, Reading, RootRecord, node_addresses
from gemini_lab.node.start_config import NONE_COME_KEY
from gemini_lab.recovery.messages import JobOrder, RootHello
from gemini_lab.recovery.protocol import (
    Emit,
    HangUp,
    Happening,
    Instruction,
    JobSubmitted,
    NoMachineComes,
    Requested,
    RequestNodes,
    Send,
    Tick,
    WriteState,
)
from gemini_lab.recovery.requests import NewRequests
from gemini_lab.recovery.root.agent import RootAgent
from gemini_lab.recovery.root.lifecycle import Lifecycle
from gemini_lab.recovery.root_state import RootState
from gemini_lab.seats import listed
from gemini_lab.wire.tcp import answers

Asked = TypeVar("Asked")
ADDRESSES_KEY: Final = "addresses"
YIELDED_KEY: Final = "yielded"
"""The group of entry points in which a package offers to make root agents of the user's own."""
DOUBTS_S: Final = 2.0  # between looks at a store whose content is not believed
STORE_PATIENCE_S: Final = 60.0  # a root that cannot write its state for this long resigns


class Deposed(Exception):  # noqa: N818  (it is no error: another root acts now)
    """This node is not the root agent any more."""


class RootShell:
    """Runs a `RootAgent` on one node for as long as its record stands in the store."""

    def __init__(
        self,
        *,
        membership: Membership,  # this node's; the record was written through it
        record: RootRecord,  # what makes this node root
        token: str,  # the lab's secret
        emit: Callable[[AnyEvent], None],  # says an event on behalf of this node
        request_nodes: Callable[[int, str], None],  # asks the lab's operator for machines
        machine: AgentMachine,  # where its agent runs; somebody may set its wall clock
    ) -> None:
        self.record = record
        self._membership = membership
        self._emit = emit
        self._request_nodes = request_nodes
        self._happenings: asyncio.Queue[Happening] = asyncio.Queue()
        # Moments follow a monotonic clock: a step of the machine's must restart no worker.
        self._wall_s, self._machine = machine.wall_s, machine
        self._clock_offset_s = machine.wall_s() - machine.steady_s()
        self._links = AgentLinks(
            hello=RootHello(name=record.name, term=record.term),
            token=token,
            tell=self._happenings.put_nowait,
            emit=lambda said: self._say(said.event),
            on_lack=self._note_lack,
            clock=self._clock,
        )
        self._root: RootAgent | None = None
        self._reading: Reading | None = None
        self._addresses: dict[str, str] = {}  # of all agents, in that reading
        self._order: JobOrder | None = None  # the newest job, in that reading
        self._known: dict[str, str] = {}  # addresses of nodes that count, as the store has them
        self._epoch: int | None = None  # as the store has it
        self._job_number: int | None = None
        self._requests = NewRequests()
        self._none_come: str | None = None  # that no machine comes, as the store has it
        self._cut_off = CutOff(self._clock())
        self._missed_since_s: float | None = None  # agents that may be waited for
        self._stands_down = self._yields = False
        self._said = ""  # the newest note on what is not believed
        self._lacks = ""  # what this machine lacks, so that it reaches no agent

    async def run(self) -> None:
        """Act as root until deposed or cancelled."""
        try:
            await self._write({"term": str(self.record.term)})
            items = await self._read_all()
            self._say(RootElected(name=self.record.name, term=self.record.term))
            self._addresses = node_addresses(items)
            there = await self._links.open(self._addresses)
            while (state := _state_in(items)).epoch < (seen := max([0, *(j.epoch for j in there)])):
                self._say_once(
                    f"the state of this run in the store is of epoch {state.epoch}, and nodes have "
                    f"seen epoch {seen}: it was set back to what it was, or taken out; no failure "
                    "is answered until the newest one is there again; gemini-lab stop ends the run"
                )
                await asyncio.sleep(DOUBTS_S)
                items = await self._read_all()
            self._job_number = state.setup.order.number if state.setup.order else None
            packed = state.setup.order.root if state.setup.order else ""
            own = self._machine.own_root
            root = self._root = _made(packed, state, self._clock(), own)
            root.living.update({joined.node: joined for joined in there})
            self._known = json.loads(items.get(ADDRESSES_KEY, "{}"))
            self._links.look_for(_of_those_that_count(self._known, state))
            await self._carry_out(await _decided(root, root.take_over, self._clock()))
            while True:
                happening = await self._happenings.get()
                await self._stand_down_if_cut_off()
                await self._yield_if_others_may_reach_more()
                if isinstance(happening, JobSubmitted):
                    order = happening.order
                    at_s = happening.at_s
                    root = self._root = successor(root, order.root, at_s=at_s, own=own)
                await self._carry_out(await _decided(root, root.handle, happening))
        except Deposed:
            pass
        finally:
            if self._root is not None:
                self._root.close()
            self._links.close()

    def observe(self, reading: Reading, *, is_settled: bool) -> None:
        """Take note of the store's content, a few times a second, also while it stays as it was.

        Args:
            reading: What was read last; only a whole one tells who is there.
            is_settled: Whether a node that is missing is lost.
        """
        if self._root is None or not reading.is_whole:
            return
        now = self._clock()
        if reading is not self._reading:
            self._reading, self._addresses = reading, node_addresses(reading.items)
            job = reading.items.get("job")
            self._order = None if job is None else msgspec.json.decode(job, type=JobOrder)
        self._links.follow(self._addresses, is_settled=is_settled)
        others, connected = self._others.keys(), self._links.connected
        is_certain = self._cut_off.is_certain(now, others=others, connected=connected)
        self._stands_down = is_settled and is_certain
        # Nobody else may cut a pause short: each new root agent would begin the recovery again.
        lacks = self._root.state.phase == "waiting" and not self._root.lifecycle.is_pausing
        misses = lacks and others - connected
        self._missed_since_s = (self._missed_since_s or now) if misses and is_settled else None
        self._yields = now - (self._missed_since_s or now) > CUT_OFF_S
        self._observe_job(reading.items, registered=len(self._addresses), now=now)
        self._happenings.put_nowait(Tick(at_s=now))

    async def _read_all(self) -> dict[str, str]:
        """Return all that is in the store, once no stranger's value is among it.

        To go on without a value, as if it were not there, could mean to begin the run again.
        """
        while True:
            try:
                return await self._membership.store.items()
            except StoreForgedError as error:
                self._say_once(f"{error}; no failure is answered until then")
            await asyncio.sleep(DOUBTS_S)

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(Note(text=text))

    def _say(self, event: AnyEvent) -> None:
        """Say an event on this machine's clock, as all that its agent says is."""
        set_by_s = self._wall_s() - self._clock()
        self._emit(shifted(event, set_by_s) if abs(set_by_s) > CLOCK_TRUST_S else event)

    def _clock(self) -> float:
        return self._machine.steady_s() + self._clock_offset_s

    @property
    def _others(self) -> dict[str, str]:
        """The addresses of the other agents, as far as the store was read."""
        return {n: address for n, address in self._addresses.items() if n != self.record.name}

    async def _until_others_are_reached(self) -> None:
        """Wait until another machine answers: what seems lost may train well meanwhile.

        Where none does for long, this one is cut off, also if connections have not broken yet: what
        the others say may still arrive.
        """
        began_s = self._clock()
        while not await self._reaches_others():
            self._stands_down |= self._clock() - began_s > CUT_OFF_S
            await self._stand_down_if_cut_off()
            await asyncio.sleep(self._membership.poll_s)

    async def _reaches_others(self) -> bool:
        try:
            return await reaches_others(self._others, self._machine)
        except OSError as error:
            self._note_lack(error)
            return False

    def _note_lack(self, error: OSError) -> None:
        """Note that this machine cannot open connections: nodes that seem lost may train well."""
        self._lacks = str(error)

    async def _stand_down_if_cut_off(self) -> None:
        """Leave the place to another node where this one's network is broken, but for the store."""
        if self._stands_down:
            text = (
                f"{self.record.name} reaches none of {len(self._others)} other agents: one of them "
                "is to be root"
            )
        elif self._lacks and self._others:
            text = (
                f"{self.record.name} cannot open connections ({self._lacks}): another agent is to "
                "be root"
            )
        else:
            return
        self._say(Note(text=text))
        await self._membership.stand_down(self.record)
        raise Deposed

    async def _yield_if_others_may_reach_more(self) -> None:
        """Leave the place, if the run waits and registered agents are not reached from here.

        Only the way from this machine to them may be broken. Other agents have their turns in a
        recovery, also those that are not reached from here: one of them may reach all. An agent
        stays once `MOST_ROOTS` have had a turn. It also stays if it is elected after `TURNS`,
        because some may never take their turn.
        """
        if not self._yields or self._root is None:
            return
        recovery = self._root.state.recovery
        with suppress(StoreUnavailableError):
            items = await self._membership.store.get([YIELDED_KEY])
            last = json.loads(items.get(YIELDED_KEY, "{}"))
            before = last["roots"] if last.get("recovery") == recovery else []
            others = self._others.keys()
            if not others - {*before} or before.count(self.record.name) >= TURNS:
                return
            if len({*before}) >= MOST_ROOTS:
                return
            roots = sorted([*before, self.record.name])
            text = json.dumps({"recovery": recovery, "roots": roots})
            if not await self._membership.write_as_root(self.record, {YIELDED_KEY: text}):
                raise Deposed
            missed = listed(sorted(others - self._links.connected))
            text = f"{self.record.name} does not reach {missed}: another agent is to be root"
            self._say(Note(text=f"{text}, because the run may wait for them"))
            await self._membership.stand_down(self.record, yields=True)
            raise Deposed

    def _observe_job(self, items: Mapping[str, str], *, registered: int, now: float) -> None:
        if (order := self._order) is not None:
            wanted = min(order.seats.nodes, registered)
            is_new = self._job_number is None or order.number > self._job_number
            if is_new and len(self._links.connected) >= wanted:
                self._job_number = order.number
                self._happenings.put_nowait(JobSubmitted(at_s=now, order=order))
        for one in self._requests.read(items, job=self._job_number):
            said = Requested(at_s=now, number=one.number, request=one.request)
            self._happenings.put_nowait(said)
        none_come = items.get(NONE_COME_KEY, "")
        if self._none_come not in {None, none_come}:  # what was there before this root is old
            self._happenings.put_nowait(NoMachineComes(at_s=now))
        self._none_come = none_come

    async def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case WriteState():
                    await self._write_state(instruction.state)
                case Send():
                    self._links.send(instruction.to, instruction.order)
                case Emit():
                    self._say(instruction.event)
                case RequestNodes():
                    await self._until_others_are_reached()
                    self._request_nodes(instruction.wanted, instruction.reason)
                case HangUp():
                    self._links.hang_up(instruction.node)

    async def _write_state(self, state: RootState) -> None:
        """Store the state; the epoch has a key of its own, which all agents follow.

        Where the nodes are is for a next root that finds none of them registered.
        """
        values = {"state": state.to_text(self._clock())}
        known = _of_those_that_count({**self._known, **self._links.addresses}, state)
        if known != self._known:
            values[ADDRESSES_KEY] = json.dumps(known)
        if state.epoch != self._epoch:
            await self._until_others_are_reached()
            values["epoch"] = str(state.epoch)
        await self._write(values)
        self._known, self._epoch = known, state.epoch

    async def _write(self, values: Mapping[str, str]) -> None:
        """Store values while this node is root; a store that is away, or full, is waited for.

        One that was away may have let the root's own lease run out: its place is taken again.
        """
        give_up_s, is_told = self._machine.steady_s() + STORE_PATIENCE_S, False
        while True:
            try:
                if await self._membership.write_as_root(self.record, values):
                    return
                if await self._membership.is_deposed(self.record):
                    raise Deposed
                await self._membership.reclaim(self.record)
            except StoreUnavailableError as error:
                if isinstance(error, StoreFullError) and not is_told:  # who reads does not see it
                    self._say(Note(text=f"{error}; no failure is answered until then"))
                    is_told = True
            if self._machine.steady_s() > give_up_s:
                raise Deposed
            await asyncio.sleep(self._membership.poll_s)


def _of_those_that_count(addresses: Mapping[str, str], state: RootState) -> dict[str, str]:
    """Return the addresses of nodes with a position, or that may come back with their memory."""
    nodes = [node for node in (*state.members, *state.nodes.silent) if node is not None]
    return {node: addresses[node] for node in nodes if node in addresses}


def successor(
    before: RootAgent, root: str, *, at_s: float, own: MakeRoot = AgentMachine.own_root
) -> RootAgent:
    """Return the root agent for the next job, which knows the nodes that the last one knew.

    Args:
        before: The last job's.
        root: What the new order says of it.
        at_s: Now.
        own: Makes one of the user's own.
    """
    if not root and type(before) is RootAgent:
        return before
    before.close()
    after = _made(root, before.state, at_s, own)
    after.living.update(before.living)
    return after


def _made(root: str, state: RootState, at_s: float, own: MakeRoot) -> RootAgent:
    """Return the root agent that a run asks for: the lab's, or one of the user's own."""
    if not root:
        return RootAgent(state=state, at_s=at_s)
    return own(root, state=state, at_s=at_s) or _Refusing(state=state, at_s=at_s)


class _RefusingLifecycle(Lifecycle):
    """A lifecycle that ends each run which is to be started."""

    def restart(
        self, at_s: float, *, cause: str, lost: Sequence[str], ends: Sequence[int] = ()
    ) -> Iterator[Instruction]:
        del cause, lost, ends
        reason = (
            "the run asks for a root agent of the user's own (root=), and the installation on the "
            f"root agent's node offers no 'root_agent' in the group {OWN_ROOTS!r}; install "
            "gemini-lab with its course there, or train without root="
        )
        yield from self.ending.fail(at_s, reason, cause="script")


class _Refusing(RootAgent):
    """The root agent of a node that lacks what the run asks for: the run ends, and says so."""

    lifecycle_kind = _RefusingLifecycle


def _state_in(items: Mapping[str, str]) -> RootState:
    return RootState.from_text(items["state"]) if "state" in items else RootState()


async def _decided(
    root: RootAgent, decide: Callable[[Asked], list[Instruction]], about: Asked
) -> list[Instruction]:
    """Return what a root agent decides; a user's own may take seconds, and this loop goes on."""
    if root.may_take_long:
        return await asyncio.to_thread(decide, about)
    return decide(about)


TURNS: Final = 2
"""Of an agent as root of a run that waits, if others have had none in this recovery."""
MOST_ROOTS: Final = 16
"""Of a recovery that waits. What none of so many machines reaches, no machine reaches; turns of all
would take 4 hours with 1,000 agents, and the recovery begins again with each of them."""
CUT_OFF_S: Final = 15.0  # after its connections have broken; also a busy machine answers by then
FEWEST: Final = 2  # others; with one, either's network may be broken
ASKED: Final = 8  # of them at once: a rack may be gone
ANSWER_S: Final = 2.0  # for a machine's kernel


class CutOff:
    """How long a root agent has reached none of several others that the store has.

    Args:
        now_s: The moment, by a monotonic clock.
    """

    def __init__(self, now_s: float) -> None:
        self._reached_s = now_s

    def is_certain(
        self, now_s: float, *, others: AbstractSet[str], connected: AbstractSet[str]
    ) -> bool:
        """Return whether one of the others is to be root agent.

        Args:
            now_s: The moment; this is asked a few times a second, while the store is reached.
            others: The other agents that are registered.
            connected: Those that are connected.
        """
        if len(others) < FEWEST or others & connected:
            self._reached_s = now_s
        return now_s - self._reached_s > CUT_OFF_S


async def reaches_others(addresses: Mapping[str, str], machine: AgentMachine) -> bool:
    """Return whether the machine of any other agent answers this one.

    Args:
        addresses: Of the other agents that are registered; fewer than `FEWEST` prove nothing.
        machine: Chooses those that are asked.

    Raises:
        OSError: This machine lacks what a connection needs, so no agent was asked.
    """
    if len(addresses) < FEWEST:
        return True
    asked = machine.random.sample(sorted(addresses.values()), min(ASKED, len(addresses)))
    tries = [asyncio.create_task(answers(address, timeout_s=ANSWER_S)) for address in asked]
    try:
        for answer in asyncio.as_completed(tries):
            if await answer:
                return True
    finally:
        for one in tries:
            one.cancel()
    return False
