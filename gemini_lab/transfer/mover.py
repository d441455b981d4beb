"""The acting half: version v goes to the slab and to its replicas while iteration v+1 computes."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import numpy as np
import torch

from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import Slab
from gemini_lab.transfer.local_copy import LocalCopy
from gemini_lab.transfer.route import BackgroundRoute, Route, finish
from gemini_lab.transfer.version import (
    MovedVersion,
    OutgoingVersion,
    Peers,
    VersionBuffers,
    Wire,
    require_unwritten,
    write_counts,
)


class VersionMover:
    """Moves versions, one at a time, on a thread of its own.

    Every rank moves the same versions in the same order. A version is done here only when it is
    whole on all ranks (the last act is a barrier), so nobody overwrites a buffer of version v-1
    before every holder has version v.

    Training's thread calls every method; `on_moved` and `mark` are called on the mover's thread,
    which begins with the first version.

    Args:
        wire: What versions travel over.
        peers: With whom this rank exchanges them.
        slab: Keeps this rank's shard and those that it receives.
        on_moved: Called when a version is whole everywhere.
        mark: What this rank tells the others with each version; see `take_marks`.
        wants_hold: Whether this rank was asked to stop; see `is_hold_agreed`.
        order_back: What this rank was told last of going back, in two numbers; see `agreed_back`.

    Attributes:
        agreed_back: The newest of what the ranks told of going back: its number, and how.
        is_hold_agreed: Whether, by what was told with the versions that were waited for, a rank
            was asked to stop: all ranks learn that with the same version.
    """

    def __init__(
        self,
        wire: Wire,
        peers: Peers,
        slab: Slab,
        *,
        on_moved: Callable[[MovedVersion], None],
        mark: Callable[[], int] = lambda: 0,
        wants_hold: Callable[[], bool] = lambda: False,
        order_back: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self._wire = wire
        self._peers = peers
        self._slab = slab
        self._on_moved = on_moved
        self._mark, self._wants_hold, self._order_back = mark, wants_hold, order_back
        self.is_hold_agreed = False
        self.agreed_back = (0, 0)
        self._marks: tuple[int, ...] = ()
        self._route: Route = BackgroundRoute(wire, peers)
        self._thread = ThreadPoolExecutor(
            1,
            thread_name_prefix="gemini-mover",
            initializer=None if wire.lanes is None else wire.lanes.enter_thread,
        )
        self._under_way: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow(self, route: Route | None) -> None:
        """Let chunks travel by another route from the next version on; all ranks do it together.

        Args:
            route: The mover closes it in the end; `None`: in the background.

        Raises:
            RuntimeError: A version is under way; `wait` for it first.
        """
        if self._under_way is not None and not self._under_way.done():
            raise RuntimeError("a version is under way on the route; wait for it before another")
        self._route.close()
        self._route = BackgroundRoute(self._wire, self._peers) if route is None else route

    def send(self, version: OutgoingVersion) -> None:
        """Begin to move a version; its tensors must not change until `wait` returns."""
        self.wait()
        rank, lanes = self._peers.rank, self._wire.lanes
        if lanes is not None and self._under_way is None:
            lanes.require_here(tensor for _, tensor in version.pieces)
        buffers = VersionBuffers(
            own=self._slab.begin(rank, version.version, version.lineage),
            incoming={
                source: self._slab.begin(source, version.version, version.lineage)
                for source in self._peers.receives_from
            },
        )
        if lanes is not None:
            # The local lane copies the state as training's thread has left it, not an older one.
            lanes.follow("local", lanes.mark("training"))
        self._route.begin(version, buffers)
        self._under_way = self._thread.submit(self._move, version, buffers, write_counts(version))

    def wait(self) -> float:
        """Wait until the version under way is whole on every rank.

        Returns:
            Seconds spent waiting.

        Raises:
            IntegrityError: The version is not of one moment; nothing of it was kept.
            RuntimeError: The transfer broke, as it does when a peer dies.
        """
        started_s = time.perf_counter()
        error = None if self._under_way is None else self._under_way.exception()
        if isinstance(error, IntegrityError):
            raise error
        if error is not None:
            raise RuntimeError("sending the checkpoint failed; a peer may be gone") from error
        return time.perf_counter() - started_s

    def exchange(self, values: Sequence[int]) -> list[list[int]]:
        """Every rank's `values` (equally many), in rank order; no version may be on its way."""
        self.wait()
        return self._wire.group.all_gather(values)

    def take_marks(self) -> tuple[int, ...]:
        """Every rank's mark, in rank order, as told with the newest whole version.

        They are given once: empty when no version became whole since the last call.
        """
        marks, self._marks = self._marks, ()
        return marks

    def close(self) -> None:
        """Finish what is under way and end the thread."""
        self._thread.shutdown()
        self._route.close()

    # -- the mover's thread ----------------------------------------------------------------------

    def _move(
        self, version: OutgoingVersion, buffers: VersionBuffers, counts: Sequence[int]
    ) -> None:
        started_s = time.perf_counter()
        self._route.wait_for_first()
        sizes_bytes = self._exchange_sizes(version)
        local = LocalCopy(version, buffers.own, lanes=self._wire.lanes)
        sent = self._route.exchange(local, buffers, sizes_bytes)
        local.up_to(version.payload_bytes)
        require_unwritten(version, counts)
        self._exchange_digests(version, buffers, sizes_bytes)
        for rank, buffer in buffers.incoming.items():
            buffer.commit(sizes_bytes[rank])
        buffers.own.commit(version.payload_bytes)
        # Also a barrier: nobody begins to overwrite version v-1 before all have version v.
        ours = [self._mark(), self._wants_hold(), *self._order_back()]
        told = self._wire.group.all_gather(ours)
        self._marks = tuple(mark for mark, *_ in told)
        self.is_hold_agreed |= any(wants for _, wants, *_ in told)
        self.agreed_back = max((number, how) for *_, number, how in told)
        self._on_moved(
            MovedVersion(
                version=version.version,
                sent_bytes=version.payload_bytes * len(self._peers.sends_to),
                local_s=local.elapsed_s,
                duration_s=time.perf_counter() - started_s,
                sent=sent,
            )
        )

    def _exchange_sizes(self, version: OutgoingVersion) -> dict[int, int]:
        """Payload bytes of each shard that is received; all must be of the same version."""
        ours = torch.tensor([version.version, version.payload_bytes])
        theirs = {rank: torch.zeros(2, dtype=torch.int64) for rank in self._peers.receives_from}
        self._swap(ours, theirs)
        for rank, table in theirs.items():
            if int(table[0]) != version.version:
                raise IntegrityError(
                    f"rank {rank} sends version {int(table[0])} while version {version.version} is "
                    "due; all ranks must call engine.step() equally often"
                )
        return {rank: int(table[1]) for rank, table in theirs.items()}

    def _exchange_digests(
        self, version: OutgoingVersion, buffers: VersionBuffers, sizes_bytes: Mapping[int, int]
    ) -> None:
        """Give the received chunks the checksums that their senders computed."""
        tables = {
            rank: np.zeros(buffer.chunk_count(sizes_bytes[rank]), np.int64)
            for rank, buffer in buffers.incoming.items()
        }
        count = buffers.own.chunk_count(version.payload_bytes)
        ours = torch.from_numpy(buffers.own.digests[:count].view(np.int64))
        self._swap(ours, {rank: torch.from_numpy(table) for rank, table in tables.items()})
        for rank, table in tables.items():
            for index, digest in enumerate(table.view(np.uint64)):
                buffers.incoming[rank].seal_chunk(index, int(digest))

    def _swap(self, ours: torch.Tensor, theirs: Mapping[int, torch.Tensor]) -> None:
        """Send `ours` to all that keep this rank's shard, and fill `theirs` by their senders."""
        group = self._wire.group
        works = [group.isend(ours, rank) for rank in self._peers.sends_to]
        works += [group.irecv(room, rank) for rank, room in theirs.items()]
        finish(works)
