"""A node's place in the store: its lease, the root's key, and what other roots have written.

A watch only says that something changed; then an agent reads everything, at one revision. So a
watch that broke, missed something or fell behind a compaction needs no repair but another reading,
and no change between two readings is seen in half.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gemini_lab.node.agent_machine import AgentMachine
from gemini_lab.node.control_store import PATIENCE_S, StoreForgedError, StoreUnavailableError
from gemini_lab.node.etcd_client import EtcdClient

NODES: Final = "nodes/"
"""Before the name of each node that is registered."""
AGAIN_S: Final = 0.1  # between tries to register
ABSTAINS_S: Final = 10.0  # others look at least so often whether there is a root
TURNS_S: Final = 300.0
"""Turns of all agents take no longer; until then one that has had its turn gives way to others."""
GIVES_WAY_S: Final = 3.0  # before it campaigns for a place that nobody else takes
HEAD: Final = ("epoch", "lab", "root", "term")
"""The keys that every agent follows; all others concern the root agent alone."""
REREAD_S: Final = 10.0  # the store is read this often even if no watch rings
SPREAD_S: Final = 1.0  # in which agents look that hear the news from the root agent anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecord:
    """The value of the key `root`, which vanishes with the root agent's lease."""

    name: str
    address: str
    term: int

    def to_text(self) -> str:
        """Return the value for the store."""
        return json.dumps({"name": self.name, "address": self.address, "term": self.term})

    @classmethod
    def from_text(cls, text: str) -> "RootRecord":
        """Return the record in a value of the store."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The store's content at one revision."""

    items: dict[str, str]  # the keys that were read, with their values
    is_whole: bool  # whether these are all keys, and not only those of `HEAD`


class StoreWatch:
    """Tells an agent when to read the store: first of all, after a change, and now and then."""

    def __init__(
        self,
        store: EtcdClient,  # the lab's, to read
        streams: EtcdClient,  # the same store, to watch
        *,
        machine: AgentMachine,  # spreads the readings of many agents
        clock: Callable[[], float] | None = None,  # A monotonic clock; by default the machine's
    ) -> None:
        self._store, self._streams = store, streams
        self._rng, self._clock = machine.random, clock or machine.steady_s
        self._turn = asyncio.Lock()  # one look at a time
        self._watch: object | None = None  # the one that stands
        self._is_whole = False  # whether it is on all keys
        self._rung_s: float | None = self._clock()  # since when something is to be read
        self._spread_s = 0.0  # by which those wait who have time
        self._read_s = -REREAD_S
        self._last: Reading | None = None

    def is_due(self, *, is_urgent: bool = True) -> bool:
        """Return whether to read now.

        Args:
            is_urgent: Whether a change is to be seen at once. Thousands that all looked at the
                same moment would hold up the one who made the change.
        """
        now_s = self._clock()
        if self._rung_s is not None:
            return is_urgent or now_s >= self._rung_s + self._spread_s
        return now_s >= self._read_s + REREAD_S

    def ring(self) -> None:
        """Schedule another reading."""
        if self._rung_s is None:
            self._rung_s, self._spread_s = self._clock(), self._rng.uniform(0, SPREAD_S)

    async def read(self, *, whole: bool) -> Reading:
        """Return the store's content.

        The watch begins before the reading, so that no change falls between the two.

        Args:
            whole: Read and follow all keys, as only the root agent does.

        Raises:
            StoreUnavailableError: It does not answer; the next look is due at once.
        """
        async with self._turn:
            has_rung, self._rung_s = self._rung_s is not None, None
            try:
                await self._follow(whole=whole)
                items = await (self._store.items() if whole else self._store.get(HEAD))
                reading = Reading(items=items, is_whole=whole)
            except BaseException:
                self.ring()
                raise
            is_known = self._last is not None and self._last.is_whole == whole
            if is_known and not has_rung and reading != self._last:
                self._watch = None  # it should have rung: have another one
                self.ring()
            self._read_s, self._last = self._clock(), reading
            return reading

    async def _follow(self, *, whole: bool) -> None:
        """Watch the keys that are read, unless a watch stands."""
        if self._watch is not None and self._is_whole == whole:
            return
        watch = self._watch = object()  # the one before ends

        def tell(*, has_ended: bool) -> None:
            if has_ended and self._watch is watch:
                self._watch = None
            self.ring()

        try:
            await self._streams.watch(None if whole else HEAD, tell)
        except BaseException:
            self._watch = None
            raise
        self._is_whole = whole


class Membership:
    """Keeps one node registered, and elects a root agent.

    Nothing urgent waits for the store: deaths are noticed on connections first.
    """

    def __init__(
        self,
        *,
        store: EtcdClient,  # the lab's store
        # The same store, over a connection that only heartbeats and the watch use: a slow read
        # neither delays nor drops them.
        streams: EtcdClient,
        name: str,  # this node
        address: str,  # where its agent listens
        lease_s: float,  # how long the node counts as alive without a sign of life
        machine: AgentMachine,  # spreads the readings of many agents
    ) -> None:
        self._machine = machine
        self.store = store
        self.streams = streams
        # Whether there is something to read.
        self.watch = StoreWatch(store, streams, machine=machine)
        self.name = name
        self.address = address
        self.lease_s = lease_s
        self.poll_s = min(0.25, lease_s / 8)  # how often an agent looks whether there is
        self._lease: int | None = None
        self._renewed_s = self._machine.steady_s()
        self._abstains_until_s = self._gives_way_until_s = 0.0
        self._vacant_since: tuple[int, float] = (-1, 0.0)  # the term after which, and when

    @property
    def silent_s(self) -> float:
        """Seconds since the store last confirmed the lease."""
        return self._machine.steady_s() - self._renewed_s

    async def register(self) -> None:
        """Take a lease and write this node under it."""
        ttl_s = max(2, round(self.lease_s))
        value = json.dumps({"address": self.address})

        give_up_s = self._machine.steady_s() + PATIENCE_S
        while True:
            try:
                lease = await self.store.grant(ttl_s)
                await self.store.put(f"{NODES}{self.name}", value, lease=lease)
                break
            except StoreUnavailableError as error:
                if isinstance(error, StoreForgedError) or self._machine.steady_s() > give_up_s:
                    raise
                await asyncio.sleep(AGAIN_S)
        self._lease, self._renewed_s = lease, self._machine.steady_s()

    async def renew(self) -> bool:
        """Keep the lease alive; return `False` if it has run out."""
        lease = self._lease
        if lease is None:
            return False
        alive = await self.streams.keep_alive(lease)
        if alive:
            self._renewed_s = self._machine.steady_s()
        else:
            self._lease = None
        return alive

    async def leave(self) -> None:
        """Return the lease, and with it every key of this node."""
        await self.streams.close()
        lease, self._lease = self._lease, None
        try:
            if lease is not None:
                await self.store.revoke(lease)
        finally:
            await self.store.close()

    async def campaign(self, items: Mapping[str, str]) -> RootRecord | None:
        """Become root agent if there is none; return the record if this node won.

        One that has yielded the place leaves it to others first, for a few seconds.
        """
        now, term = self._machine.steady_s(), int(items.get("term", "0"))
        if self._vacant_since[0] != term:
            self._vacant_since = term, now
        gives_way_s = GIVES_WAY_S if now < self._gives_way_until_s else 0.0
        is_asked = now >= max(self._abstains_until_s, self._vacant_since[1] + gives_way_s)
        if "root" in items or self._lease is None or not is_asked:
            return None
        record = RootRecord(name=self.name, address=self.address, term=term + 1)
        return record if await self._write_record(record) else None

    def is_own(self, record: RootRecord) -> bool:
        """Return whether this very process wrote the root's record."""
        return (record.name, record.address) == (self.name, self.address)

    async def reclaim(self, record: RootRecord) -> None:
        """Write the root's record again if the store has lost it, and no other node is root."""
        await self._write_record(record)

    async def is_deposed(self, record: RootRecord) -> bool:
        """Return whether another root was elected; a lease that ran out alone does not depose."""
        items = await self.store.get(["root", "term"])
        held = items.get("root", record.to_text())
        return held != record.to_text() or int(items.get("term", "0")) > record.term

    async def _write_record(self, record: RootRecord) -> bool:
        """Write the root's record under this node's lease; return whether there was none.

        Without a lease nothing is written: it would stand for ever.
        """
        text, lease = record.to_text(), self._lease
        if lease is None:
            return False
        return await self.store.create("root", text, lease=lease)

    async def write_as_root(self, record: RootRecord, values: Mapping[str, str]) -> bool:
        """Write, all or nothing, while `record` is the root: a deposed root changes nothing."""
        held = record.to_text()
        return await self.store.put_if(values, guard="root", held=held)

    async def stand_down(self, record: RootRecord, *, yields: bool = False) -> None:
        """Resign, and leave the place to others for `ABSTAINS_S`.

        Args:
            record: This node's.
            yields: Whether it has had its turn: else two that reach few could take turns for good.
        """
        now = self._machine.steady_s()
        self._abstains_until_s = now + ABSTAINS_S
        if yields:
            self._gives_way_until_s = now + TURNS_S
        await self.depose(record)

    async def depose(self, record: RootRecord) -> None:
        """Remove a root whose process is known to be dead."""
        await self.store.delete_if("root", record.to_text())


def node_addresses(items: Mapping[str, str]) -> dict[str, str]:
    """Return the address of each registered node's agent."""
    return {
        key.removeprefix(NODES): json.loads(value)["address"]
        for key, value in items.items()
        if key.startswith(NODES)
    }


def read_epoch(items: Mapping[str, str]) -> int:
    """Return the newest epoch that a root agent has written; 0 before the first."""
    return int(items.get("epoch", "0"))
