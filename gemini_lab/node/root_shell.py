"""The acting half of the root agent: it holds the connections and carries out instructions."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from gemini_lab.errors import LaunchError
from gemini_lab.log.events import AnyEvent, LinkCut, RootElected
from gemini_lab.node.control_store import StoreUnavailableError
from gemini_lab.node.membership import Membership, RootRecord, node_addresses
from gemini_lab.recovery.protocol import (
    Emit,
    FromAgent,
    HangUp,
    Happening,
    Instruction,
    JobCancelled,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    RequestNodes,
    RunState,
    Send,
    Tick,
    WriteState,
)
from gemini_lab.recovery.root import RootAgent
from gemini_lab.wire.tcp import Channel, connect

CONNECT_S: Final = 2.0  # for a connection to a busy agent, and for its first word; a dead one's
# machine refuses at once
STORE_PATIENCE_S: Final = 60.0  # a root that cannot write its state for so long resigns


class Deposed(Exception):  # noqa: N818  (it is no error: another root acts now)
    """This node is not the root agent any more."""


class RootShell:
    """Runs a `RootAgent` on one node for as long as its record stands in the store.

    Args:
        membership: This node's; the record was written through it.
        record: What makes this node root.
        token: The lab's secret.
        emit: Says an event on behalf of this node.
        request_nodes: Asks the lab's operator for machines.
    """

    def __init__(
        self,
        *,
        membership: Membership,
        record: RootRecord,
        token: str,
        emit: Callable[[AnyEvent], None],
        request_nodes: Callable[[int, str], None],
    ) -> None:
        self.record = record
        self._membership = membership
        self._token = token
        self._emit = emit
        self._request_nodes = request_nodes
        self._channels: dict[str, Channel] = {}
        self._happenings: asyncio.Queue[Happening] = asyncio.Queue()
        self._readers: set[asyncio.Task[None]] = set()
        self._root: RootAgent | None = None
        self._job_id: int | None = None
        self._cancelled: int | None = None

    async def run(self) -> None:
        """Act as root until deposed or cancelled."""
        try:
            items = await self._membership.read()
            state = (
                RunState.from_json(json.loads(items["state"])) if "state" in items else RunState()
            )
            self._job_id = state.job["id"] if state.job else None
            self._root = RootAgent(state=state, at_s=time.time())
            self._emit(RootElected(name=self.record.name, term=self.record.term))
            for joined in await self._connect_all(node_addresses(items)):
                self._root.living[joined.node] = joined
            await self._carry_out(self._root.take_over(time.time()))
            await self._serve()
        except Deposed:
            pass
        finally:
            for task in self._readers:
                task.cancel()
            for channel in self._channels.values():
                channel.close()

    def observe(self, items: dict[str, str], *, is_settled: bool) -> None:
        """Take note of the store's content, which the node's agent reads a few times a second.

        Args:
            items: All keys.
            is_settled: Whether a node that is missing is lost.
        """
        if self._root is None:
            return
        now = time.time()
        addresses = node_addresses(items)
        for node in [n for n in self._channels if is_settled and n not in addresses]:
            self._drop(node)
            self._happenings.put_nowait(NodeLost(at_s=now, node=node, cause="lease"))
        for node, address in addresses.items():
            if node not in self._channels:
                self._background(self._join(node, address))
        self._observe_job(items, now)
        self._happenings.put_nowait(Tick(at_s=now))

    def _observe_job(self, items: dict[str, str], now: float) -> None:
        if "job" in items:
            job = json.loads(items["job"])
            present = len(node_addresses(items))
            if job["id"] != self._job_id and len(self._channels) >= min(job["nodes"], present):
                self._job_id = job["id"]
                self._happenings.put_nowait(JobSubmitted(at_s=now, job=job))
        if "cancel" in items and int(items["cancel"]) != self._cancelled:
            self._cancelled = int(items["cancel"])
            if self._cancelled == self._job_id:
                self._happenings.put_nowait(JobCancelled(at_s=now, job_id=self._cancelled))

    async def _serve(self) -> None:
        assert self._root is not None
        while True:
            happening = await self._happenings.get()
            await self._carry_out(self._root.handle(happening))

    async def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case WriteState():
                    await self._write(instruction.state)
                case Send():
                    channel = self._channels.get(instruction.to)
                    if channel is not None:
                        channel.send(instruction.message)
                case Emit():
                    self._emit(instruction.event)
                case RequestNodes():
                    self._request_nodes(instruction.wanted, instruction.reason)
                case HangUp():
                    if instruction.node in self._channels:
                        self._drop(instruction.node)

    async def _write(self, state: RunState) -> None:
        """Store the state while this node is root; a store that is away is waited for."""
        text = json.dumps(state.to_json())
        give_up_s = time.monotonic() + STORE_PATIENCE_S
        while True:
            try:
                if not await self._membership.write_as_root(self.record, "state", text):
                    raise Deposed
            except StoreUnavailableError:
                if time.monotonic() > give_up_s:
                    raise Deposed from None
                await asyncio.sleep(self._membership.poll_s)
            else:
                return

    # -- connections -------------------------------------------------------------------------

    async def _connect_all(self, addresses: dict[str, str]) -> list[NodeJoined]:
        answers = await asyncio.gather(*(self._link(n, a) for n, a in addresses.items()))
        return [joined for joined in answers if joined is not None]

    async def _join(self, node: str, address: str) -> None:
        if (joined := await self._link(node, address)) is not None:
            self._happenings.put_nowait(joined)

    async def _link(self, node: str, address: str) -> NodeJoined | None:
        """Connect to an agent and hear how it is; `None` when it does not answer."""
        hello = {"role": "root", "name": self.record.name, "term": self.record.term}
        with suppress(OSError, TimeoutError, LaunchError):
            channel = await connect(address, self._token, hello, timeout_s=CONNECT_S)
            status = await asyncio.wait_for(channel.receive(), CONNECT_S)
            if status is None or status["op"] != "joined" or node in self._channels:
                channel.close()
                return None
            self._channels[node] = channel
            self._background(self._read(node, address, channel))
            return NodeJoined(
                at_s=time.time(), node=node, epoch=status["epoch"], workers=status["workers"]
            )
        return None

    async def _read(self, node: str, address: str, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            self._happenings.put_nowait(FromAgent(at_s=time.time(), node=node, message=message))
        if self._channels.get(node) is not channel:
            return
        self._drop(node)
        noticed_s = time.time()
        if (joined := await self._link(node, address)) is not None:
            self._emit(LinkCut(peer=node))
            self._happenings.put_nowait(joined)
        else:
            self._happenings.put_nowait(NodeLost(at_s=noticed_s, node=node, cause="connection"))

    def _drop(self, node: str) -> None:
        self._channels.pop(node).close()

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)
