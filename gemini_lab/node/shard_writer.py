"""An agent's part in saving a version: its own shards, and sometimes the manifest."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from gemini_lab.errors import GeminiError
from gemini_lab.node.bulk import BulkProcesses
from gemini_lab.node.memory_manager import MemoryManager
from gemini_lab.recovery.messages import (
    Commit,
    Committed,
    Disown,
    Disowned,
    Message,
    Persist,
    SaveFailed,
    WriteLeft,
    WriteManifest,
)


class ShardWriter:
    """Has written to the persistent tier what the root agent asks for, one thing at a time.

    The root has one version on its way. Whoever orders the next, or fences, has given up what is
    still being written here: that is ended, for a store that hangs would keep it, and its copy of
    the shards, for ever. The same order comes again when the connection to the root agent broke,
    for the answer may have been lost: what is done is answered again, and not done again.

    Args:
        memory: This node's memory.
        bulk: This node's bulk processes.
        answer: Tells the root agent how it went.
        background: Runs something beside what the agent does.

    Attributes:
        is_full: Whether every write is refused, as on a full disk: the injector's doing.
    """

    def __init__(
        self,
        *,
        memory: MemoryManager,
        bulk: BulkProcesses,
        answer: Callable[[Message], None],
        background: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
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
        """A version may have become whole: if it is the one that is waited for, write it.

        An order that comes after its version was overwritten fails: nobody is to wait for it.
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
        """Write what was left behind, beside whatever is being written."""
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
