"""How a version's chunks travel when a schedule says in which idle span each may leave.

The sender waits for a chunk's span, then gives it to the link. The receiver takes chunks in the
order of the schedule, which it knows as well, straight into the slab. Where a bus to CPU memory is
emulated, they go through sub-buffers that the bus empties, and the sender waits for a free one,
too: each that was emptied is told to it, so never more than all of them are on the way.

No rank waits in a circle: a chunk waits only for chunks before it in the one order that all ranks
share, and for a span that opens, at the latest, when training has come to its update. Training's
own collectives are never held up by this module.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from gemini_lab.memory.slab_form import Chunked
from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule
from gemini_lab.transfer.group import TransferHandle
from gemini_lab.transfer.own_thread import OwnThread
from gemini_lab.transfer.route import Route
from gemini_lab.transfer.version import (
    CopyUpTo,
    Peers,
    SentBytes,
    VersionBuffers,
    Wire,
)

_FREED: Final = 1  # tag of the message that a sub-buffer is free again


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingChunk:
    """One chunk that this rank will receive: from whom, and its place in its sender's schedule."""

    position: int
    source: int
    chunk: Chunk


class ScheduledRoute(Route):
    """Moves the chunks of versions as their ranks' schedules say, on CPUs."""

    def __init__(
        self,
        # Its group, its emulated link, and the bus that empties sub-buffers; without a bus, chunks
        # are received straight into the slab.
        wire: Wire,
        peers: Peers,
        # The schedules of this rank and of all whose shards it keeps; every rank gets the same ones
        # from the same profile.
        schedules: Mapping[int, ChunkSchedule],
        *,
        wait_for_span: Callable[[int | None], None],  # returns when a chunk of that span may leave
    ) -> None:
        self._group = wire.group
        self._wire = wire
        self._empty = wire.empty
        self._peers = peers
        self._schedule = schedules[peers.rank]
        self._wait_for_span = wait_for_span
        self._incoming = incoming_chunks(schedules, peers)
        largest = max((one.chunk.size_bytes for one in self._incoming), default=0)
        rooms = self._schedule.sub_buffers if self._empty is not None else 0
        self._rooms = [torch.empty(largest, dtype=torch.uint8) for _ in range(rooms)]
        self._receiver = OwnThread("gemini-receive")

    def close(self) -> None:
        self._receiver.end(wait=False)

    def wait_for_first(self) -> None:
        """Wait for the first chunk's span.

        At an iteration's start training's thread has much to do at once, and copying a chunk there
        would hold it up for longer than the copy takes.
        """
        first = self._schedule.chunks[:1]
        if first and first[0].span is not None:
            with self._group.waiting():
                self._wait_for_span(first[0].span)

    def exchange(
        self, copy_up_to: CopyUpTo, buffers: VersionBuffers[Chunked]
    ) -> tuple[SentBytes, ...]:
        """Send and receive one version's chunks; returns what left in which span."""
        # Sending waits for spans, and its receivers' answers for chunks of their own schedules, so
        # receiving must go on meanwhile: it has a thread.
        received = self._receiver.submit(partial(self._receive_all, buffers.incoming))
        sent = self._send(copy_up_to, torch.from_numpy(buffers.own.data))
        with self._group.waiting():
            received.result()
        return sent

    def _send(self, copy_up_to: CopyUpTo, payload: torch.Tensor) -> tuple[SentBytes, ...]:
        freed: dict[int, deque[TransferHandle]] = {peer: deque() for peer in self._peers.sends_to}
        works: list[TransferHandle] = []
        sent: list[SentBytes] = []
        chunks = self._schedule.chunks
        ends = [one.offset_bytes + one.size_bytes for one in chunks]
        for number, chunk in enumerate(chunks):
            peer = self._peers.sends_to[chunk.replica - 1]
            copy_up_to(ends[number])
            if self._rooms and len(freed[peer]) >= len(self._rooms):
                self._group.finish([freed[peer].popleft()])
            with self._group.waiting():
                self._wait_for_span(chunk.span)
            start_s = time.time()
            next_bytes = max(ends[number : number + 2])
            self._wire.carry(chunk.size_bytes, copy_up_to, next_bytes=next_bytes)
            works.append(self._group.isend(payload[chunk.offset_bytes : ends[number]], peer))
            if self._rooms:
                # A tag of its own, because Gloo pairs messages of one tag in the order in which
                # they were begun.
                freed[peer].append(self._group.irecv(torch.zeros(1), peer, tag=_FREED))
            _note(sent, chunk, peer, start_s)
        self._group.finish([*works, *(one for waiting in freed.values() for one in waiting)])
        return tuple(sent)

    def _receive_all(self, incoming: Mapping[int, Chunked]) -> None:
        with self._group.used():
            if self._rooms:
                self._receive_through_rooms(incoming)
            else:
                self._receive(incoming)

    def _receive(self, incoming: Mapping[int, Chunked]) -> None:
        """Straight into the slab."""
        works = [
            self._group.irecv(_part(incoming[one.source], one.chunk), one.source)
            for one in self._incoming
        ]
        self._group.finish(
            works[::-1]
        )  # the last first: so the thread is woken once, not each time

    def _receive_through_rooms(self, incoming: Mapping[int, Chunked]) -> None:
        under_way: deque[tuple[IncomingChunk, torch.Tensor, TransferHandle]] = deque()
        freed: list[TransferHandle] = []
        for number, one in enumerate(self._incoming):
            if len(under_way) >= len(self._rooms):
                freed.append(self._take(*under_way.popleft(), incoming))
            room = self._rooms[number % len(self._rooms)][: one.chunk.size_bytes]
            under_way.append((one, room, self._group.irecv(room, one.source)))
        while under_way:
            freed.append(self._take(*under_way.popleft(), incoming))
        self._group.finish(freed)

    def _take(
        self,
        one: IncomingChunk,
        room: torch.Tensor,
        work: TransferHandle,
        incoming: Mapping[int, Chunked],
    ) -> TransferHandle:
        """Wait for a chunk, empty its sub-buffer, and begin to say that it is free."""
        assert self._empty is not None
        self._group.finish([work])
        _part(incoming[one.source], one.chunk).copy_(room)
        self._empty(one.chunk.size_bytes)
        return self._group.isend(torch.zeros(1), one.source, tag=_FREED)


def incoming_chunks(
    schedules: Mapping[int, ChunkSchedule], peers: Peers
) -> tuple[IncomingChunk, ...]:
    """Return what a rank receives, in order, by position in the schedules."""
    found = [
        IncomingChunk(position=position, source=source, chunk=chunk)
        for source, replica in peers.receives_from.items()
        for position, chunk in enumerate(schedules[source].chunks)
        if chunk.replica == replica
    ]
    return tuple(sorted(found, key=lambda one: (one.position, one.source)))


def _part(buffer: Chunked, chunk: Chunk) -> torch.Tensor:
    end = chunk.offset_bytes + chunk.size_bytes
    return torch.from_numpy(buffer.data[chunk.offset_bytes : end])


def _note(sent: list[SentBytes], chunk: Chunk, peer: int, start_s: float) -> None:
    size_bytes = chunk.size_bytes
    if sent and (sent[-1].span, sent[-1].peer) == (chunk.span, peer):
        start_s = sent[-1].start_s
        size_bytes += sent.pop().sent_bytes
    sent.append(
        SentBytes(
            span=chunk.span, peer=peer, sent_bytes=size_bytes, start_s=start_s, end_s=time.time()
        )
    )
