"""Bulk work beside the agent: processes that touch every byte, so that its event loop never does.

To allocate, check, save or free GiBs takes seconds, and the persistent tier's driver is a
stranger that may hang or crash. In the agent's own interpreter either would keep heartbeats from
leaving, and a healthy node would count as lost. A bulk process owns nothing: slabs come along as
descriptors of the agent's, so that one that is killed costs its question and no memory.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final, TypeVar

from gemini_lab.engine.process_exit import Idleness
from gemini_lab.errors import GeminiError
from gemini_lab.job import python_command
from gemini_lab.recovery.messages import (
    BulkRequest,
    ListVersions,
    Message,
    Refused,
    WriteManifest,
    WriteShards,
)
from gemini_lab.wire.local import LocalChannel

Answer = TypeVar("Answer", bound=Message)
LOOK_S: Final = 5.0
IDLE_S: Final = 60.0
OUTSIDE: Final = (WriteShards, WriteManifest, ListVersions)
"""What waits for a store: who asks for it decides how long."""
REAP_S: Final = 2.0  # for killed processes to be gone; a disk that hangs may hold one for longer


class BulkEndedError(GeminiError):
    """A bulk process ended before it had answered."""


class BulkProcesses:
    """The bulk processes of one node: as many as there are questions at once.

    Args:
        idle_s: One that works on memory and uses no processor for so long hangs, and is ended.
    """

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._all: set[_BulkProcess] = set()
        self._idle: list[_BulkProcess] = []
        self._ended: set[asyncio.Task[int]] = set()  # killed, and not gone yet

    async def warm_up(self) -> None:
        """Start one before the first question."""
        process = await self._start()
        await process.ready()
        self._idle.append(process)

    async def ask(
        self, request: BulkRequest, kind: type[Answer], give: Callable[[], list[int]] = list
    ) -> tuple[Answer, list[int]]:
        """Send a process a question, and wait for its answer, of this kind.

        Cancelling the wait kills the process: nothing else ends a call into a store that hangs.

        Args:
            request: What to do.
            kind: Of the answer.
            give: Gives descriptors to send along, once a process is there to take them.

        Returns:
            The answer, and the descriptors that came with it.

        Raises:
            GeminiError: It was refused, with its own type.
            BulkEndedError: The process ended first.
            OSError: This machine lacks what that needs; nothing was given away.
        """
        process = await self._take()
        try:
            await process.ready()
            with contextlib.ExitStack() as given:
                for fd in (fds := give()):
                    given.callback(os.close, fd)
                process.send(request, tuple(fds))
            # Nothing is held here as it begins: a slab that is laid out again must go first.
            answer, their_fds = await process.receive(request)
        except BaseException:
            self._end(process)
            raise
        self._idle.append(process)
        if isinstance(answer, Refused):
            raise answer.to_error()
        if not isinstance(answer, kind):
            raise GeminiError(f"{type(request).__name__} was answered by {type(answer).__name__}")
        return answer, their_fds

    def signal_all(self, signal_number: int) -> None:
        """Send a signal to all of them at once."""
        for process in self._all:
            process.signal(signal_number)

    async def close(self) -> None:
        """Kill all of them."""
        for process in list(self._all):
            self._end(process)
        self._idle.clear()
        if self._ended:
            await asyncio.wait(self._ended, timeout=REAP_S)

    async def _take(self) -> "_BulkProcess":
        while self._idle:
            process = self._idle.pop()
            if process.is_open:
                return process
            self._end(process)
        return await self._start()

    async def _start(self) -> "_BulkProcess":
        process = await _BulkProcess.start(self._idle_s)
        self._all.add(process)
        return process

    def _end(self, process: "_BulkProcess") -> None:
        self._all.discard(process)
        gone = process.end()
        self._ended.add(gone)
        gone.add_done_callback(self._ended.discard)


class _BulkProcess:
    """The agent's end of one bulk process."""

    def __init__(
        self, process: asyncio.subprocess.Process, channel: LocalChannel, idle_s: float
    ) -> None:
        self.is_open = True
        self._idle_s = idle_s
        self._process = process
        self._channel = channel
        self._is_ready = False
        self._heard: asyncio.Queue[tuple[Message, list[int]] | None] = asyncio.Queue()
        self._gone = asyncio.create_task(process.wait())
        asyncio.get_running_loop().add_reader(channel, self._read)

    @classmethod
    async def start(cls, idle_s: float) -> "_BulkProcess":
        """Return a new process; it dies with this one.

        Raises:
            OSError: No process can be started, or no descriptor is free.
        """
        channel, theirs = LocalChannel.pair()
        try:
            process = await asyncio.create_subprocess_exec(
                *python_command("gemini_lab.node.bulk_process", theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
            )
        except OSError:
            channel.close()
            raise
        finally:
            theirs.close()
        return cls(process, channel, idle_s)

    async def ready(self) -> None:
        """Wait for its `BulkReady`: sent before it reads, a long question would block us."""
        if not self._is_ready:
            await self._next("its imports", idle_s=self._idle_s)
            self._is_ready = True

    def send(self, request: BulkRequest, fds: tuple[int, ...]) -> None:
        """Send a question; `receive` raises if the process is gone."""
        self._channel.send(request, fds)

    async def receive(self, request: BulkRequest) -> tuple[Message, list[int]]:
        """Wait for the answer.

        Raises:
            BulkEndedError: The process is gone, or hangs.
        """
        idle_s = None if isinstance(request, OUTSIDE) else self._idle_s
        return await self._next(type(request).__name__, idle_s=idle_s)

    def signal(self, signal_number: int) -> None:
        """Send it a signal, if it still is."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal_number)

    def end(self) -> "asyncio.Task[int]":
        """Kill it; the task is done when it is gone."""
        if self.is_open:
            self._close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return self._gone

    async def _next(self, purpose: str, *, idle_s: float | None) -> tuple[Message, list[int]]:
        heard = None
        if self.is_open or not self._heard.empty():
            heard = await self._hear(purpose, idle_s=idle_s)
        if heard is not None:
            return heard
        code = await self._gone
        raise BulkEndedError(
            f"a bulk process ended ({-code if code < 0 else code}) before it had done "
            f"{purpose}; nothing but that is lost: it can be asked again"
        )

    async def _hear(
        self, purpose: str, *, idle_s: float | None
    ) -> tuple[Message, list[int]] | None:
        """Return the next thing it says, for as long as it works."""
        idleness = Idleness(self._process.pid)
        look_s = min(LOOK_S, idle_s or LOOK_S)
        while True:
            try:
                async with asyncio.timeout(look_s):
                    return await self._heard.get()
            except TimeoutError:
                passed_s = idleness.look()
            if idle_s is not None and passed_s > idle_s:
                raise BulkEndedError(
                    f"a bulk process did nothing for {idle_s:.0f} s and was ended before it had "
                    f"done {purpose}; nothing but that is lost: it can be asked again"
                )

    def _read(self) -> None:
        messages, is_open = self._channel.poll()
        for heard in messages:
            self._heard.put_nowait(heard)
        if not is_open:
            self._close()

    def _close(self) -> None:
        self.is_open = False
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()
        self._heard.put_nowait(None)  # for who waits for an answer
