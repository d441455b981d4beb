"""GEMINI: a slab as a node's agent keeps it, and a replica in the slab of the next node."""

import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from gemini_lab.errors import IntegrityError
from gemini_lab.memory.slab import ReadBuffer, Slab, SlotSpec
from gemini_lab.settings import Settings
from gemini_lab.transfer.group import CheckpointGroup
from gemini_lab.transfer.replicator import Replicator
from gemini_lab.transfer.version import MovedVersion, OutgoingVersion, Peers, Wire
from gemini_lab_bench.peers.contract import Peer, PeerTask, Region


class Ours(Peer):
    """Versions leave in the background, as in a job that was not profiled yet."""

    keeps_copies = True

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        after, before = (task.rank + 1) % task.ranks, (task.rank - 1) % task.ranks
        self._store = dist.FileStore(str(task.folder / "store"), task.ranks)  # type: ignore[attr-defined]
        self._slab = Slab.create(
            [SlotSpec(shard, task.size_bytes) for shard in (task.rank, before)],
            chunk_bytes=Settings().chunk_bytes,
        )
        self._whole_s = 0.0
        self._starts = 0
        self._peers = Peers(rank=task.rank, sends_to=(after,), receives_from={before: 1})
        self._replicator = self._open_replicator()

    def begin(self, step: int) -> None:
        """Hand the tensors over: they are copied and sent while the iteration computes."""
        pieces, offset_bytes = [], 0
        for tensor in self.state.values():
            pieces.append((offset_bytes, tensor))
            offset_bytes += tensor.nbytes
        self._replicator.send(
            OutgoingVersion(version=step, pieces=pieces, payload_bytes=offset_bytes)
        )

    def before_update(self) -> None:
        self._wait()

    def finish(self) -> float:
        self._wait()
        return self._whole_s

    def restore(self) -> dict[str, torch.Tensor]:
        """Return views into the slab, once all their bytes are verified."""
        started_s = time.perf_counter()
        copy = self._newest(self._slab)
        views = self._views(copy)
        self.details["views without a look at their bytes"] = time.perf_counter() - started_s
        self._verified(copy)
        return views

    def take_over(self, lost: int) -> dict[str, torch.Tensor] | None:
        """Return verified views into the slab, which outlives every worker: the agent has it."""
        versions = [copy.version for copy in self._slab.copies() if copy.shard == lost]
        if not versions:
            return None
        return self._views(self._verified(self._slab.read(lost, max(versions))))

    def measure_more(self) -> None:
        """Restore as a new worker does, which maps the slab again and thus touches every page."""
        started_s = time.perf_counter()
        slab = Slab.attach(self._slab.fd)
        bad = self._newest(slab).bad_chunks()
        self.details["verified views in a new mapping"] = time.perf_counter() - started_s
        slab.close()
        assert not bad

    def stored(self) -> Sequence[Region]:
        copy = self._newest(self._slab)
        return copy.digests.view(np.uint8), np.asarray(copy.data)

    def start_over(self) -> None:
        """Open another replicator: one that has refused a version stays so."""
        self._replicator.close()
        self._replicator = self._open_replicator()

    def close(self) -> None:
        self._replicator.close()

    def _open_replicator(self) -> Replicator:
        self._starts += 1
        store = dist.PrefixStore(f"start {self._starts}", self._store)  # type: ignore[attr-defined]
        self._group = CheckpointGroup(store, rank=self.task.rank, world_size=self.task.ranks)
        return Replicator(Wire(group=self._group), self._peers, self._slab, on_moved=self._note)

    def _wait(self) -> None:
        try:
            self._replicator.wait()
        except IntegrityError:
            # As a worker's end does that refuses a version: a rank that had copied its own before
            # the update waits for this one's checksums.
            self._group.cut()
            raise

    def _note(self, _: MovedVersion) -> None:
        self._whole_s = time.perf_counter()

    def _verified(self, copy: ReadBuffer) -> ReadBuffer:
        if bad := copy.bad_chunks():
            raise IntegrityError(f"{len(bad)} chunks differ from their checksums: {bad[:8]}")
        return copy

    def _newest(self, slab: Slab) -> ReadBuffer:
        shard = self.task.rank
        return slab.read(shard, max(c.version for c in slab.copies() if c.shard == shard))

    def _views(self, copy: ReadBuffer) -> dict[str, torch.Tensor]:
        whole = torch.frombuffer(copy.data, dtype=torch.float32)
        return dict(zip(self.state, whole.tensor_split(len(self.state)), strict=True))
