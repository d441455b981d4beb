"""A node's place in the store: its lease, the root's key, and what other roots have written."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gemini_lab.node.control_store import (
    PATIENCE_S,
    ControlStore,
    StoreForgedError,
    StoreUnavailableError,
)
from gemini_lab.node.store_watch import Reading, StoreWatch

NODES: Final = "nodes/"
"""Before the name of each node that is registered."""
AGAIN_S: Final = 0.1  # between tries to register
ABSTAINS_S: Final = 10.0  # others look at least so often whether there is a root


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRecord:
    """Who is root agent: the value of the key `root`, which vanishes with its owner's lease."""

    name: str
    address: str
    term: int

    def to_text(self) -> str:
        """The value in the store."""
        return json.dumps({"name": self.name, "address": self.address, "term": self.term})

    @classmethod
    def from_text(cls, text: str) -> "RootRecord":
        """The record in a value of the store."""
        return cls(**json.loads(text))


class Membership:
    """Keeps one node registered, and elects a root agent.

    A watch rings when the small state has changed, and then it is read; see `StoreWatch`. Nothing
    urgent waits for that: deaths are noticed on connections first.

    Args:
        store: The lab's store.
        streams: The same store, over a connection that only heartbeats and the watch use: a slow
            read neither delays nor drops them.
        name: This node.
        address: Where its agent listens.
        lease_s: How long the node counts as alive without a sign of life.

    Attributes:
        watch: Whether there is something to read.
        poll_s: How often an agent looks whether there is.
    """

    def __init__(
        self,
        *,
        store: ControlStore,
        streams: ControlStore,
        name: str,
        address: str,
        lease_s: float,
    ) -> None:
        self.store = store
        self.streams = streams
        self.watch = StoreWatch(store, streams)
        self.name = name
        self.address = address
        self.lease_s = lease_s
        self.poll_s = min(0.25, lease_s / 8)
        self._lease: int | None = None
        self._renewed_s = time.monotonic()
        self._abstains_until_s = 0.0

    @property
    def silent_s(self) -> float:
        """Seconds since the store last confirmed the lease."""
        return time.monotonic() - self._renewed_s

    async def register(self) -> None:
        """Take a lease and write this node under it."""
        ttl_s = max(2, round(self.lease_s))
        value = json.dumps({"address": self.address})

        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                lease = await self.store.grant(ttl_s)
                await self.store.put(f"{NODES}{self.name}", value, lease=lease)
                break
            except StoreUnavailableError as error:
                if isinstance(error, StoreForgedError) or time.monotonic() > give_up_s:
                    raise
                await asyncio.sleep(AGAIN_S)
        self._lease, self._renewed_s = lease, time.monotonic()

    async def renew(self) -> bool:
        """Keep the lease alive; `False` when it had run out."""
        lease = self._lease
        if lease is None:
            return False
        alive = await self.streams.keep_alive(lease)
        if alive:
            self._renewed_s = time.monotonic()
        else:
            self._lease = None
        return alive

    async def leave(self) -> None:
        """Give the lease back, and with it every key of this node."""
        await self.streams.close()
        lease, self._lease = self._lease, None
        try:
            if lease is not None:
                await self.store.revoke(lease)
        finally:
            await self.store.close()

    async def read(self, *, whole: bool = False) -> Reading:
        """What every agent is to know of the store, or all that is in the lab's part of it."""
        return await self.watch.read(whole=whole)

    async def campaign(self, items: Mapping[str, str]) -> RootRecord | None:
        """Become root agent if there is none; returns the record when this node won."""
        is_asked = time.monotonic() >= self._abstains_until_s
        if "root" in items or self._lease is None or not is_asked:
            return None
        record = RootRecord(
            name=self.name, address=self.address, term=int(items.get("term", "0")) + 1
        )
        return record if await self._write_record(record) else None

    def is_own(self, record: RootRecord) -> bool:
        """Whether this very process wrote the root's record."""
        return (record.name, record.address) == (self.name, self.address)

    async def reclaim(self, record: RootRecord) -> None:
        """Write the root's record again if the store has lost it, and nobody else has the place."""
        await self._write_record(record)

    async def is_deposed(self, record: RootRecord) -> bool:
        """Whether another root was elected; one whose lease ran out may have its place again."""
        items = await self.store.get(["root", "term"])
        held = items.get("root", record.to_text())
        return held != record.to_text() or int(items.get("term", "0")) > record.term

    async def _write_record(self, record: RootRecord) -> bool:
        """Whether there was no root, and is one now, for as long as this node's lease stands.

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

    async def stand_down(self, record: RootRecord) -> None:
        """Be root no more, and leave the place to others, unless none of them takes it."""
        self._abstains_until_s = time.monotonic() + ABSTAINS_S
        await self.depose(record)

    async def depose(self, record: RootRecord) -> None:
        """Remove a root whose process is known to be dead."""
        await self.store.delete_if("root", record.to_text())


def node_addresses(items: Mapping[str, str]) -> dict[str, str]:
    """Address of each registered node's agent."""
    return {
        key.removeprefix(NODES): json.loads(value)["address"]
        for key, value in items.items()
        if key.startswith(NODES)
    }


def read_epoch(items: Mapping[str, str]) -> int:
    """The newest epoch that a root agent has written; 0 before the first."""
    return int(items.get("epoch", "0"))
