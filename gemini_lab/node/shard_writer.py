"""An agent's part in saving a version: its own shards, and sometimes the manifest."""

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from gemini_lab.errors import GeminiError
from gemini_lab.node.keeper import MemoryKeeper
from gemini_lab.recovery.messages import (
    Commit,
    Committed,
    Message,
    Persist,
    Persisted,
    PersistFailed,
)
from gemini_lab.shard.layout import ShardRecord
from gemini_lab.shard.lineage import Lineage
from gemini_lab.storage import persistent_tier


class ShardWriter:
    """Writes to the persistent tier what the root agent asks for, beside the event loop.

    Args:
        keeper: This node's memory.
        answer: Tells the root agent how it went.

    Attributes:
        is_full: Whether every write is refused, as on a full disk: the injector's doing.
    """

    def __init__(self, keeper: MemoryKeeper, answer: Callable[[Message], None]) -> None:
        self._keeper = keeper
        self._answer = answer
        self._order: Persist | None = None
        self.is_full = False

    def expect(self, order: Persist) -> None:
        """Write this version when it is whole here; an order that still waits is forgotten."""
        self._order = order

    def cancel(self) -> None:
        """Forget an order that still waits."""
        self._order = None

    def due(self) -> Persist | None:
        """The order that waits, if its version is whole now; it waits no more then.

        An order that comes after its version was overwritten fails: nobody is to wait for it.
        """
        order = self._order
        if order is None:
            return None
        if self._keeper.has(order.version):
            self._order = None
            return order
        if self._keeper.has_passed(order.version):
            self._order = None
            self._answer(
                PersistFailed(
                    epoch=order.epoch,
                    version=order.version,
                    reason="training has passed it already; save more rarely, or wait for the next",
                )
            )
        return None

    async def write(self, order: Persist) -> None:
        """Write this node's own shards, and say so."""
        try:
            lineage, records = await asyncio.to_thread(self._write, order)
        except (GeminiError, OSError) as error:
            self._say_failed(order, error)
        else:
            self._answer(
                Persisted(
                    epoch=order.epoch, version=order.version, lineage=lineage, records=records
                )
            )

    async def commit(self, order: Commit) -> None:
        """Write the manifest, and say so."""
        try:
            tier = persistent_tier(order.url, keep=order.keep)
            meta = msgspec.to_builtins(order.meta)
            await asyncio.to_thread(tier.commit, order.version, order.records, meta)
        except (GeminiError, OSError) as error:
            self._say_failed(order, error)
        else:
            size_bytes = sum(record.size_bytes for record in order.records)
            self._answer(Committed(epoch=order.epoch, version=order.version, size_bytes=size_bytes))

    def _write(self, order: Persist) -> tuple[Lineage, list[ShardRecord]]:
        with full_store(is_full=self.is_full):
            return self._keeper.persist(order.version, order.url)

    def _say_failed(self, order: Persist | Commit, error: Exception) -> None:
        self._answer(PersistFailed(epoch=order.epoch, version=order.version, reason=str(error)))


@contextmanager
def full_store(*, is_full: bool) -> Iterator[None]:
    """While it lasts no file of this process can grow: the kernel refuses, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if is_full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
