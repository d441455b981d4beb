"""How a version's chunks travel when a schedule says in which idle span each may leave.

The sender waits for a chunk's span and for a free sub-buffer at its receiver, then gives it to the
link. The receiver takes chunks in the order of the schedule, which it knows as well, straight into
the slab; where a bus to CPU memory is emulated, through sub-buffers that the bus empties. Each
emptied sub-buffer is told to the sender, so never more than all of them are on the way.

No rank waits in a circle: a chunk waits only for chunks before it in the one order that all ranks
share, and for a span that opens, at the latest, when training has come to its update. Training's
own collectives are never held up by this module.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from gemini_lab.memory.slab import WriteBuffer, chunk_digest
from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.lanes import Lanes

_FREED: Final = 1  # tag of the message that a sub-buffer is free again
_SEALERS: Final = 4
"""Threads that seal what a device copied: its bus is faster than the checksums of one thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What left for one peer in one idle span; times are seconds since the epoch."""

    span: int | None
    peer: int
    sent_bytes: int
    start_s: float
    end_s: float


class Route(Protocol):
    """How the chunks of versions travel when a schedule says in which idle span each may leave."""

    def begin(
        self, pieces: Sequence[tuple[int, torch.Tensor]], incoming: Mapping[int, WriteBuffer]
    ) -> None:
        """A version is there; called on training's thread, before the next iteration's calls.

        Args:
            pieces: Offset in the payload, and the flat tensor whose bytes belong there; in order.
            incoming: For each shard that is received, its buffer.
        """

    def wait_for_first(self) -> None:
        """Hold the transfer's thread while a version needs nothing of it yet."""

    def exchange(
        self, local: "LocalCopy", own: WriteBuffer, incoming: Mapping[int, WriteBuffer]
    ) -> tuple[Sent, ...]:
        """Send and receive the version's chunks; returns what left in which span."""

    def close(self) -> None:
        """Let go of what it holds; no version is under way."""


class LocalCopy:
    """Fills a rank's own buffer from live tensors, chunk by chunk, and seals each chunk.

    Args:
        pieces: Offset in the payload, and the flat tensor whose bytes belong there; in order.
        payload_bytes: Size of the whole payload.
        own: The buffer.
        lanes: The device's, if the tensors are on one; the next chunk is then copied by its local
            lane while threads of this copy's own seal those before.

    Attributes:
        elapsed_s: Seconds spent so far.
    """

    def __init__(
        self,
        pieces: Sequence[tuple[int, torch.Tensor]],
        payload_bytes: int,
        own: WriteBuffer,
        *,
        lanes: Lanes | None = None,
    ) -> None:
        self._lanes = lanes
        self._ahead = 1 if lanes is None else 2
        self._filled: deque[Any] = deque()
        self._pieces = [(o, t.detach().view(torch.uint8)) for o, t in pieces if t.numel()]
        self._next = 0
        self._own = own
        self._chunk_bytes = own.chunk(0).nbytes
        self._payload_bytes = payload_bytes
        self._done = 0
        self.elapsed_s = 0.0

    def up_to(self, end_bytes: int) -> None:
        """Copy and seal what is missing of the first `end_bytes` of the payload."""
        started_s = time.perf_counter()
        last = -(-min(end_bytes, self._payload_bytes) // self._chunk_bytes)
        if self._lanes is None:
            for number, chunk in self._arrived(last):
                self._seal(number, chunk)
        else:
            with ThreadPoolExecutor(_SEALERS, thread_name_prefix="gemini-seal") as sealers:
                seals = [sealers.submit(self._seal, *one) for one in self._arrived(last)]
            for seal in seals:
                seal.result()
        self.elapsed_s += time.perf_counter() - started_s

    def _arrived(self, last: int) -> Iterator[tuple[int, Any]]:
        """The chunks before number `last` that are missing, each when it has been copied."""
        while self._done < last:
            while self._done + len(self._filled) < min(last, self._done + self._ahead):
                self._filled.append(self._begin(self._done + len(self._filled)))
            chunk, mark = self._filled[0]
            if self._lanes is not None:
                self._lanes.finish(mark)
            self._filled.popleft()
            self._done += 1
            yield self._done - 1, chunk

    def _seal(self, number: int, chunk: Any) -> None:
        self._own.seal_chunk(number, chunk_digest(chunk))

    def _begin(self, number: int) -> tuple[Any, Any]:
        """Fill a chunk; on a device, as soon as its lane comes to the mark that is given too."""
        start = number * self._chunk_bytes
        chunk = self._own.chunk(number)[: self._payload_bytes - start]
        self._fill(torch.from_numpy(chunk), start)
        return chunk, None if self._lanes is None else self._lanes.mark("local")

    def _fill(self, room: torch.Tensor, start: int) -> None:
        """Fill `room` with the payload's bytes from `start` on."""
        end = start + room.numel()
        while self._next < len(self._pieces):
            offset, piece = self._pieces[self._next]
            low, high = max(start, offset), min(end, offset + piece.numel())
            if low < high:
                target, source = (
                    room[low - start : high - start],
                    piece[low - offset : high - offset],
                )
                if self._lanes is None:
                    target.copy_(source)
                else:
                    self._lanes.copy("local", target, source)
            if offset + piece.numel() > end:
                return
            self._next += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One chunk that this rank will receive: from whom, and the free-message it answers with."""

    position: int
    source: int
    chunk: Chunk


class ScheduledRoute:
    """Moves the chunks of versions as their ranks' schedules say.

    Args:
        group: The checkpoints' process group.
        rank: This one.
        schedules: The schedules of this rank and of all whose shards it keeps; every rank gets the
            same ones from the same profile.
        sends_to: The ranks that keep this rank's replicas 1, 2, ...
        receives_from: Rank of each shard that is kept here, and which replica this is.
        wait_for_span: Returns when a chunk of that span may leave.
        carry: Takes bytes over an emulated link.
        empty: Takes bytes over an emulated bus from sub-buffer to slab; without it, chunks are
            received straight into the slab.
    """

    def __init__(
        self,
        *,
        group: CheckpointGroup,
        rank: int,
        schedules: Mapping[int, ChunkSchedule],
        sends_to: Sequence[int],
        receives_from: Mapping[int, int],
        wait_for_span: Callable[[int | None], None],
        carry: Callable[[float], None] | None = None,
        empty: Callable[[float], None] | None = None,
    ) -> None:
        self._group = group
        self._sends_to = tuple(sends_to)
        self._schedule = schedules[rank]
        self._wait_for_span = wait_for_span
        self._carry = carry
        self._empty = empty
        self._window = self._schedule.sub_buffers
        self._incoming = arrivals(schedules, receives_from)
        largest = max((one.chunk.size_bytes for one in self._incoming), default=0)
        rooms = self._window if empty is not None else 0
        self._rooms = [torch.empty(largest, dtype=torch.uint8) for _ in range(rooms)]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gemini-receive")

    def close(self) -> None:
        """End the receiving thread."""
        self._thread.shutdown(wait=False)

    def begin(
        self, pieces: Sequence[tuple[int, torch.Tensor]], incoming: Mapping[int, WriteBuffer]
    ) -> None:
        """Nothing yet: on CPUs all is done by the transfer's thread."""

    def wait_for_first(self) -> None:
        """Wait for the first chunk's span.

        At an iteration's start training's thread has much to do at once, and copying a chunk there
        would hold it up for longer than the copy takes.
        """
        first = self._schedule.chunks[:1]
        if first and first[0].span is not None:
            self._wait_for_span(first[0].span)

    def exchange(
        self, local: LocalCopy, own: WriteBuffer, incoming: Mapping[int, WriteBuffer]
    ) -> tuple[Sent, ...]:
        """Send and receive one version's chunks; returns what left in which span."""
        received: Future[None] = self._thread.submit(self._receive, incoming)
        sent = self._send(local, torch.from_numpy(own.data))
        received.result()
        return sent

    def _send(self, local: LocalCopy, payload: torch.Tensor) -> tuple[Sent, ...]:
        freed: dict[int, deque[Any]] = {peer: deque() for peer in self._sends_to}
        works: list[Any] = []
        sent: list[Sent] = []
        for chunk in self._schedule.chunks:
            peer = self._sends_to[chunk.replica - 1]
            end = chunk.offset_bytes + chunk.size_bytes
            local.up_to(end)
            if len(freed[peer]) >= self._window:
                freed[peer].popleft().wait()
            self._wait_for_span(chunk.span)
            start_s = time.time()
            if self._carry is not None:
                self._carry(chunk.size_bytes)
            works.append(self._group.isend(payload[chunk.offset_bytes : end], peer))
            freed[peer].append(self._group.irecv(torch.zeros(1), peer, tag=_FREED))
            _note(sent, chunk, peer, start_s)
        for work in (*works, *(one for waiting in freed.values() for one in waiting)):
            work.wait()
        return tuple(sent)

    def _receive(self, incoming: Mapping[int, WriteBuffer]) -> None:
        under_way: deque[tuple[Incoming, torch.Tensor, Any]] = deque()
        freed: list[Any] = []
        for number, one in enumerate(self._incoming):
            if len(under_way) >= self._window:
                freed.append(self._take(*under_way.popleft(), incoming))
            room = self._room(number, one.chunk, incoming[one.source])
            under_way.append((one, room, self._group.irecv(room, one.source)))
        while under_way:
            freed.append(self._take(*under_way.popleft(), incoming))
        for work in freed:
            work.wait()

    def _room(self, number: int, chunk: Chunk, buffer: WriteBuffer) -> torch.Tensor:
        if self._rooms:
            return self._rooms[number % self._window][: chunk.size_bytes]
        return _part(buffer, chunk)

    def _take(
        self, one: Incoming, room: torch.Tensor, work: Any, incoming: Mapping[int, WriteBuffer]
    ) -> Any:
        """Wait for a chunk, empty its sub-buffer, and begin to say that it is free."""
        work.wait()
        if self._empty is not None:
            _part(incoming[one.source], one.chunk).copy_(room)
            self._empty(one.chunk.size_bytes)
        return self._group.isend(torch.zeros(1), one.source, tag=_FREED)


def arrivals(
    schedules: Mapping[int, ChunkSchedule], receives_from: Mapping[int, int]
) -> tuple[Incoming, ...]:
    """What a rank receives, in the order in which it does: by position in the schedules.

    Args:
        schedules: At least those of the ranks in `receives_from`.
        receives_from: Rank of each shard that is kept here, and which replica this is.
    """
    found = [
        Incoming(position=position, source=source, chunk=chunk)
        for source, replica in receives_from.items()
        for position, chunk in enumerate(schedules[source].chunks)
        if chunk.replica == replica
    ]
    return tuple(sorted(found, key=lambda one: (one.position, one.source)))


def _part(buffer: WriteBuffer, chunk: Chunk) -> torch.Tensor:
    end = chunk.offset_bytes + chunk.size_bytes
    return torch.from_numpy(buffer.data[chunk.offset_bytes : end])


def _note(sent: list[Sent], chunk: Chunk, peer: int, start_s: float) -> None:
    """Add a chunk to what left for `peer` in its span."""
    size_bytes = chunk.size_bytes
    if sent and (sent[-1].span, sent[-1].peer) == (chunk.span, peer):
        start_s = sent[-1].start_s
        size_bytes += sent.pop().sent_bytes
    sent.append(
        Sent(span=chunk.span, peer=peer, sent_bytes=size_bytes, start_s=start_s, end_s=time.time())
    )
