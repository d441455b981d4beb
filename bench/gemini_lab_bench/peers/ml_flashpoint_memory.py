"""ML Flashpoint: objects as memory files, sent to the partner by its C++ transfer service."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from ml_flashpoint.adapter.pytorch import custom_state_dict_saver as saving
from ml_flashpoint.adapter.pytorch.memory_storage_reader import MemoryStorageReader
from ml_flashpoint.adapter.pytorch.memory_storage_writer import MemoryStorageWriter
from ml_flashpoint.checkpoint_object_manager.checkpoint_object_manager import (
    CheckpointObjectManager,
)
from ml_flashpoint.core.checkpoint_id_types import CheckpointContainerId
from ml_flashpoint.core.checkpoint_loader import DefaultMLFlashpointCheckpointLoader
from ml_flashpoint.core.checkpoint_saver import DefaultMLFlashpointCheckpointSaver
from ml_flashpoint.replication.replication_manager import (
    PairwiseReplicationStrategy,
    ReplicationManager,
)
from ml_flashpoint.replication.transfer_service import transfer_service_ext
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.multiprocessing import get_context

from gemini_lab.units import MIB
from gemini_lab_bench.peers.contract import Peer, PeerTask, Region

HEADERS_BYTES = 1 * MIB
"""What its files have beside the tensors, at most."""


class MlFlashpointMemory(Peer):
    """Its calls in the order of its adapter for Megatron, written by a thread.

    That adapter copies tensors to the CPU before it returns. Those that are there already are not
    copied, so an update waits until they are written. As each rank is a node of its own, though on
    one machine, its objects lie in a folder of its own, and their names change on their way.
    """

    restores_in_place = True
    keeps_copies = True

    def __init__(self, task: PeerTask) -> None:
        super().__init__(task)
        os.environ["NNODES"] = str(task.ranks)  # else it divides by the number of GPUs
        self._group: Any = _DistWrapper(group=None, use_dist=True, coordinator_rank=0)
        self._service = transfer_service_ext.TransferService()
        objects, manager = CheckpointObjectManager(), ReplicationManager()
        manager.initialize(
            objects,
            replication_transfer_service=_Renamed(self._service, task.folder),
            repl_strategy=PairwiseReplicationStrategy(self._addresses(), processes_per_node=1),
        )
        self._saver = DefaultMLFlashpointCheckpointSaver(
            dist.get_rank,
            dist.get_node_local_rank,
            dist.barrier,
            objects,
            manager,
            initial_buffer_size_bytes=task.size_bytes + HEADERS_BYTES,
        )
        self._manager: Future[Any] = Future()
        self._manager.set_result(get_context("spawn").Manager())
        self._loader: Any = DefaultMLFlashpointCheckpointLoader(
            objects,
            manager,
            global_rank_getter=dist.get_rank,
            local_rank_getter=dist.get_node_local_rank,
            broadcast_object_list_func=dist.broadcast_object_list,
            all_gather_object_func=dist.all_gather_object,
            world_size_getter=dist.get_world_size,
        )
        self._plan: Any = None
        self._writer: Any = None
        self._id: Any = None
        self._metadata: Any = None
        self._writing = self._sending = Thread()
        self._whole_s = 0.0

    def begin(self, step: int) -> None:
        """Plan with the others; the rest goes on in threads."""
        self._id = CheckpointContainerId(str(self._node(self.task.rank) / f"step-{step}_ckpt"))
        self._writer = MemoryStorageWriter(self._saver, self._manager)
        self._writer.reset(self._id.data)
        buckets, metadata, *self._plan = saving.generate_plan(
            self._id,
            self._named(self.task.rank),
            self._writer,
            DefaultSavePlanner(),
            self._group,
            self._plan,
        )
        self._metadata = metadata or self._metadata
        staged = self._writer.stage_write_data_buckets(self._id, buckets, non_blocking=True)
        self._writing = Thread(
            target=saving.write_data, args=(self._id, self._writer, staged, False)
        )
        self._writing.start()
        self._sending = Thread(target=self._send, args=({one.object_id for one in staged},))
        self._sending.start()

    def before_update(self) -> None:
        self._writing.join()

    def finish(self) -> float:
        """Return when the partner had the object; declare it complete and drop older ones."""
        self._sending.join()
        saving.finish_write(self._id, self._writer, self._metadata, self._group)
        removing = self._saver.finalize_checkpoint(self._id)
        if removing is not None:
            removing.wait()
        return self._whole_s

    def restore(self) -> dict[str, torch.Tensor]:
        self._load(self._id, self.task.rank, self.state)
        return self.state

    def take_over(self, lost: int) -> dict[str, torch.Tensor] | None:
        """Return the partner's object of the newest checkpoint that is complete on this node."""
        for folder in sorted(self._node(self.task.rank).glob("step-*_ckpt"), reverse=True):
            is_complete = not [*folder.parent.glob(f"{folder.name}__*")]
            if is_complete and [*folder.glob(f"*_src{lost}.*")]:
                taken = {name: torch.empty_like(tensor) for name, tensor in self.state.items()}
                self._load(CheckpointContainerId(str(folder)), lost, taken)
                return taken
        return None

    def stored(self) -> Sequence[Region]:
        return [*Path(self._id.data).glob(f"*_src{self.task.rank}.*")]

    def close(self) -> None:
        self._service.shutdown()
        self._manager.result().shutdown()

    def _send(self, objects: set[Any]) -> None:
        self._writing.join()
        sent, _ = wait(self._writer.replicate_written_objects(objects))
        if all(one.result().success for one in sent):
            self._whole_s = time.perf_counter()

    def _load(self, where: Any, rank: int, into: dict[str, torch.Tensor]) -> None:
        named = {f"rank{rank}.{name}": tensor for name, tensor in into.items()}
        load(
            named,
            checkpoint_id=where.data,
            storage_reader=MemoryStorageReader(where.data, self._loader),
            no_dist=True,
        )

    def _named(self, rank: int) -> dict[str, Any]:
        return {f"rank{rank}.{name}": tensor for name, tensor in self.state.items()}

    def _node(self, rank: int) -> Path:
        return _node(self.task.folder, rank)

    def _addresses(self) -> list[str]:
        port = self._service.initialize(0, global_rank=self.task.rank)
        ports: list[int] = [0] * self.task.ranks
        dist.all_gather_object(ports, port)
        return [f"127.0.0.1:{one}" for one in ports]


class _Renamed:
    """Its transfer service, which has the receiver put an object below the receiver's folder."""

    def __init__(self, service: Any, folder: Path) -> None:
        self._service = service
        self._own, self._partners = (_node(folder, dist.get_rank() ^ one) for one in (0, 1))

    def async_put(self, pointer: int, size: int, address: str, name: str) -> Any:
        renamed = name.replace(str(self._own), str(self._partners), 1)
        return self._service.async_put(pointer, size, address, renamed)


def _node(folder: Path, rank: int) -> Path:
    return folder / f"node-{rank}"
