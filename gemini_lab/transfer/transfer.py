"""The acting half: version v goes to the slab and to its replicas while iteration v+1 computes."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import ReadBuffer, Slab, WriteBuffer, chunk_digest
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.lanes import Lanes
from gemini_lab.transfer.route import LocalCopy, Route, Sent

WINDOW_CHUNKS = 4  # the paper's number of sub-buffers (section 5.3): sends in flight at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What moving one version took, on this rank.

    Attributes:
        sent: What left for which peer, and in which idle span; no span in the background.
    """

    version: int
    sent_bytes: int
    local_s: float
    duration_s: float
    sent: tuple[Sent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One version to be moved.

    Attributes:
        pieces: Offset in the payload, and the flat tensor whose bytes belong there; in order.
        payload_bytes: Size of the whole payload.
    """

    version: int
    pieces: Sequence[tuple[int, torch.Tensor]]
    payload_bytes: int


_Started = tuple[Job, WriteBuffer, dict[int, WriteBuffer]]
"""A job, the buffer of the own shard, and those of the shards that are received."""


class Transfer:
    """Moves versions, one at a time, on a thread of its own.

    Every rank moves the same versions in the same order. A version is done here only when it is
    whole on all ranks (the last act is a barrier), so nobody overwrites a buffer of version v-1
    before every holder has version v.

    Args:
        group: A process group over all ranks, used by nothing else.
        slab: Keeps this rank's shard and those in `receives_from`.
        sends_to: Ranks that keep a replica of this rank's shard.
        receives_from: Ranks whose shards are kept here.
        on_done: Called on the transfer's thread when a version is whole everywhere.
        mark: What this rank tells the others with each version; see `marks`.
        carry: Takes bytes over an emulated link, before they are sent in the background.
        lanes: The device's, if the tensors are on one.

    Attributes:
        route: How chunks travel from the next version on; `None`: in the background, as fast as the
            link takes them. Set it only between `wait` and `start`, and alike on all ranks.
        marks: Every rank's mark, in rank order, as told with the newest whole version.
    """

    def __init__(
        self,
        *,
        group: CheckpointGroup,
        slab: Slab,
        rank: int,
        sends_to: Sequence[int],
        receives_from: Sequence[int],
        on_done: Callable[[Done], None],
        mark: Callable[[], int] = lambda: 0,
        carry: Callable[[float], None] | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        self.route: Route | None = None
        self.marks: tuple[int, ...] = ()
        self._mark = mark
        self._carry = carry
        self._lanes = lanes
        self._group = group
        self._slab = slab
        self._rank = rank
        self._sends_to = tuple(sends_to)
        self._receives_from = tuple(receives_from)
        self._on_done = on_done
        self._jobs: queue.SimpleQueue[_Started | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="gemini-transfer", daemon=True)
        self._thread.start()

    def start(self, job: Job) -> None:
        """Begin to move a version; its tensors must not change until `wait` returns."""
        self.wait()
        own = self._slab.begin(self._rank, job.version)
        incoming = {rank: self._slab.begin(rank, job.version) for rank in self._receives_from}
        if self._lanes is not None:
            self._lanes.follow("local", self._lanes.mark("training"))
        if self.route is not None:
            self.route.begin(job.pieces, incoming)
        self._idle.clear()
        self._jobs.put((job, own, incoming))

    def wait(self) -> float:
        """Wait until the version under way is whole on every rank.

        Returns:
            Seconds spent waiting.

        Raises:
            RuntimeError: The transfer broke, as it does when a peer dies.
        """
        started = time.perf_counter()
        self._idle.wait()
        if self._error is not None:
            raise RuntimeError("sending the checkpoint failed; a peer may be gone") from self._error
        return time.perf_counter() - started

    def close(self) -> None:
        """Finish what is under way and end the thread."""
        self._jobs.put(None)
        self._thread.join()
        if self.route is not None:
            self.route.close()

    def _serve(self) -> None:
        while (started := self._jobs.get()) is not None:
            try:
                done = self._move(*started)
                self._on_done(done)
            except BaseException as error:  # noqa: BLE001  (raised again by wait)
                self._error = error
            self._idle.set()

    def _move(self, job: Job, own: WriteBuffer, incoming: dict[int, WriteBuffer]) -> Done:
        started = time.perf_counter()
        if self.route is not None:
            self.route.wait_for_first()
        sizes = self._exchange_sizes(job)
        local = LocalCopy(job.pieces, job.payload_bytes, own, lanes=self._lanes)
        if self.route is None:
            sent = self._exchange_chunks(local, job, own, incoming, sizes)
        else:
            sent = self.route.exchange(local, own, incoming)
        local.up_to(job.payload_bytes)
        self._exchange_digests(own, own.chunk_count(job.payload_bytes), incoming, sizes)
        for rank, buffer in incoming.items():
            buffer.commit(sizes[rank])
        own.commit(job.payload_bytes)
        # Also a barrier: nobody begins to overwrite version v-1 before all have version v.
        self.marks = tuple(mark for (mark,) in self._group.all_gather([self._mark()]))
        return Done(
            version=job.version,
            sent_bytes=job.payload_bytes * len(self._sends_to),
            local_s=local.elapsed_s,
            duration_s=time.perf_counter() - started,
            sent=sent,
        )

    def _exchange_sizes(self, job: Job) -> dict[int, int]:
        ours = torch.tensor([job.version, job.payload_bytes])
        theirs = {rank: torch.zeros(2, dtype=torch.int64) for rank in self._receives_from}
        self._swap(ours, theirs)
        for rank, (version, _) in ((rank, pair.tolist()) for rank, pair in theirs.items()):
            if version != job.version:
                raise IntegrityError(
                    f"rank {rank} sends version {version} while version {job.version} is due; "
                    "all ranks must call engine.step() equally often"
                )
        return {rank: int(pair[1]) for rank, pair in theirs.items()}

    def _exchange_chunks(
        self,
        local: LocalCopy,
        job: Job,
        own: WriteBuffer,
        incoming: dict[int, WriteBuffer],
        sizes: dict[int, int],
    ) -> tuple[Sent, ...]:
        """In the background: the same chunk goes to all peers, some chunks at a time."""
        start_s = time.time()
        counts = {rank: incoming[rank].chunk_count(sizes[rank]) for rank in incoming}
        own_count = own.chunk_count(job.payload_bytes)
        under_way: deque[list[Any]] = deque()
        for index in range(max([own_count, *counts.values()])):
            works = []
            for rank, buffer in incoming.items():
                if index < counts[rank]:
                    room = torch.from_numpy(_trimmed(buffer, index, sizes[rank]))
                    works.append(self._group.irecv(room, rank))
            if index < own_count:
                chunk = _trimmed(own, index, job.payload_bytes)
                local.up_to((index + 1) * self._slab.chunk_bytes)
                if self._carry is not None:
                    self._carry(chunk.nbytes * len(self._sends_to))
                works += [
                    self._group.isend(torch.from_numpy(chunk), rank) for rank in self._sends_to
                ]
            under_way.append(works)
            while len(under_way) > WINDOW_CHUNKS:
                _finish(under_way.popleft())
        for works in under_way:
            _finish(works)
        return tuple(
            Sent(
                span=None, peer=peer, sent_bytes=job.payload_bytes, start_s=start_s,
                end_s=time.time(),
            )
            for peer in self._sends_to
        )  # fmt: skip

    def _exchange_digests(
        self, own: WriteBuffer, count: int, incoming: dict[int, WriteBuffer], sizes: dict[int, int]
    ) -> None:
        tables = {
            rank: np.zeros(buffer.chunk_count(sizes[rank]), np.int64)
            for rank, buffer in incoming.items()
        }
        ours = torch.from_numpy(own.digests[:count].view(np.int64))
        self._swap(ours, {rank: torch.from_numpy(table) for rank, table in tables.items()})
        for rank, table in tables.items():
            for index, digest in enumerate(table.view(np.uint64)):
                incoming[rank].seal_chunk(index, int(digest))

    def _swap(self, ours: torch.Tensor, theirs: dict[int, torch.Tensor]) -> None:
        works = [self._group.isend(ours, rank) for rank in self._sends_to]
        works += [self._group.irecv(room, rank) for rank, room in theirs.items()]
        _finish(works)


def _trimmed(buffer: WriteBuffer, index: int, payload_bytes: int) -> Any:
    chunk = buffer.chunk(index)
    start = buffer.chunk(0).nbytes * index
    return chunk[: payload_bytes - start]


def _finish(works: list[Any]) -> None:
    for work in works:
        work.wait()


def send_copy(copy: ReadBuffer, chunk_bytes: int, *, to: int, group: CheckpointGroup) -> None:
    """Send a whole version from this rank's slab to another rank, which calls `receive_copy`."""
    header = torch.tensor([copy.info.payload_bytes], dtype=torch.int64)
    group.send(header, to)
    group.send(torch.from_numpy(copy.digests.view(np.int64)), to)
    payload = torch.from_numpy(np.asarray(copy.data))
    for chunk in torch.split(payload, chunk_bytes):
        group.send(chunk, to)


def receive_copy(
    slab: Slab, *, shard: int, version: int, sender: int, group: CheckpointGroup
) -> tuple[int, float]:
    """Receive and verify what `sender` sends by `send_copy`; then it is whole here too.

    Returns:
        Payload bytes, and the seconds spent on checksums.

    Raises:
        IntegrityError: A chunk does not match its checksum.
    """
    header = torch.zeros(1, dtype=torch.int64)
    group.recv(header, sender)
    payload_bytes = int(header[0])
    buffer = slab.begin(shard, version)
    digests = np.zeros(buffer.chunk_count(payload_bytes), np.int64)
    group.recv(torch.from_numpy(digests), sender)
    bad, verify_s = [], 0.0
    for index, digest in enumerate(digests.view(np.uint64)):
        chunk = _trimmed(buffer, index, payload_bytes)
        group.recv(torch.from_numpy(chunk), sender)
        started = time.perf_counter()
        if chunk_digest(chunk) != int(digest):
            bad.append(index)
        verify_s += time.perf_counter() - started
        buffer.seal_chunk(index, int(digest))
    if bad:
        raise IntegrityError(
            f"version {version} of shard {shard}, as rank {sender} sent it, has "
            f"{len(bad)} of {len(digests)} chunks that differ from their checksums"
        )
    buffer.commit(payload_bytes)
    return payload_bytes, verify_s
