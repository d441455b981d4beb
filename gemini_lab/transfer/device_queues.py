"""Background queues of a device: the contract, and a GPU's streams.

`CudaQueues` and `pin` need a GPU; everything that stands on the contract does not.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, Protocol

import torch
import torch.distributed as dist

from gemini_lab.errors import CapacityError, ConfigError, UnsupportedError
from gemini_lab.memory.slab_form import Bytes
from gemini_lab.transfer.group import TransferHandle
from gemini_lab.units import format_bytes

Lane = Literal["training", "wire", "bus", "local"]
"""training: where the caller's work goes. wire: chunks between devices. bus: received chunks to the
slab. local: the rank's own shard to its slab."""
_PORTABLE: Final = 1  # cudaHostRegisterPortable: pinned for every GPU that this process uses
Mark = Any
"""A place in a lane's work: a CUDA event, or what another kind of lanes waits by."""
Message = tuple[torch.Tensor, int]
"""What to send or to fill, and the other rank."""


class Lanes(Protocol):
    """The queues of one device. A lane works in order; lanes wait for each other only by marks."""

    def enter_thread(self) -> None:
        """Prepare a thread, other than the one that made the lanes, to give them work."""

    def require_here(self, tensors: Iterable[torch.Tensor]) -> None:
        """Refuse tensors that are neither on the device nor in CPU memory."""

    def room(self, size_bytes: int) -> torch.Tensor: ...

    def home(self, size_bytes: int) -> torch.Tensor:
        """Return CPU memory that the device copies into by itself."""

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy, when the lane comes to it."""

    def swap(self, lane: Lane, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send and receive all of these at once, when the lane comes to it."""

    def mark(self, lane: Lane) -> Mark:
        """Return a mark of all work that the lane was given until now."""

    def follow(self, lane: Lane, mark: Mark) -> None:
        """Hold the lane's later work until the mark."""

    def join(self, lane: Lane, work: TransferHandle | None) -> None:
        """Hold it until a collective's handle is done; `None`: the training lane waits for it."""

    def finish(self, mark: Mark) -> None:
        """Hold the calling thread until the mark is reached."""


class CudaQueues:
    """The lanes of this rank's GPU, the current one of the thread that makes them.

    Every rank makes one, at the same time.

    Args:
        group: A NCCL group over all ranks for chunks alone, from `dist.new_group(backend="nccl")`;
            `None` where nothing is sent.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._streams: dict[str, torch.cuda.Stream] = {
            lane: torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            for lane in ("wire", "bus", "local")
        }
        if group is not None:
            # A communicator's first operation must be one in which all of its ranks take part.
            dist.all_reduce(torch.zeros(1, device=self._device), group=group)

    def enter_thread(self) -> None:
        """Make the GPU this thread's: a new thread has the first one, and would start on it, too.

        Whoever leaves a stream's context goes back to the thread's own GPU, and CUDA then takes
        hundreds of MiB there for this process.
        """
        torch.cuda.set_device(self._device)

    def require_here(self, tensors: Iterable[torch.Tensor]) -> None:
        """Refuse tensors on another GPU, where nobody would wait for a copy."""
        require_one_device(tensors, self._device)

    def _stream(self, lane: Lane) -> torch.cuda.Stream:
        if lane == "training":
            # Training may switch its stream at any time, so it is asked each time.
            return torch.cuda.current_stream(self._device)
        return self._streams[lane]

    def room(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def home(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, lane: Lane, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy asynchronously; bytes that go to the GPU from elsewhere are pinned first."""
        if target.is_cuda and not source.is_cuda:
            # From pageable memory the copy would be synchronous, and hold training's thread.
            source = source.pin_memory()
        with self._on(lane):
            target.copy_(source, non_blocking=True)

    def swap(self, lane: Lane, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send all messages in one NCCL group, so that none of them waits for another."""
        operations = [dist.P2POp(dist.isend, one, peer, self._group) for one, peer in sends]
        operations += [dist.P2POp(dist.irecv, one, peer, self._group) for one, peer in receives]
        with self._on(lane):
            for work in dist.batch_isend_irecv(operations):
                # NCCL's work only queues a wait on the current stream.
                work.wait()  # holds up the stream, not this thread

    def mark(self, lane: Lane) -> Mark:
        # Blocking: threads that wait for it would spin else, on cores that training needs.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream(lane))
        return event

    def follow(self, lane: Lane, mark: Mark) -> None:
        self._stream(lane).wait_event(mark)

    def join(self, lane: Lane, work: TransferHandle | None) -> None:
        """Hold the lane's stream until the collective is done.

        With that the handle lets go of the collective's tensors; whoever called it must keep them
        until they wait themselves, as DeepSpeed's handles do.
        """
        if work is None:
            self.follow(lane, self.mark("training"))
            return
        with self._on(lane):
            work.wait()

    def finish(self, mark: Mark) -> None:
        mark.synchronize()

    def _on(self, lane: Lane) -> AbstractContextManager[None]:
        return torch.cuda.stream(self._stream(lane))


def require_current(device: torch.device, current: int) -> None:
    """Refuse to protect what is not on the current GPU: copies would wait on the wrong queues."""
    if device.index not in {None, current}:
        raise ConfigError(
            f"the model is on cuda:{device.index}, and the current GPU of this process is "
            f"cuda:{current}; call torch.cuda.set_device({device.index}), the worker's LOCAL_RANK, "
            "before the model is made"
        )


def require_one_device(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Refuse tensors on other devices than `device`, or in CPU memory."""
    found = {one.device for one in tensors} - {device, torch.device("cpu")}
    if found:
        others = ", ".join(sorted(map(str, found)))
        raise UnsupportedError(
            f"this worker trains on {device}, and parts of its state are on {others}; one worker "
            "protects one GPU: start a worker for each (--workers-per-node)"
        )


def pin_on(device: torch.device, memory: Bytes) -> None:
    """Pin a slab's memory if the worker's tensors are on a GPU: all copies are fast then."""
    if device.type == "cuda":
        require_current(device, torch.cuda.current_device())
        pin(memory)


def pin(memory: Bytes) -> None:
    """Lock mapped memory, such as a slab's, so that the GPU copies into it by itself.

    It stays so until this process ends.
    """
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    # PyTorch pins only memory that it allocates itself; the slab is the agent's.
    error = runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE)
    if int(error):
        raise CapacityError(
            f"CUDA cannot pin {format_bytes(memory.nbytes)} of the checkpoint slab (error "
            f"{int(error)}); allow more locked memory (ulimit -l), or use fewer replicas"
        )


def unpin(memory: Bytes) -> None:
    """Release memory that `pin` has locked: before it is unmapped, or CUDA keeps its pages."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    runtime.cudaHostUnregister(memory.ctypes.data)
