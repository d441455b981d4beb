"""An agent's memory: the slabs of its workers, whose bytes it has others touch."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from gemini_lab.errors import GeminiError
from gemini_lab.memory.slab import Slab, SlotSpec
from gemini_lab.node.bulk import Answer, BulkEndedError, BulkProcesses
from gemini_lab.recovery.messages import (
    BitFlipped,
    BulkRequest,
    Commit,
    Committed,
    Disown,
    Disowned,
    FlipBit,
    FreeSlabs,
    InspectSlabs,
    LayOutSlab,
    Message,
    Persist,
    Persisted,
    SaveFailed,
    SlabLaidOut,
    SlabRequest,
    SlabsFreed,
    SlabsInspected,
    WriteLeft,
    WriteManifest,
    WriteShards,
)
from gemini_lab.shard.layout import ShardLayout, require_same


@dataclass(frozen=True, slots=True)
class _Aside:
    """Slabs by place, and by shard what lies where in them, that the workers of now do not use."""

    slabs: dict[int, Slab]
    layouts: dict[int, ShardLayout]


class MemoryManager:
    """The slabs of one node: one for each of its workers' places.

    The agent holds their descriptors and reads their headers; so they live and die with it. All
    that takes time is a bulk process's. What lays out, inspects or frees waits for its turn, so
    that an inventory never reads what is just being made.

    Slabs are of one number of ranks. When workers of another number start, those that are there are
    set aside: the new shards are made of what is in them.

    Args:
        bulk: This node's bulk processes.
    """

    def __init__(self, bulk: BulkProcesses) -> None:
        # By shard, what lies where in the payloads that this node keeps.
        self.layouts: dict[int, ShardLayout] = {}
        self._bulk = bulk
        self._slabs: dict[int, Slab] = {}
        self._ranks = 0  # that the slabs are of; 0 before any worker has started
        self._aside: dict[int, _Aside] = {}  # by their number of ranks
        # Only around bulk questions. Never taken while a caller holds another lock, and never by
        # `persist`: a store that hangs must not keep an inventory waiting.
        self._turn = asyncio.Lock()

    def turn_to(self, ranks: int) -> None:
        """Set slabs of another number of ranks aside, because workers of so many start."""
        if ranks == self._ranks:
            return
        if self._slabs:
            self._aside[self._ranks] = _Aside(self._slabs, self.layouts)
        back = self._aside.pop(ranks, _Aside({}, {}))
        self._ranks, self._slabs, self.layouts = ranks, back.slabs, back.layouts

    def set_aside(self, ranks: int) -> tuple[list[Slab], list[ShardLayout]]:
        """Return the slabs of another number of ranks, and the layouts of the shards in them."""
        aside = self._aside.get(ranks, _Aside({}, {}))
        return [*aside.slabs.values()], [*aside.layouts.values()]

    async def settle(self, ranks: int) -> None:
        """Free all slabs that are not of so many ranks."""
        async with self._turn:
            gone = [aside for number, aside in self._aside.items() if number != ranks]
            self._aside = {n: aside for n, aside in self._aside.items() if n == ranks}
            if self._ranks != ranks:
                gone.append(_Aside(self._slabs, self.layouts))
                self._ranks, self._slabs, self.layouts = 0, {}, {}
            await self._let_go([slab for aside in gone for slab in aside.slabs.values()])

    async def slab(self, local_rank: int, wanted: SlabRequest) -> Slab:
        """Return the slab of a place: the one that is there, or a new one of the same form.

        One that was made for another position is laid out again: what of it counts was asked
        for in the inventory before, and what its new place keeps too comes along.

        Raises:
            ConfigError: The model or its optimizer is not the one whose versions are kept.
            CapacityError: Memory is short.
        """
        async with self._turn:
            own, chunk_bytes = wanted.slots[0].shard, wanted.chunk_bytes
            if own in self.layouts:
                require_same(self.layouts[own].identity, wanted.layout.identity)
            specs = tuple(SlotSpec(slot.shard, slot.payload_bytes) for slot in wanted.slots)
            slab = self._slabs.get(local_rank)
            form = (specs, chunk_bytes, wanted.buffers)
            if slab is None or (slab.slots, slab.chunk_bytes, slab.buffers) != form:
                slab = await self._lay_out(local_rank, wanted)
            self.layouts |= {one.rank: one for one in (wanted.layout, *wanted.replicas)}
            return slab

    async def inventory(self, run: int) -> SlabsInspected:
        """Return which of a run's copies are whole here, and which differ from their checksums.

        All are read. Copies of other runs do not count any more, and are left out.

        Raises:
            BulkEndedError: Twice, what read them was killed.
        """
        async with self._turn:
            found = await self._inspect(run, self._ranks, [*self._slabs.values()])
            for ranks, aside in [*self._aside.items()]:
                more = await self._inspect(run, ranks, [*aside.slabs.values()])
                found.copies.extend(more.copies)
                found.damaged.extend(more.damaged)
            return found

    async def _inspect(self, run: int, ranks: int, slabs: Sequence[Slab]) -> SlabsInspected:
        """Return what is in slabs of so many ranks; a standby without any answers at once."""
        if not slabs:
            return SlabsInspected(copies=[], damaged=[])
        order = InspectSlabs(run=run, ranks=ranks)
        try:
            return await self._ask(order, SlabsInspected, slabs)
        except BulkEndedError:
            return await self._ask(order, SlabsInspected, slabs)

    @property
    def size_bytes(self) -> int:
        """Of all slabs together."""
        return sum(slab.memory.nbytes for slab in self._all())

    def own_shards(self) -> list[int]:
        """Return the shards whose owners are this node's workers."""
        return sorted(slab.slots[0].shard for slab in self._slabs.values())

    def has(self, order: Persist) -> bool:
        """Return whether the shards that are to be written are complete here."""
        copies = [copy for slab in self._slabs.values() for copy in slab.copies()]
        found = {copy.shard for copy in copies if copy.version == order.version}
        return bool(found) and found >= set(order.shards or self.own_shards())

    def has_passed(self, version: int) -> bool:
        """Return whether a newer version is complete here: this one does not come any more."""
        own = set(self.own_shards())
        copies = [copy for slab in self._slabs.values() for copy in slab.copies()]
        return any(copy.shard in own and copy.version > version for copy in copies)

    async def persist(self, order: Persist, *, is_full: bool) -> Persisted:
        """Write shards of a version to the persistent tier.

        Cancelling this ends it, also in the middle of a call into a store that hangs.

        Args:
            order: Which version and shards, and where to.
            is_full: Whether the store is to be full, as far as this node can see.

        Raises:
            GeminiError: The version is gone or damaged, or the store failed.
        """
        shards = order.shards or [slab.slots[0].shard for slab in self._slabs.values()]
        layouts = [self.layouts[shard] for shard in shards]
        request = WriteShards(order=order, layouts=layouts, is_full=is_full)
        return await self._ask(request, Persisted)

    async def flip_bit(self, *, shard: int | None, bit: int) -> BitFlipped:
        """Flip one bit in the newest complete copy of a shard, as failing memory does."""
        return await self._ask(FlipBit(shard=shard, bit=bit), BitFlipped)

    async def free(self) -> None:
        """Give all memory back."""
        async with self._turn:
            slabs = self._all()
            self._forget()
            await self._let_go(slabs)

    def close(self) -> None:
        """Close all slabs, at the agent's end."""
        for slab in self._all():
            slab.close()
        self._forget()

    def _all(self) -> list[Slab]:
        aside = [slab for one in self._aside.values() for slab in one.slabs.values()]
        return [*self._slabs.values(), *aside]

    def _forget(self) -> None:
        self._ranks, self._slabs, self.layouts = 0, {}, {}
        self._aside.clear()

    async def _let_go(self, slabs: Sequence[Slab]) -> None:
        """Give the memory of slabs back that have no place here any more."""
        left = [*slabs]
        del slabs
        if left:
            with suppress(BulkEndedError, OSError):  # then they are freed, too
                await self._bulk.ask(FreeSlabs(), SlabsFreed, lambda: _given_away(left))
        _close(left)

    async def _ask(
        self, request: BulkRequest, kind: type[Answer], slabs: Sequence[Slab] | None = None
    ) -> Answer:
        """Ask something about these slabs, by default about all that are not set aside."""
        asked = [*self._slabs.values()] if slabs is None else slabs
        answer, _ = await self._bulk.ask(request, kind, lambda: _copied(asked))
        return answer

    async def _lay_out(self, local_rank: int, wanted: SlabRequest) -> Slab:
        """Return a new slab in the place of an old one, which goes with what is not kept of it."""
        order = LayOutSlab(
            slots=wanted.slots, chunk_bytes=wanted.chunk_bytes, buffers=wanted.buffers
        )

        def old() -> list[int]:
            slabs = [slab for slab in [self._slabs.get(local_rank)] if slab is not None]
            fds = _given_away(slabs)
            self._slabs.pop(local_rank, None)
            return fds

        try:
            _, (fd,) = await self._bulk.ask(order, SlabLaidOut, old)
        except BulkEndedError:  # and the old slab with it
            _, (fd,) = await self._bulk.ask(order, SlabLaidOut, old)
        try:
            slab = self._slabs[local_rank] = Slab.attach(fd)
        finally:
            os.close(fd)
        return slab


def _given_away(slabs: list[Slab]) -> list[int]:
    """Return descriptors of slabs, which are closed here.

    Raises:
        OSError: This process may open no more; nothing is closed.
    """
    fds = _copied(slabs)
    _close(slabs)
    return fds


def _close(slabs: list[Slab]) -> None:
    while slabs:
        slabs.pop().close()


def _copied(slabs: Sequence[Slab]) -> list[int]:
    """Return further descriptors of slabs; all or none.

    Raises:
        OSError: This process may open no more.
    """
    with ExitStack() as undo:
        fds = []
        for slab in slabs:
            fds.append(os.dup(slab.fd))
            undo.callback(os.close, fds[-1])
        undo.pop_all()
        return fds


# -- saving versions -------------------------------------------------------------------------------


class ShardWriter:
    """Has written to the persistent tier what the root agent asks for, one thing at a time.

    The root has one version on its way. By the next order, or a fence, it has given up what is
    still being written here: that is ended, for a store that hangs would keep it, and its copy of
    the shards, for ever. The same order comes again when the connection to the root agent broke,
    for the answer may have been lost: what is done is answered again, and not done again.
    """

    def __init__(
        self,
        *,
        memory: MemoryManager,  # this node's memory
        bulk: BulkProcesses,  # this node's bulk processes
        answer: Callable[[Message], None],  # tells the root agent how it went
        # Runs something beside what the agent does.
        background: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        # Whether every write is refused, as on a full disk: the injector's doing.
        self.is_full = False
        self._memory, self._bulk = memory, bulk
        self._answer, self._background = answer, background
        self._order: Persist | None = None
        self._writing: asyncio.Task[None] | None = None
        self._newest: Persist | Commit | None = None
        self._answered: Message | None = None  # what was answered to that

    def obey(self, order: Persist | Commit) -> None:
        """Do what the root agent asks for."""
        if order == self._newest:
            if self._answered is not None:
                self._answer(self._answered)
            return
        self._newest, self._answered = order, None
        if isinstance(order, Persist):
            self._expect(order)
        else:
            self._begin(order, lambda: self._write_manifest(order))

    def _expect(self, order: Persist) -> None:
        """Write this version when it is whole here; what was ordered before is given up."""
        self._give_up()
        self._order = order
        self.begin_if_whole()

    def begin_if_whole(self) -> None:
        """Write the version that is waited for, if it has become whole.

        An order for a version that was overwritten fails, so that the root does not wait for it.
        """
        order = self._order
        if order is None:
            return
        if self._memory.has(order):
            self._order = None
            self._begin(order, lambda: self._memory.persist(order, is_full=self.is_full))
        elif self._memory.has_passed(order.version):
            self._order = None
            reason = "training has passed it already; save more rarely, or wait for the next"
            self._say(order, _failed(order, reason))

    async def disown(self, order: Disown) -> None:
        """Write what was left behind, beside other writes."""
        try:
            answer, _ = await self._bulk.ask(WriteLeft(order=order), Disowned)
        except (GeminiError, OSError) as error:
            answer = Disowned(epoch=order.epoch, reason=str(error))
        self._answer(answer)

    def cancel(self) -> None:
        """Give up what waits and what is being written, as if it was never ordered."""
        self._newest = self._answered = None
        self._give_up()

    def _give_up(self) -> None:
        self._order = None
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _begin(self, order: Persist | Commit, work: Callable[[], Awaitable[Message]]) -> None:
        if self._writing is not None:
            self._writing.cancel()
        self._writing = self._background(self._write(order, work))

    async def _write(self, order: Persist | Commit, work: Callable[[], Awaitable[Message]]) -> None:
        try:
            answer = await work()
        except (GeminiError, OSError) as error:
            answer = _failed(order, str(error))
        self._say(order, answer)

    def _say(self, order: Persist | Commit, answer: Message) -> None:
        if order == self._newest:
            self._answered = answer
        self._answer(answer)

    async def _write_manifest(self, order: Commit) -> Committed:
        answer, _ = await self._bulk.ask(WriteManifest(order=order), Committed)
        return answer


def _failed(order: Persist | Commit, reason: str) -> SaveFailed:
    return SaveFailed(epoch=order.epoch, version=order.version, reason=reason)
