"""The CUDA half of the transfer: chunks over NCCL into the device, and from there to pinned memory.

On a device nothing happens when the program says it, but when the device's queues ("lanes" here,
CUDA streams there) come to it; so a span is no moment on the CPU's clock but a place between two of
training's collectives. A `DeviceRoute` hands a span's chunks over on the thread that calls them,
right after the collective that opens the span. The sender gathers a chunk out of the live tensors
into one buffer and sends it; the receiver takes it into the next of its p sub-buffers, from where a
lane of its own copies it into the slab while the next chunk arrives (paper, section 5.2, Fig. 5).

Why no rank can wait for ever. NCCL may hang where two ranks run operations of several communicators
in different orders. Here one order holds for all ranks: that of the calls, collective 1, the chunks
of its span, collective 2, and so on to the update, where all chunks that are left follow. Every
rank derives it from the same schedules and the same count of calls, and keeps to it whether or not
the iteration looks as it was profiled. On each device the wire lane waits for every collective that
was called before, and every collective waits for the chunks that were handed over before, so of the
two communicators only one is ever at work. Whatever an operation waits for stands earlier in that
order, or is a copy into the slab, which waits for earlier operations only. So the first unfinished
operation of all can always run, on all its ranks: nobody holds a thread up between an iteration's
start and its update. Two things are taken for granted: that training itself calls its collectives
in one order on all ranks (the ranks compare their sequences before there is a schedule), and that
it calls them through DeepSpeed's comm object, where the hook sees them.

The tests run this with CPU tensors, on lanes that work in any order that their waiting allows.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from gemini_lab.memory.slab_form import Chunked
from gemini_lab.pipeliner.schedule import Chunk, ChunkSchedule
from gemini_lab.transfer.device_queues import Lanes, Mark, Message
from gemini_lab.transfer.group import TransferHandle
from gemini_lab.transfer.route import Route
from gemini_lab.transfer.version import (
    CopyUpTo,
    OutgoingVersion,
    Peers,
    SentBytes,
    VersionBuffers,
)

UPDATE: Final = sys.maxsize
"""The place of chunks that have no span: after all collectives before the update."""
_POLL_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The messages that one rank exchanges at once."""

    after: int  # how many of training's collectives come before it
    sends: tuple[tuple[Chunk, int], ...]  # the chunk that leaves, and to whom; at most one
    receives: tuple[tuple[Chunk, int], ...]  # the chunks that arrive, and from whom


def rounds(
    schedules: Mapping[int, ChunkSchedule], peers: Peers, spans_after: Sequence[int]
) -> tuple[Round, ...]:
    """Return the messages that a rank exchanges with each version, in order.

    A chunk's round is its number among its sender's chunks of the same place, so sender and
    receiver find each other in it.

    Args:
        schedules: Of this rank and of those whose shards it keeps.
        peers: With whom the rank exchanges versions.
        spans_after: For each idle span, how many collectives come before it.
    """
    rank, receives_from = peers.rank, peers.receives_from
    sends: dict[tuple[int, int], list[tuple[Chunk, int]]] = {}
    receives: dict[tuple[int, int], list[tuple[Chunk, int]]] = {}
    for sender in (rank, *receives_from):
        counts: dict[int, int] = {}
        for chunk in schedules[sender].chunks:
            after = UPDATE if chunk.span is None else spans_after[chunk.span]
            place = (after, counts.setdefault(after, 0))
            counts[after] += 1
            if sender == rank:
                sends.setdefault(place, []).append((chunk, peers.sends_to[chunk.replica - 1]))
            elif chunk.replica == receives_from[sender]:
                receives.setdefault(place, []).append((chunk, sender))
    return tuple(
        Round(
            after=place[0],
            sends=tuple(sends.get(place, [])),
            receives=tuple(receives.get(place, [])),
        )
        for place in sorted({*sends, *receives})
    )


class DeviceRoute(Route):
    """Moves the chunks of versions as their ranks' schedules say, by way of the device's memory.

    Training's thread calls `begin`, then the hook's gate: `before_call` and `after_call` around
    every collective, `before_update` at the end. The replicator's thread calls `exchange`. On the
    device it takes p sub-buffers and one to send from, each as large as the largest chunk.
    """

    def __init__(
        self,
        lanes: Lanes,
        peers: Peers,
        schedules: Mapping[int, ChunkSchedule],
        *,
        spans_after: Sequence[int],
    ) -> None:
        self._lanes = lanes
        self._rounds = rounds(schedules, peers, spans_after)
        out = [chunk.size_bytes for one in self._rounds for chunk, _ in one.sends]
        into = [chunk.size_bytes for one in self._rounds for chunk, _ in one.receives]
        # A round's receives are one NCCL group, so each needs a sub-buffer of its own.
        at_once = max((len(one.receives) for one in self._rounds), default=0)
        parts = max(schedules[peers.rank].sub_buffers, at_once) if into else 0
        self._out = lanes.room(max(out, default=0))
        self._rooms = [lanes.room(max(into, default=0)) for _ in range(parts)]
        self._left: deque[Round] = deque()
        self._last: Mark | None = None
        self._copied: dict[int, Mark] = {}  # by sub-buffer: reached when it is free again
        self._taken = 0
        self._handed_over = threading.Event()

    def close(self) -> None:
        self._rooms.clear()
        self._out = self._lanes.room(0)

    # -- training's thread -------------------------------------------------------------------------

    def begin(self, version: OutgoingVersion, buffers: VersionBuffers[Chunked]) -> None:
        self._pieces = [(o, t.detach().view(torch.uint8)) for o, t in version.pieces if t.numel()]
        self._incoming = buffers.incoming
        self._began_s = time.time()
        self._handed_over.clear()
        self._left.extend(self._rounds)
        # The gather reads live tensors, which training's stream may still be writing.
        self._lanes.follow("wire", self._lanes.mark("training"))
        self._hand_over(0)

    def before_call(self) -> None:
        """Hold the collective that training is about to call until all chunks so far are sent."""
        if self._last is not None:
            self._lanes.follow("training", self._last)

    def after_call(self, calls: int, work: TransferHandle | None) -> None:
        """Hand over the chunks of the span that follows collective number `calls`."""
        self._lanes.join("wire", work)
        self._hand_over(calls)

    def before_update(self) -> None:
        """Hand over all that is left: training has come to its update."""
        self._hand_over(UPDATE)
        self._handed_over.set()

    def _hand_over(self, calls: int) -> None:
        while self._left and self._left[0].after <= calls:
            self._exchange(self._left.popleft())

    def _exchange(self, one: Round) -> None:
        """Exchange one round: gather, swap, and empty the sub-buffers that were filled."""
        lanes = self._lanes
        sends: list[Message] = []
        for chunk, peer in one.sends:
            for low, high, part in parts(self._pieces, chunk):
                lanes.copy("wire", self._out[low:high], part)
            sends.append((self._out[: chunk.size_bytes], peer))
        filled: list[tuple[int, Chunk, int]] = []
        for chunk, source in one.receives:
            number = self._taken % len(self._rooms)
            self._taken += 1
            if number in self._copied:
                # A sub-buffer is refilled only after the bus has emptied it into the slab.
                lanes.follow("wire", self._copied[number])
            filled.append((number, chunk, source))
        lanes.swap("wire", sends, [(self._rooms[n][: c.size_bytes], s) for n, c, s in filled])
        self._last = lanes.mark("wire")
        if filled:
            lanes.follow("bus", self._last)
        for number, chunk, source in filled:
            end = chunk.offset_bytes + chunk.size_bytes
            home = torch.from_numpy(self._incoming[source].data[chunk.offset_bytes : end])
            lanes.copy("bus", home, self._rooms[number][: chunk.size_bytes])
            self._copied[number] = lanes.mark("bus")

    # -- the replicator's thread -------------------------------------------------------------------

    def exchange(
        self, copy_up_to: CopyUpTo, buffers: VersionBuffers[Chunked]
    ) -> tuple[SentBytes, ...]:
        """Copy and seal the own shard; return what left, once everything is in the slabs.

        A device does not tell when it sent; the times are those of the version.
        """
        copy_up_to(buffers.own.data.nbytes)
        while not self._handed_over.wait(_POLL_S):
            pass
        for mark in (self._last, *self._copied.values()):
            if mark is not None:
                self._lanes.finish(mark)
        sent: dict[int, int] = {}
        for one in self._rounds:
            for chunk, peer in one.sends:
                sent[peer] = sent.get(peer, 0) + chunk.size_bytes
        start_s, end_s = self._began_s, time.time()
        return tuple(
            SentBytes(span=None, peer=peer, sent_bytes=size_bytes, start_s=start_s, end_s=end_s)
            for peer, size_bytes in sent.items()
        )


def parts(
    pieces: Sequence[tuple[int, torch.Tensor]], chunk: Chunk
) -> list[tuple[int, int, torch.Tensor]]:
    """Yield each tensor's place in the chunk: start, end, and the bytes."""
    found = []
    start, end = chunk.offset_bytes, chunk.offset_bytes + chunk.size_bytes
    for offset, piece in pieces:
        low, high = max(start, offset), min(end, offset + piece.numel())
        if low < high:
            found.append((low - start, high - start, piece[low - offset : high - offset]))
    return found
